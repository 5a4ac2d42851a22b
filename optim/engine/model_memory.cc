// The model's bytes on this rank.
#include "optim/engine/model_memory.h"

#include "src/base/status_macros.h"

namespace zerohold::engine {

absl::StatusOr<std::unique_ptr<ModelMemory>> ModelMemory::Create(comm::Communicator& communicator,
                                                                 const layout::Layout& layout,
                                                                 memory::Ledger* ledger,
                                                                 const base::NoticeSink& notice) {
  std::unique_ptr<ModelMemory> memory(new ModelMemory(layout));
  ZH_ASSIGN_OR_RETURN(memory->arenas_, CreateArenas(communicator, layout, ledger, notice));

  int64_t elems = 0;
  for (const layout::Record& record : layout.records()) {
    memory->record_begin_.push_back(elems);
    elems += record.elems;
  }
  const auto allocate = [&](MemoryKind kind, memory::HostBuffer& buffer) {
    auto allocated = memory::HostBuffer::Allocate(elems * int64_t{sizeof(float)}, kind, ledger);
    if (allocated.ok()) buffer = std::move(allocated).value();
    return allocated.status();
  };
  absl::Status status = allocate(MemoryKind::kMoment1, memory->moment1_buffer_);
  if (status.ok()) status = allocate(MemoryKind::kMoment2, memory->moment2_buffer_);
  ZH_RETURN_IF_ERROR(comm::Agree(communicator, status));
  memory->moment1_ = static_cast<float*>(memory->moment1_buffer_.data());
  memory->moment2_ = static_cast<float*>(memory->moment2_buffer_.data());
  return memory;
}

float* ModelMemory::Parameters(int32_t space) const {
  return reinterpret_cast<float*>(arenas_.parameters.base() +
                                  layout_.spaces()[space].parameter_offset_bytes);
}

float* ModelMemory::Gradients(int32_t space) const {
  return reinterpret_cast<float*>(arenas_.gradients.base() +
                                  layout_.spaces()[space].gradient_offset_bytes);
}

}  // namespace zerohold::engine
