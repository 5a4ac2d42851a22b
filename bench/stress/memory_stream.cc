#include "bench/stress/memory_stream.h"

#include <algorithm>
#include <utility>

#include "bench/report.h"
#include "src/base/align.h"
#include "src/base/status_macros.h"

namespace zerohold::bench {
namespace {

constexpr int64_t kTileElems = 16384;  // as the update's

}  // namespace

StatusOr<std::unique_ptr<MemoryStream>> MemoryStream::Create(const Shape& shape,
                                                             memory::Ledger* ledger) {
  std::unique_ptr<MemoryStream> stream(new MemoryStream(shape));
  const int64_t elems = base::AlignUp(std::min(shape.elems, kMostElems), kTileElems);
  stream->tiles_ = elems / kTileElems;
  for (const auto& [buffer, bytes] : {std::pair(&stream->gradient_, shape.copy_bytes),
                                      std::pair(&stream->copy_, shape.copy_bytes),
                                      std::pair(&stream->states_, shape.state_bytes)}) {
    ZH_ASSIGN_OR_RETURN(*buffer,
                        memory::HostBuffer::Allocate(elems * bytes, MemoryKind::kStaging, ledger));
  }
  return stream;
}

double MemoryStream::Run() {
  const double begin = NowSeconds();
  pool_.ParallelFor(base::CeilDiv(shape_.elems, kTileElems), &RunTile, this);
  return NowSeconds() - begin;
}

void MemoryStream::RunTile(void* self, int64_t index) {
  auto& stream = *static_cast<MemoryStream*>(self);
  const int64_t tile = index % stream.tiles_;
  const int64_t copy_count = kTileElems * stream.shape_.copy_bytes / 4;
  const int64_t state_count = kTileElems * stream.shape_.state_bytes / 4;
  const auto at = [&](const memory::HostBuffer& buffer, int64_t count) {
    return static_cast<uint32_t*>(buffer.data()) + tile * count;
  };
  const uint32_t* const gradient = at(stream.gradient_, copy_count);
  uint32_t* const copy = at(stream.copy_, copy_count);
  if (stream.shape_.copy_is_read) {
    for (int64_t i = 0; i < copy_count; ++i) copy[i] ^= gradient[i];
  } else {
    std::copy_n(gradient, copy_count, copy);
  }
  uint32_t* const states = at(stream.states_, state_count);
  for (int64_t i = 0; i < state_count; ++i) states[i] ^= 1;
}

}  // namespace zerohold::bench
