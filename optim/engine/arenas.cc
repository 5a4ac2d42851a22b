// Puts the arenas of a node's ranks into one shared segment, in collective steps: tell who shares
// memory with whom and needs how much; the lowest rank of each node makes an empty segment without
// a name and tells where it is; all open it (where one cannot, once more with a name, which is then
// taken away); the lowest reserves its memory. So a rank killed at any moment leaves no memory.
#include "optim/engine/arenas.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
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

// This rank among those that share its memory.
struct Node {
  Node(const std::vector<Need>& needs, int rank) : leads(true), leader(rank) {
    for (int other = static_cast<int>(needs.size()) - 1; other >= 0; --other) {
      if (needs[other].mount != needs[rank].mount) continue;
      leader = other;
      bytes += needs[other].bytes;
      if (other < rank) offset += needs[other].bytes;
    }
    leads = leader == rank;
  }

  bool leads;
  int leader;  // the lowest rank
  int64_t bytes = 0;
  int64_t offset = 0;  // of this rank's slice
};

// A segment that is empty and has no name.
struct Opened {
  std::optional<memory::Segment> segment;  // none where nothing is needed, or on a failure
  absl::Status failure;                    // of the leader to make it, of another rank to open it
  bool by_all = true;                      // that are told of one, on every node
};

// Collective.
absl::StatusOr<Opened> OpenSegment(comm::Communicator& communicator, const Node& node, bool named) {
  Opened opened;
  memory::SegmentPlace place;
  if (node.leads && node.bytes > 0) {
    auto created = named ? memory::Segment::CreateNamed() : memory::Segment::Create(0);
    opened.failure = created.status();
    if (created.ok()) {
      place = created->place();
      opened.segment = std::move(created).value();
    }
  }
  ZH_ASSIGN_OR_RETURN(const std::vector<memory::SegmentPlace> places,
                      comm::GatherAll(communicator, "segments", place));
  if (!node.leads && places[node.leader].path[0] != 0) {
    auto found = memory::Segment::Open(places[node.leader]);
    opened.failure = found.status();
    if (found.ok()) opened.segment = std::move(found).value();
  }
  const uint8_t lacks = !node.leads && !opened.failure.ok();
  ZH_ASSIGN_OR_RETURN(const std::vector<uint8_t> all_lack,
                      comm::GatherAll(communicator, "opened segments", lacks));
  opened.by_all = std::ranges::count(all_lack, 0) == communicator.size();
  if (opened.segment) opened.segment->Unlink();
  return opened;
}

// The leader's: memory for all of the node. Where the mount has no room, but the node has, there is
// no segment, and the notice says so.
absl::Status ReserveSegment(Opened& opened, int64_t bytes, const base::NoticeSink& notice) {
  const absl::Status status = opened.segment ? opened.segment->Reserve(bytes) : opened.failure;
  if (status.ok()) return status;
  opened.segment.reset();
  const int64_t available = memory::AvailableMemoryBytes();
  if (bytes > available) return status;  // private memory would be as short
  notice("arenas are in private memory, so peers cannot read them in place: " +
         std::string(status.message()));
  return absl::OkStatus();
}

// Collective; see the head of the file.
absl::StatusOr<Share> ShareSegment(comm::Communicator& communicator, int64_t bytes,
                                   const base::NoticeSink& notice) {
  const Need mine{memory::SharedMemoryMount(), base::AlignUp(bytes, base::kFrameBytes)};
  ZH_ASSIGN_OR_RETURN(const std::vector<Need> needs,
                      comm::GatherAll(communicator, "arena sizes", mine));
  const Node node(needs, communicator.rank());
  ZH_ASSIGN_OR_RETURN(Opened opened, OpenSegment(communicator, node, /*named=*/false));
  if (!opened.by_all) {
    ZH_ASSIGN_OR_RETURN(opened, OpenSegment(communicator, node, /*named=*/true));
    const absl::Status missed = node.leads ? absl::OkStatus() : opened.failure;
    ZH_RETURN_IF_ERROR(comm::Agree(communicator, missed));
  }
  absl::Status status;
  if (node.leads && node.bytes > 0) status = ReserveSegment(opened, node.bytes, notice);
  const uint8_t has = opened.segment.has_value();
  ZH_ASSIGN_OR_RETURN(const std::vector<uint8_t> all_have,
                      comm::GatherAll(communicator, "reserved segments", has));
  ZH_RETURN_IF_ERROR(comm::Agree(communicator, status));
  if (all_have[node.leader] == 0) opened.segment.reset();
  return Share{std::move(opened.segment), node.offset};
}

// Private, so that it is in huge pages, which shared memory seldom has: a transfer into small ones
// is cut at a disk's limit of segments (254 of 4 KiB of virtio's), and took 1.35 times as long.
absl::Status FillStaging(Arenas& arenas, int64_t bytes, memory::Ledger* ledger) {
  if (bytes == 0 || (arenas.staging != nullptr && arenas.staging->bytes() >= bytes)) {
    return absl::OkStatus();
  }
  memory::AddressArena staging;
  const auto make = [&]() -> absl::Status {
    ZH_ASSIGN_OR_RETURN(staging,
                        memory::AddressArena::Reserve(bytes, MemoryKind::kStaging, ledger));
    return staging.AttachPrivate(0, bytes);
  };
  if (const absl::Status made = make(); !made.ok()) {
    return absl::Status(made.code(), absl::StrCat("staging: ", made.message(),
                                                  "; or less offload.window or record_elems"));
  }
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
