#include "coordinator/engine/mask_numbers.h"

namespace gyre {

std::optional<MaskNumbers::Named> MaskNumbers::Name(const Mask& mask, uint64_t step) {
  if (const auto known = numbers_.find(mask.get()); known != numbers_.end()) {
    Entry& entry = entries_[known->second];
    entry.step = step;
    used_.splice(used_.end(), used_, entry.used);
    return Named{.number = known->second};
  }
  uint32_t number = 0;
  if (entries_.size() < most_) {
    number = static_cast<uint32_t>(entries_.size());
    entries_.push_back({.used = used_.insert(used_.end(), number)});
  } else {
    number = used_.front();
    if (entries_[number].step == step) return std::nullopt;
    numbers_.erase(entries_[number].mask.get());
    used_.splice(used_.end(), used_, used_.begin());
  }
  entries_[number].mask = mask;
  entries_[number].step = step;
  numbers_[mask.get()] = number;
  return Named{.number = number, .is_new = true};
}

void MaskNumbers::Clear() {
  entries_.clear();
  numbers_.clear();
  used_.clear();
}

}  // namespace gyre
