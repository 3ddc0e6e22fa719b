// Cuts pieces from one range of bytes, as a GPU's memory is reserved once and given out by the host: asking the driver
// while steps run would stop them. Pure.
#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace gyre::cuda {

// Best fit: the smallest place that is large enough, the first one of several. Places that are given back join their
// neighbors. Not thread-safe.
class Arena {
 public:
  static constexpr size_t kPlace = 256;  // pieces begin at multiples of this

  explicit Arena(size_t bytes) : free_(bytes / kPlace * kPlace) {
    if (free_ > 0) Add(0, free_);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // The offset of so many bytes; nullopt: no place is large enough. REQUIRES: bytes > 0.
  std::optional<size_t> Take(size_t bytes) {
    if (bytes > free_) return std::nullopt;
    const size_t room = (bytes + kPlace - 1) / kPlace * kPlace;
    const auto found = by_size_.lower_bound({room, 0});
    if (found == by_size_.end()) return std::nullopt;
    const auto [size, offset] = *found;
    Remove(offset, size);
    if (size > room) Add(offset + room, size - room);
    taken_.emplace(offset, room);
    free_ -= room;
    return offset;
  }
  // REQUIRES: Take returned it.
  void GiveBack(size_t offset) {
    const auto taken = taken_.find(offset);
    size_t size = taken->second;
    taken_.erase(taken);
    free_ += size;
    if (const auto after = by_offset_.find(offset + size); after != by_offset_.end()) {
      const auto [at, more] = *after;
      Remove(at, more);
      size += more;
    }
    if (const auto next = by_offset_.lower_bound(offset); next != by_offset_.begin()) {
      const auto [at, more] = *std::prev(next);
      if (at + more == offset) {
        Remove(at, more);
        offset = at;
        size += more;
      }
    }
    Add(offset, size);
  }

  size_t free() const { return free_; }
  // The largest piece that can be had.
  size_t largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  void Add(size_t offset, size_t size) {
    by_offset_.emplace(offset, size);
    by_size_.emplace(size, offset);
  }
  void Remove(size_t offset, size_t size) {
    by_offset_.erase(offset);
    by_size_.erase({size, offset});
  }

  size_t free_;
  std::map<size_t, size_t> by_offset_;           // free places: their sizes
  std::set<std::pair<size_t, size_t>> by_size_;  // the same: size, offset
  std::map<size_t, size_t> taken_;               // sizes
};

}  // namespace gyre::cuda
