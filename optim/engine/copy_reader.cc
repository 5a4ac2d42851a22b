// A queue of units, and as many reads at a time as there are slots.
#include "optim/engine/copy_reader.h"

#include <algorithm>
#include <utility>

namespace zerohold::engine {

CopyReader::CopyReader(const Input& input)
    : layout_(input.layout),
      records_(input.records),
      records_of_unit_(input.layout.units().size()),
      stream_(input.device.CreateStream("parameters")),
      pool_(input.staging, input.placement.copy_slots.slot_bytes),
      slots_(input.placement.copy_slots.slots) {
  const auto records = layout_.records();
  for (int64_t i = 0; i < std::ssize(records); ++i) {
    const int32_t space = records[i].space;
    if (!input.placement.copies[space]) continue;
    layout::Range& its = records_of_unit_[layout_.spaces()[space].unit];
    if (its.size() == 0) its.begin = i;
    its.end = i + 1;
  }
  for (Slot& slot : slots_) slot.reader = this;
}

CopyReader::~CopyReader() {
  {
    std::unique_lock lock(mutex_);
    ending_ = true;
    landed_.wait(lock, [this] { return pool_.free_slots() == pool_.slots(); });
  }
  stream_->Synchronize();
}

void CopyReader::Enqueue(UnitId unit, std::byte* frame, Reading* reading) {
  std::unique_lock lock(mutex_);
  *reading = Reading();
  reading->frame = frame;
  reading->frame_bytes = layout_.units()[unit].parameter_bytes.size();
  reading->unit = unit;
  reading->records = records_of_unit_[unit];
  reading->left = reading->records.size();
  Reading** last = &first_;
  while (*last != nullptr) last = &(*last)->behind;
  *last = reading;
  reading->status = lost_;
  if (!lost_.ok()) GiveUpLocked(lost_);
  ReadOn(lock);
}

void CopyReader::GiveUp(const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  GiveUpLocked(why);
  landed_.notify_all();
}

// The gather that waits for what was lost ends the engine; and a disk that hangs does so but once.
void CopyReader::GiveUpLocked(const absl::Status& why) {
  lost_.Update(why);
  for (Reading* each = first_; each != nullptr; each = each->behind) {
    if (each->records.size() == 0) continue;
    each->status.Update(lost_);
    each->left -= each->records.size();
    each->records.begin = each->records.end;
  }
}

absl::Status CopyReader::Wait(Reading* reading) {
  std::unique_lock lock(mutex_);
  landed_.wait(lock, [reading] { return reading->left == 0; });
  return reading->status;
}

void CopyReader::Finish(Reading* reading) {
  std::unique_lock lock(mutex_);
  Reading** at = &first_;
  while (*at != reading) at = &(*at)->behind;
  *at = reading->behind;
  ReadOn(lock);
}

// Whose turn it is; null while it waits for its frame, or there is none.
CopyReader::Reading* CopyReader::Next() const {
  Reading* next = first_;
  while (next != nullptr && next->records.size() == 0) next = next->behind;
  if (next == nullptr || ending_) return nullptr;
  for (const Reading* before = first_; before != next; before = before->behind) {
    if (before->frame < next->frame + next->frame_bytes &&
        next->frame < before->frame + before->frame_bytes) {
      return nullptr;
    }
  }
  return next;
}

// A read may end before it returns, so it starts without the lock.
void CopyReader::ReadOn(std::unique_lock<std::mutex>& lock) {
  for (Reading* next; pool_.free_slots() > 0 && (next = Next()) != nullptr;) {
    Slot& slot = *std::ranges::find_if(slots_, [](const Slot& one) { return !one.lease; });
    slot.lease = *pool_.TryLease();
    slot.of = next;
    slot.record = next->records.begin++;
    lock.unlock();
    records_.FetchCopy(slot.record, slot.lease.data(), &Came, &slot);
    lock.lock();
  }
}

void CopyReader::Came(void* context, absl::Status status) {
  auto& slot = *static_cast<Slot*>(context);
  slot.status = std::move(status);
  const std::lock_guard lock(slot.reader->mutex_);  // one caller of the stream at a time
  slot.reader->stream_->Run(&Land, &slot);
}

void CopyReader::Land(void* context) {
  auto& slot = *static_cast<Slot*>(context);
  CopyReader& reader = *slot.reader;
  absl::Status status = std::exchange(slot.status, absl::OkStatus());
  if (status.ok()) status = reader.records_.CheckCopy(slot.record, slot.lease.data());
  if (status.ok()) reader.CopyPieces(slot);
  std::unique_lock lock(reader.mutex_);
  slot.of->status.Update(status);
  --slot.of->left;
  if (!status.ok()) reader.GiveUpLocked(status);
  slot.lease.Release();
  reader.ReadOn(lock);
  reader.landed_.notify_all();
}

void CopyReader::CopyPieces(const Slot& slot) const {
  const layout::Record& record = layout_.records()[slot.record];
  const layout::FlatSpace& space = layout_.spaces()[record.space];
  const int64_t elem_bytes = SizeOf(space.dtype);
  const std::byte* const from = tiers::NvmeTier::Payload(slot.lease.data());
  std::byte* const to = slot.of->frame + space.parameter_offset_bytes -
                        layout_.units()[slot.of->unit].parameter_bytes.begin;
  for (const layout::RecordPiece& piece : record.pieces) {
    std::copy_n(from + piece.offset * elem_bytes, piece.range.size() * elem_bytes,
                to + piece.range.begin * elem_bytes);
  }
}

}  // namespace zerohold::engine
