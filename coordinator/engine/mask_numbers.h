// The numbers under which the last stage knows masks of token ids. Pure.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/step.h"
#include "coordinator/grammar/compiled.h"

namespace gyre {

// Not thread-safe: the engine's loop owns it. Numbers are of one ring: with another one all of them are given anew.
class MaskNumbers {
 public:
  using Mask = std::shared_ptr<const grammar::TokenMask>;

  explicit MaskNumbers(uint32_t most = kMaxMasks) : most_(most) {}

  struct Named {
    uint32_t number = 0;
    bool is_new = false;  // the last stage has to get it before the step
  };
  // The number for a mask that this step names. It may be another mask's of an earlier step, as frames keep their
  // order. nullopt: this step names all of them, so the mask has to stand in the request. REQUIRES: steps rise.
  std::optional<Named> Name(const Mask& mask, uint64_t step);
  // The last stage knows none.
  void Clear();

 private:
  struct Entry {
    Mask mask;
    uint64_t step = 0;  // the last one that names it
    std::list<uint32_t>::iterator used;
  };
  const uint32_t most_;
  std::vector<Entry> entries_;  // by number
  std::unordered_map<const grammar::TokenMask*, uint32_t> numbers_;
  std::list<uint32_t> used_;  // the longest unused first
};

}  // namespace gyre
