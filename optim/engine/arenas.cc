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
#include "src/base/check.h"
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

// What a pool lacks: all of it, or nothing, for a pool does not grow.
int64_t Missing(const memory::FramePool* pool, int64_t bytes) {
  if (pool != nullptr && pool->bytes() >= bytes) return 0;
  return base::AlignUp(bytes, base::kFrameBytes);
}

// A rank's slice of the segment: what stays of a generation's arenas, then the frames that are
// missing. Bytes.
struct Slice {
  Slice(const layout::ArenaSizes& sizes, FrameSizes frames, const Arenas& before)
      : parameters(sizes.resident_parameter_bytes),
        gradients(sizes.resident_gradient_bytes),
        parameter_frames(Missing(before.parameter_frames.get(), frames.parameters)),
        gradient_frames(Missing(before.gradient_frames.get(), frames.gradients)) {}

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

// This rank's part of the node's segment; without one, `segment` is empty.
struct Share {
  std::optional<memory::Segment> segment;
  int64_t offset = 0;
};

// Brings memory under what stays; from the segment, or private without one.
absl::Status FillArenas(ArenaPair& pair, const Slice& slice, const Share& share) {
  if (!share.segment) {
    ZH_RETURN_IF_ERROR(pair.parameters.AttachPrivate(0, slice.parameters));
    return pair.gradients.AttachPrivate(0, slice.gradients);
  }
  ZH_RETURN_IF_ERROR(
      pair.parameters.AttachShared(0, slice.parameters, *share.segment, share.offset));
  return pair.gradients.AttachShared(0, slice.gradients, *share.segment,
                                     share.offset + slice.GradientsBegin());
}

// Makes the pools of frames that are missing, in the same way.
absl::Status FillFrames(Arenas& arenas, const Slice& slice, const Share& share,
                        memory::Ledger* ledger) {
  const memory::Segment* const segment = share.segment ? &*share.segment : nullptr;
  const auto frames = [&](int64_t bytes, int64_t begin, std::shared_ptr<memory::FramePool>& pool) {
    if (bytes == 0 && pool != nullptr) return absl::OkStatus();
    auto created = segment == nullptr
                       ? memory::FramePool::CreatePrivate(bytes, MemoryKind::kFrames, ledger)
                       : memory::FramePool::CreateInSegment(*segment, {share.offset + begin, bytes},
                                                            MemoryKind::kFrames, ledger);
    if (created.ok()) pool = std::move(created).value();
    return created.status();
  };
  ZH_RETURN_IF_ERROR(
      frames(slice.parameter_frames, slice.ParameterFramesBegin(), arenas.parameter_frames));
  return frames(slice.gradient_frames, slice.GradientFramesBegin(), arenas.gradient_frames);
}

// Collective; see the head of the file.
absl::StatusOr<Share> ShareSegment(comm::Communicator& communicator, int64_t bytes,
                                   const base::NoticeSink& notice) {
  const int rank = communicator.rank();
  const Need mine{memory::SharedMemoryMount(), base::AlignUp(bytes, base::kFrameBytes)};
  ZH_ASSIGN_OR_RETURN(const std::vector<Need> needs,
                      comm::GatherAll(communicator, "arena sizes", mine));
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
                      comm::GatherAll(communicator, "segment names", offer));
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

// Private, so that it is in huge pages, which shared memory seldom has: a transfer into small ones
// is cut at a disk's limit of segments (254 of 4 KiB of virtio's), and took 1.35 times as long.
absl::Status FillStaging(Arenas& arenas, int64_t bytes, memory::Ledger* ledger) {
  if (bytes == 0 || (arenas.staging != nullptr && arenas.staging->bytes() >= bytes)) {
    return absl::OkStatus();
  }
  ZH_ASSIGN_OR_RETURN(memory::AddressArena staging,
                      memory::AddressArena::Reserve(bytes, MemoryKind::kStaging, ledger));
  ZH_RETURN_IF_ERROR(staging.AttachPrivate(0, bytes));
  arenas.staging = std::make_shared<const memory::AddressArena>(std::move(staging));
  return absl::OkStatus();
}

absl::StatusOr<ArenaPair> Reserve(const layout::ArenaSizes& sizes, memory::Ledger* ledger) {
  ArenaPair pair;
  ZH_ASSIGN_OR_RETURN(pair.parameters, memory::AddressArena::Reserve(
                                           sizes.parameter_bytes, MemoryKind::kParameters, ledger));
  ZH_ASSIGN_OR_RETURN(pair.gradients, memory::AddressArena::Reserve(
                                          sizes.gradient_bytes, MemoryKind::kGradients, ledger));
  return pair;
}

absl::Status AddGeneration(Arenas& arenas, const layout::ArenaSizes& sizes, const Slice& slice,
                           const Share& share, memory::Ledger* ledger) {
  ZH_ASSIGN_OR_RETURN(ArenaPair pair, Reserve(sizes, ledger));
  ZH_RETURN_IF_ERROR(FillArenas(pair, slice, share));
  arenas.generations.push_back(std::make_shared<const ArenaPair>(std::move(pair)));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Arenas> CreateArenas(comm::Communicator& communicator, const layout::Layout& layout,
                                    FrameSizes frames, const Arenas& before, MemoryBooks books) {
  // Without a new one there is only a pool to be made, or nothing.
  const bool grows = before.generations.size() < layout.arenas().size();
  ZH_CHECK(before.generations.size() + grows == layout.arenas().size(), before.generations.size());
  const layout::ArenaSizes sizes = grows ? layout.arenas().back() : layout::ArenaSizes();
  const Slice slice(sizes, frames, before);
  ZH_ASSIGN_OR_RETURN(const Share share, ShareSegment(communicator, slice.Bytes(), books.notice));
  Arenas arenas = before;
  // A pool that is too small serves nobody further; who has it keeps it.
  if (slice.parameter_frames > 0) arenas.parameter_frames.reset();
  if (slice.gradient_frames > 0) arenas.gradient_frames.reset();
  absl::Status made;
  if (grows) made = AddGeneration(arenas, sizes, slice, share, books.ledger);
  if (made.ok()) made = FillFrames(arenas, slice, share, books.ledger);
  if (made.ok()) made = FillStaging(arenas, frames.staging, books.ledger);
  ZH_RETURN_IF_ERROR(comm::Agree(communicator, made));
  return arenas;
}

}  // namespace zerohold::engine
