#include "kernels/cpu/tile_product.h"

#include <algorithm>

#include "kernels/quant_lowbit.h"

namespace gyre::cpu {
namespace {

// What shares the second-level cache (2 MiB on processors with tiles): the tiles of 256 rows and of 64 columns, 2,048 positions each (all of
// k with codebook types). A segment is a whole number of every layout's units.
constexpr size_t kRowBlock = 256, kSlice = 4, kSegment = 64;
static_assert(kSlice == kPanelGrain);
constexpr size_t kSharesOfAThread = 4, kMostSlices = 4;
// A core in a nanosecond, to decide whether a parallel region pays.
constexpr double kTileMacsPerNs = 300, kTileExpandedPerNs = 10, kTileRoundedPerNs = 4;

}  // namespace

bool TileProduct::Takes(const CpuWeight& w) { return w.panels != nullptr || IsLowBit(w.type) || PlainType(w).has_value(); }

void TileProduct::SetRows(const float* x, size_t rows, size_t k) {
  rows_ = rows;
  k_ = k;
  depth_ = TileDepth(k);
  const size_t groups = (rows + kTileRows - 1) / kTileRows;
  x_.Room(groups * depth_ * kTileBytes);
  team_.For(groups, 1, static_cast<double>(rows * k) / kTileRoundedPerNs, [&](size_t begin, size_t end) {
    for (size_t g = begin; g < end; ++g) {
      const size_t row = g * kTileRows;
      ops_.round_rows(x + row * k, k, std::min(kTileRows, rows - row), k, x_.data() + Group(row));
    }
  });
}

void TileProduct::Multiply(const CpuWeight& w, float* out) {
  // A panel of a codebook type is made whole, so it is used whole.
  const bool low_bit = w.panels == nullptr && IsLowBit(w.type);
  const size_t segment = low_bit ? depth_ : std::min(depth_, kSegment);
  const size_t tile_bytes = kSlice * segment * kTileBytes, bytes = tile_bytes + (low_bit ? 2 * w.panel_bytes : 0);
  std::byte* scratch = scratch_.Room(bytes * static_cast<size_t>(team_.threads()));  // here: nothing may throw within a region
  const double weights = static_cast<double>(w.n * w.k), ns = weights * static_cast<double>(rows_) / kTileMacsPerNs + weights / kTileExpandedPerNs;
  // Every share reads x anew: several slices each, where there are enough of them for all threads.
  const size_t panels = Panels(w.n), each = panels / (kSharesOfAThread * static_cast<size_t>(team_.threads())) / kPanelGrain * kPanelGrain;
  team_.For(panels, std::clamp(each, kPanelGrain, kMostSlices * kPanelGrain), ns, [&](size_t begin, size_t end, size_t thread) {
    std::byte* mine = scratch + bytes * thread;
    ops_.begin();
    MultiplyPanels(w, begin, std::min(end, (w.n + kPanel - 1) / kPanel), segment, {mine, mine + tile_bytes}, out);
    ops_.end();
  });
}

void TileProduct::MultiplyPanels(const CpuWeight& w, size_t begin, size_t end, size_t segment, const Scratch& scratch, float* out) const {
  const size_t stride = segment * kTileBytes;
  for (size_t first = 0; first < rows_; first += kRowBlock) {
    const size_t last = std::min(rows_, first + kRowBlock);
    for (size_t at = 0; at < depth_; at += segment) {
      const size_t depth = std::min(segment, depth_ - at);
      for (size_t slice = begin; slice < end; slice += kSlice) {
        const size_t panels = std::min(kSlice, end - slice);
        bool more = true;
        for (size_t part = 0; more; ++part) {
          more = Expand(w, {slice, panels, at, at + depth, stride, part > 0}, scratch);
          for (size_t row = first; row < last; row += 2 * kTileRows) {
            const std::byte* x = x_.data() + Group(row) + at * kTileBytes;
            for (size_t p = 0; p < panels; p += 2) {
              const size_t column = (slice + p) * kPanel;
              // The last panel of an odd number stands alone.
              const size_t columns = std::min((panels - p) * kPanel, w.n - column);
              ops_.multiply(x, depth_ * kTileBytes, last - row, {scratch.tiles + p * stride, stride}, columns, depth, at + part == 0,
                            out + row * w.n + column, w.n);
            }
          }
        }
      }
    }
  }
}

bool TileProduct::Expand(const CpuWeight& w, const Part& part, const Scratch& scratch) const {
  const auto plain = PlainType(w);
  bool left = false;
  for (size_t i = 0; i < part.count; ++i) {
    const size_t panel = part.panel + i;
    std::byte* tiles = scratch.tiles + i * part.stride;
    if (w.panels != nullptr) {
      ops_.expand_panel(w.panel_type, w.panels.get() + panel * w.panel_bytes, part.begin, part.end, tiles);
    } else if (plain) {
      const size_t column = panel * kPanel;
      left |= ops_.expand_floats(w.source.data + column * w.source.row_bytes(), *plain, part.left, std::min(kPanel, w.n - column), k_, part.begin, part.end, tiles);
    } else {
      if (i % 2 == 0) ExpandPanels(w, panel, scratch.panels);
      ops_.expand_panel(w.panel_type, scratch.panels + i % 2 * w.panel_bytes, part.begin, part.end, tiles);
    }
  }
  return left;
}

}  // namespace gyre::cpu
