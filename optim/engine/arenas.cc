// Puts the arenas of a node's ranks into one shared segment, in three collective steps: tell who
// shares memory with whom and needs how much; the lowest rank of each node makes the segment and
// tells its name; all open it, and the name is taken away.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "optim/engine/model_memory.h"
#include "src/base/align.h"
#include "src/base/status_macros.h"
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

int64_t PagedBytes(const layout::Layout& layout) {
  return base::AlignUp(layout.parameter_arena_bytes(), base::kPageBytes) +
         base::AlignUp(layout.gradient_arena_bytes(), base::kPageBytes);
}

absl::Status AttachAll(Arenas& arenas, const layout::Layout& layout, const memory::Segment* segment,
                       int64_t offset) {
  const int64_t parameter_bytes = layout.parameter_arena_bytes();
  const int64_t gradient_bytes = layout.gradient_arena_bytes();
  if (segment == nullptr) {
    ZH_RETURN_IF_ERROR(arenas.parameters.AttachPrivate(0, parameter_bytes));
    return arenas.gradients.AttachPrivate(0, gradient_bytes);
  }
  ZH_RETURN_IF_ERROR(arenas.parameters.AttachShared(0, parameter_bytes, *segment, offset));
  offset += base::AlignUp(parameter_bytes, base::kPageBytes);
  return arenas.gradients.AttachShared(0, gradient_bytes, *segment, offset);
}

}  // namespace

absl::StatusOr<Arenas> CreateArenas(comm::Communicator& communicator, const layout::Layout& layout,
                                    memory::Ledger* ledger, const base::NoticeSink& notice) {
  const int rank = communicator.rank();
  const Need mine{memory::SharedMemoryMount(), PagedBytes(layout)};
  ZH_ASSIGN_OR_RETURN(const std::vector<Need> needs, GatherAll(communicator, "arena sizes", mine));

  int leader = rank;
  int64_t node_bytes = 0;
  int64_t offset = 0;
  for (int other = communicator.size() - 1; other >= 0; --other) {
    if (needs[other].mount != mine.mount) continue;
    leader = other;
    node_bytes += needs[other].bytes;
    if (other < rank) offset += needs[other].bytes;
  }

  std::optional<memory::Segment> segment;
  Offer offer;
  if (leader == rank && node_bytes > 0) {
    auto created = memory::Segment::Create(node_bytes);
    if (created.ok()) {
      segment = std::move(created).value();
      segment->name().copy(offer.name.data(), offer.name.size() - 1);
    } else {
      notice("arenas are in private memory, so peers cannot read them in place: " +
             std::string(created.status().message()));
    }
  }
  ZH_ASSIGN_OR_RETURN(const std::vector<Offer> offers,
                      GatherAll(communicator, "segment names", offer));

  absl::Status status;
  const std::string name = offers[leader].name.data();
  if (!name.empty() && leader != rank) {
    auto opened = memory::Segment::Open(name);
    status = opened.status();
    if (opened.ok()) segment = std::move(opened).value();
  }
  // All have opened it when this returns, or the job ends.
  status = comm::Agree(communicator, status);
  if (segment) segment->Unlink();
  ZH_RETURN_IF_ERROR(status);

  Arenas arenas;
  const auto reserve = [&](int64_t bytes, MemoryKind kind, memory::AddressArena& arena) {
    auto reserved = memory::AddressArena::Reserve(bytes, kind, ledger);
    if (reserved.ok()) arena = std::move(reserved).value();
    return reserved.status();
  };
  status = reserve(layout.parameter_arena_bytes(), MemoryKind::kParameters, arenas.parameters);
  if (status.ok()) {
    status = reserve(layout.gradient_arena_bytes(), MemoryKind::kGradients, arenas.gradients);
  }
  if (status.ok()) status = AttachAll(arenas, layout, segment ? &*segment : nullptr, offset);
  ZH_RETURN_IF_ERROR(comm::Agree(communicator, status));
  return arenas;
}

}  // namespace zerohold::engine
