// The kinds of memory for sequences, and how many units there are of each (docs/memory.md).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace gyre {

// The kinds. Each is a KV group: an index into SeqRows::blocks, and its number on the wire.
inline constexpr int kPageGroup = 0, kSlotGroup = 1, kWindowGroup = 2, kKvGroups = 3;

// What everybody has to know of a kind who only counts, checks, sends or shows its units.
struct KvKind {
  std::string_view name;  // in the status, and behind gyre_kv_ in a metric's name
  std::string_view unit;  // in messages
  std::string_view text;  // behind a number of them in the status for people
  std::string_view help;  // of the metric
  // A unit is a page of positions, and a sequence's table has a block for each page; otherwise a unit holds all of a
  // sequence's state.
  bool paged = true;
  // Blocks that no row reads any more are freed: a table begins with the number of its first block, then come the
  // blocks from there on.
  bool moves_on = false;
  // Where the cache is cut or grows, there are fewer or more of these in the same proportion.
  bool scales = true;
};
inline constexpr std::array<KvKind, kKvGroups> kKvKinds = {{
    {.name = "blocks",
     .unit = "block",
     .text = "KV blocks",
     .help =
         "KV blocks by their state. Cached blocks hold no running sequence, and are given away when they are needed."},
    {.name = "slots",
     .unit = "slot",
     .text = "slots of recurrent state",
     .help = "Slots of recurrent state by their state. Cached slots are snapshots.",
     .paged = false,
     .scales = false},
    {.name = "window_blocks",
     .unit = "windowed block",
     .text = "in layers with a window",
     .help = "KV blocks of layers with a window by their state.",
     .moves_on = true},
}};
constexpr const KvKind& KindOf(int group) { return kKvKinds[static_cast<size_t>(group)]; }

// Units of each kind.
using KvUnits = std::array<uint32_t, kKvGroups>;
// Bytes of each kind.
using KvBytesByGroup = std::array<uint64_t, kKvGroups>;

// The counts are the same on every stage. In lists of live units (StageControl::Move) the units of one group follow
// those of the group before, with the counts of the whole cache, also while it is cut.
struct MemoryCounts {
  KvUnits units{};  // 0: the model has none of this kind
  KvUnits least{};  // that one sequence needs

  uint32_t operator[](int group) const { return units[static_cast<size_t>(group)]; }
  uint32_t& operator[](int group) { return units[static_cast<size_t>(group)]; }
  // A unit of such a list: its group, and its number there. nullopt: there is no such unit.
  struct Place {
    int group = kPageGroup;
    uint32_t number = 0;
    bool operator==(const Place&) const = default;
  };
  uint32_t UnitOf(Place place) const {
    for (int group = 0; group < place.group; ++group) place.number += (*this)[group];
    return place.number;
  }
  std::optional<Place> PlaceOf(uint32_t unit) const {
    for (int group = 0; group < kKvGroups; ++group) {
      if (unit < (*this)[group]) return Place{group, unit};
      unit -= (*this)[group];
    }
    return std::nullopt;
  }
  // The counts after the paged group is cut to its first `blocks` pages. Kinds that scale are cut in the same
  // proportion, but keep what one sequence needs.
  MemoryCounts Shrunk(uint32_t blocks) const {
    MemoryCounts out = Resized(blocks);
    for (int group = kPageGroup + 1; group < kKvGroups; ++group) out[group] = std::min(out[group], (*this)[group]);
    return out;
  }
  // The counts of a whole cache with `blocks` pages of the paged group, more or less than there are.
  MemoryCounts Resized(uint32_t blocks) const {
    MemoryCounts out = *this;
    out[kPageGroup] = blocks;
    const uint64_t before = (*this)[kPageGroup];
    for (int group = kPageGroup + 1; group < kKvGroups && before > 0; ++group) {
      if (!KindOf(group).scales || out[group] == 0) continue;
      const uint64_t alike = uint64_t{out[group]} * blocks / before;
      const auto most = static_cast<uint32_t>(std::min<uint64_t>(alike, UINT32_MAX));
      out[group] = std::min(blocks, std::max({most, least[static_cast<size_t>(group)], 1u}));
    }
    return out;
  }
  bool operator==(const MemoryCounts&) const = default;
};

}  // namespace gyre
