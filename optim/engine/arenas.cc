// Puts the arenas of a node's ranks into one shared segment, in three collective steps: tell who
// shares memory with whom and needs how much; the lowest rank of each node makes the segment and
// tells its name; all open it, and the name is taken away.
#include "optim/engine/arenas.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "src/base/align.h"
#include "src/base/status_macros.h"
#include "src/memory/available.h"
#include "src/memory/segment.h"

namespace zerohold::engine {
namespace {

struct Need {
  uint64_t mount = 0;  // equal on ranks that can open each other's segments
  int64_t bytes = 0;
};

struct Offer {
  std::array<char, 64> name{};  // empty: no segment on this node
};

// Every rank's `mine`, by rank.
template <typename T>
absl::StatusOr<std::vector<T>> GatherAll(comm::Communicator& communicator, const char* what,
                                         const T& mine) {
  std::vector<T> all(communicator.size());
  all[communicator.rank()] = mine;
  std::vector<comm::Piece> pieces;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    pieces.push_back({rank, static_cast<int64_t>(rank * sizeof(T)), sizeof(T)});
  }
  ZH_RETURN_IF_ERROR(communicator.AllGather({what}, all.data(), pieces));
  return all;
}

// A rank's slice of the segment: what stays of both arenas, then the frames of both. Bytes, each in
// whole frames.
struct Slice {
  explicit Slice(const layout::Layout& layout, int64_t parameter_frame_bytes,
                 int64_t gradient_frame_bytes)
      : parameters(layout.resident_parameter_bytes()),
        gradients(layout.resident_gradient_bytes()),
        parameter_frames(base::AlignUp(parameter_frame_bytes, base::kFrameBytes)),
        gradient_frames(base::AlignUp(gradient_frame_bytes, base::kFrameBytes)) {}

  int64_t GradientsBegin() const { return base::AlignUp(parameters, base::kPageBytes); }
  int64_t ParameterFramesBegin() const {
    return base::AlignUp(GradientsBegin() + gradients, base::kFrameBytes);
  }
  int64_t GradientFramesBegin() const { return ParameterFramesBegin() + parameter_frames; }
  int64_t Bytes() const { return GradientFramesBegin() + gradient_frames; }

  int64_t parameters;
  int64_t gradients;
  int64_t parameter_frames;
  int64_t gradient_frames;
};

// Brings memory under what stays, and makes the pools of frames; from the segment, or private
// without one.
absl::Status Fill(Arenas& arenas, const Slice& slice, const memory::Segment* segment,
                  int64_t offset, memory::Ledger* ledger) {
  if (segment == nullptr) {
    ZH_RETURN_IF_ERROR(arenas.parameters.AttachPrivate(0, slice.parameters));
    ZH_RETURN_IF_ERROR(arenas.gradients.AttachPrivate(0, slice.gradients));
  } else {
    ZH_RETURN_IF_ERROR(arenas.parameters.AttachShared(0, slice.parameters, *segment, offset));
    ZH_RETURN_IF_ERROR(arenas.gradients.AttachShared(0, slice.gradients, *segment,
                                                     offset + slice.GradientsBegin()));
  }
  const auto frames = [&](int64_t bytes, int64_t begin, std::unique_ptr<memory::FramePool>& pool) {
    auto created = segment == nullptr
                       ? memory::FramePool::CreatePrivate(bytes, MemoryKind::kFrames, ledger)
                       : memory::FramePool::CreateInSegment(*segment, {offset + begin, bytes},
                                                            MemoryKind::kFrames, ledger);
    if (created.ok()) pool = std::move(created).value();
    return created.status();
  };
  ZH_RETURN_IF_ERROR(
      frames(slice.parameter_frames, slice.ParameterFramesBegin(), arenas.parameter_frames));
  return frames(slice.gradient_frames, slice.GradientFramesBegin(), arenas.gradient_frames);
}

// This rank's part of the node's segment; without one, `segment` is empty.
struct Share {
  std::optional<memory::Segment> segment;
  int64_t offset = 0;
};

// Collective; see the head of the file.
absl::StatusOr<Share> ShareSegment(comm::Communicator& communicator, int64_t bytes,
                                   const base::NoticeSink& notice) {
  const int rank = communicator.rank();
  const Need mine{memory::SharedMemoryMount(), base::AlignUp(bytes, base::kFrameBytes)};
  ZH_ASSIGN_OR_RETURN(const std::vector<Need> needs, GatherAll(communicator, "arena sizes", mine));
  Share share;
  int leader = rank;
  int64_t node_bytes = 0;
  for (int other = communicator.size() - 1; other >= 0; --other) {
    if (needs[other].mount != mine.mount) continue;
    leader = other;
    node_bytes += needs[other].bytes;
    if (other < rank) share.offset += needs[other].bytes;
  }

  Offer offer;
  absl::Status status;
  if (leader == rank && node_bytes > 0) {
    auto created = memory::Segment::Create(node_bytes);
    const int64_t available = memory::AvailableMemoryBytes();
    if (created.ok()) {
      share.segment = std::move(created).value();
      share.segment->name().copy(offer.name.data(), offer.name.size() - 1);
    } else if (available > 0 && node_bytes > available) {
      status = created.status();  // private memory would be as short
    } else {
      notice("arenas are in private memory, so peers cannot read them in place: " +
             std::string(created.status().message()));
    }
  }
  ZH_ASSIGN_OR_RETURN(const std::vector<Offer> offers,
                      GatherAll(communicator, "segment names", offer));
  const std::string name = offers[leader].name.data();
  if (!name.empty() && leader != rank) {
    auto opened = memory::Segment::Open(name);
    status = opened.status();
    if (opened.ok()) share.segment = std::move(opened).value();
  }
  // All have opened it when this returns, or the job ends.
  status = comm::Agree(communicator, status);
  if (share.segment) share.segment->Unlink();
  ZH_RETURN_IF_ERROR(status);
  return share;
}

absl::StatusOr<Arenas> Reserve(const layout::Layout& layout, memory::Ledger* ledger) {
  Arenas arenas;
  ZH_ASSIGN_OR_RETURN(arenas.parameters,
                      memory::AddressArena::Reserve(layout.parameter_arena_bytes(),
                                                    MemoryKind::kParameters, ledger));
  ZH_ASSIGN_OR_RETURN(
      arenas.gradients,
      memory::AddressArena::Reserve(layout.gradient_arena_bytes(), MemoryKind::kGradients, ledger));
  return arenas;
}

}  // namespace

absl::StatusOr<Arenas> CreateArenas(comm::Communicator& communicator, const layout::Layout& layout,
                                    int64_t parameter_frame_bytes, int64_t gradient_frame_bytes,
                                    memory::Ledger* ledger, const base::NoticeSink& notice) {
  const Slice slice(layout, parameter_frame_bytes, gradient_frame_bytes);
  ZH_ASSIGN_OR_RETURN(const Share share, ShareSegment(communicator, slice.Bytes(), notice));
  absl::StatusOr<Arenas> arenas = Reserve(layout, ledger);
  absl::Status status = arenas.status();
  if (status.ok()) {
    status = Fill(*arenas, slice, share.segment ? &*share.segment : nullptr, share.offset, ledger);
  }
  ZH_RETURN_IF_ERROR(comm::Agree(communicator, status));
  return arenas;
}

}  // namespace zerohold::engine
