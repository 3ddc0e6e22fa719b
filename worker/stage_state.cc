// Recurrent state on a stage: whose slots are where, what rows begin with, and snapshots (docs/memory.md).
#include <set>

#include "worker/stage.h"

namespace gyre {
namespace {

constexpr auto kGroup = static_cast<size_t>(kSlotGroup);

bool HasSlots(const std::shared_ptr<Layer>& layer) { return layer->pages != nullptr && layer->pages->has_slots(); }

}  // namespace

Status Stage::CheckSlots(const StepBatch& batch) const {
  if (!parts_.model->spec().has_slots) return absl::OkStatus();
  const Layer* first = nullptr;
  for (const auto& layer : parts_.layers) {
    if (first == nullptr && HasSlots(layer)) first = layer.get();
  }
  std::set<BlockId> written, read;
  for (const SeqRows& s : batch.seqs) {
    const auto seq = static_cast<uint64_t>(s.seq);
    const std::vector<BlockId>& entries = s.blocks[kGroup];
    if (entries.size() < SlotTable::kEntries || (entries.size() - SlotTable::kEntries) % 2 != 0) {
      return InvalidArgument("sequence {}: a table of {} slots, expected {} and two for each mark", seq, entries.size(),
                             SlotTable::kEntries);
    }
    const SlotTable table = SlotTable::From(entries);
    if (!table.marks.empty() && table.copy != kNoBlock)
      return InvalidArgument("sequence {}: a snapshot of a state that may be void", seq);
    uint32_t next = 0;
    for (const SlotTable::Mark& mark : table.marks) {
      if (mark.row < next || size_t{mark.row} + 1 >= s.row_count)
        return InvalidArgument("sequence {}: a mark after row {} of {}", seq, mark.row, s.row_count);
      next = mark.row + 1;
      if (mark.slot == kNoBlock || (first != nullptr && mark.slot >= first->pages->num_blocks()))
        return InvalidArgument("sequence {}: a mark in slot {}", seq, mark.slot);
      if (!written.insert(mark.slot).second)
        return InvalidArgument("sequence {}: slot {} is written twice in a step", seq, mark.slot);
    }
    if (table.slot == kNoBlock) return InvalidArgument("sequence {} has no slot for its state", seq);
    for (BlockId slot : {table.slot, table.begin, table.copy}) {
      if (slot == kNoBlock || first == nullptr || slot < first->pages->num_blocks()) continue;
      return InvalidArgument("sequence {}: slot {}, this stage has 0-{}", seq, slot, first->pages->num_blocks() - 1);
    }
    if (table.begin != kNoBlock) read.insert(table.begin);
    for (BlockId slot : {table.slot, table.copy}) {
      if (slot != kNoBlock && !written.insert(slot).second)
        return InvalidArgument("sequence {}: slot {} is written twice in a step", seq, slot);
    }
  }
  for (BlockId slot : read) {
    if (written.count(slot) > 0) return InvalidArgument("slot {} is read and written in a step", slot);
  }
  for (const auto& layer : parts_.layers) {
    if (!HasSlots(layer)) continue;
    for (const SeqRows& s : batch.seqs) GYRE_RETURN_IF_ERROR(CheckState(s, *layer));
  }
  return absl::OkStatus();
}

// A row that was applied already must not be applied again, and none may be left out.
Status Stage::CheckState(const SeqRows& s, const Layer& layer) const {
  const SlotTable table = SlotTable::From(s.blocks[kGroup]);
  const auto seq = static_cast<uint64_t>(s.seq);
  const bool begins = table.begin != kNoBlock;
  if (s.first_position == 0) {
    if (!begins) return absl::OkStatus();
    return InvalidArgument("sequence {}: a snapshot for position 0", seq);
  }
  const SlotHeader header = layer.pages->Header(begins ? table.begin : table.slot);
  const bool known = begins ? table.begin_number != 0 && header.snapshot == table.begin_number
                            : header.seq == s.seq && header.incarnation == s.incarnation && header.snapshot == 0;
  if (known && header.position == s.first_position) return absl::OkStatus();
  return FailedPrecondition(
      "sequence {}, incarnation {}: rows from position {} on for a state of layer {} that is {} at position {} of "
      "sequence {}, incarnation {}",
      seq, s.incarnation, s.first_position, layer.index,
      header.snapshot != 0 ? fmt::format("snapshot {}", header.snapshot) : "no snapshot",
      header.position == SlotHeader::kNoPosition ? "none" : fmt::format("{}", header.position),
      static_cast<uint64_t>(header.seq), header.incarnation);
}

void Stage::BeginStates(const StepBatch& batch, uint64_t step) {
  for (const auto& layer : parts_.layers) {
    if (!HasSlots(layer)) continue;
    PagePool& pool = *layer->pages;
    for (const SeqRows& s : batch.seqs) {
      const SlotTable table = SlotTable::From(s.blocks[kGroup]);
      // Until all rows are applied the state is of no use: a step may end in the middle.
      pool.SetHeader(table.slot, {.seq = s.seq, .incarnation = s.incarnation, .position = SlotHeader::kNoPosition});
      pool.Stamp(table.slot, step);
      if (table.copy != kNoBlock) pool.Stamp(table.copy, step);  // a step may end when it is written
      for (const SlotTable::Mark& mark : table.marks) {
        pool.SetHeader(mark.slot, pool.Header(table.slot));
        pool.Stamp(mark.slot, step);
      }
      if (s.first_position == 0) pool.Clear(table.slot, backend_);
      if (table.begin != kNoBlock) pool.CopyState(table.begin, table.slot, backend_);
    }
  }
}

void Stage::CopyStates(const StepBatch& batch) {
  for (const auto& layer : parts_.layers) {
    if (!HasSlots(layer)) continue;
    for (const SeqRows& s : batch.seqs) {
      const SlotTable table = SlotTable::From(s.blocks[kGroup]);
      if (table.copy != kNoBlock) layer->pages->CopyState(table.slot, table.copy, backend_);
    }
  }
}

void Stage::EndStates(const StepBatch& batch, uint64_t step) {
  for (const auto& layer : parts_.layers) {
    if (!HasSlots(layer)) continue;
    PagePool& pool = *layer->pages;
    for (const SeqRows& s : batch.seqs) {
      const SlotTable table = SlotTable::From(s.blocks[kGroup]);
      SlotHeader header{.seq = s.seq, .incarnation = s.incarnation, .position = s.first_position + s.row_count};
      pool.SetHeader(table.slot, header);
      for (const SlotTable::Mark& mark : table.marks) {
        SlotHeader of_mark = header;
        of_mark.position = s.first_position + mark.row + 1;
        pool.SetHeader(mark.slot, of_mark);
      }
      if (table.copy == kNoBlock) continue;
      header.snapshot = table.copy_number;
      pool.SetHeader(table.copy, header);
      pool.Stamp(table.copy, step);
      pool.StampFull(table.copy, step);
    }
  }
}

}  // namespace gyre
