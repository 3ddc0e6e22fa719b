// The number of memory units for sequences, by KV group (docs/memory.md).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace gyre {

// The KV groups, as indices into SeqRows::blocks: layers that keep all positions in pages, recurrent state, and layers
// that keep the positions of a window in pages.
inline constexpr int kPageGroup = 0, kSlotGroup = 1, kWindowGroup = 2, kKvGroups = 3;

// The counts are the same on every stage. In lists of live units (StageControl::Move) slot s is num_blocks + s, and
// block b of the windowed group num_blocks + num_slots + b, with the counts of the whole cache, also while it is cut.
struct MemoryCounts {
  uint32_t num_blocks = 0;           // pages of a layer that keeps all positions
  uint32_t num_slots = 0;            // of recurrent state; 0: the model has none
  uint32_t window_blocks = 0;        // pages of a layer with a window; 0: the model has none
  uint32_t least_window_blocks = 0;  // that one sequence needs

  uint32_t Of(int group) const {
    return group == kSlotGroup ? num_slots : group == kWindowGroup ? window_blocks : num_blocks;
  }
  // A unit of such a list: its group, and its number there. nullopt: there is no such unit.
  struct Place {
    int group = kPageGroup;
    uint32_t number = 0;
    bool operator==(const Place&) const = default;
  };
  uint32_t UnitOf(Place place) const {
    return place.number + (place.group == kPageGroup ? 0 : num_blocks) + (place.group == kWindowGroup ? num_slots : 0);
  }
  std::optional<Place> PlaceOf(uint32_t unit) const {
    for (const int group : {kPageGroup, kSlotGroup, kWindowGroup}) {
      if (unit < Of(group)) return Place{group, unit};
      unit -= Of(group);
    }
    return std::nullopt;
  }
  // The counts after the paged group is cut to its first `blocks` pages. The windowed group is cut in the same
  // proportion, but keeps what one sequence needs.
  MemoryCounts Shrunk(uint32_t blocks) const {
    MemoryCounts out = *this;
    out.num_blocks = blocks;
    if (num_blocks == 0 || window_blocks == 0) return out;
    const auto alike = static_cast<uint32_t>(uint64_t{window_blocks} * blocks / num_blocks);
    out.window_blocks = std::min({window_blocks, blocks, std::max({alike, least_window_blocks, 1u})});
    return out;
  }
  // The counts of a whole cache with `blocks` pages of the paged group, more or less than there are.
  MemoryCounts Resized(uint32_t blocks) const {
    MemoryCounts out = *this;
    out.num_blocks = blocks;
    if (num_blocks == 0 || window_blocks == 0) return out;
    const auto alike =
        static_cast<uint32_t>(std::min<uint64_t>(uint64_t{window_blocks} * blocks / num_blocks, UINT32_MAX));
    out.window_blocks = std::min(blocks, std::max({alike, least_window_blocks, 1u}));
    return out;
  }
  bool operator==(const MemoryCounts&) const = default;
};

}  // namespace gyre
