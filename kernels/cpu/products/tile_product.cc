#include "kernels/cpu/products/tile_product.h"

#include <algorithm>
#include <utility>

namespace gyre::cpu {
namespace {

// The tiles of 256 rows and 64 columns over 2,048 positions share the second-level cache, which has 2 MiB on processors
// with tiles. A segment is a multiple of every layout's unit.
constexpr size_t kRowBlock = 256, kSlice = 4, kSegment = 64;
static_assert(kSlice == kPanelGrain);
constexpr size_t kSharesPerThread = 4, kMaxSlices = 4, kGatedPanels = 8;
// Work of one core in a nanosecond, roughly: decides whether a parallel region pays.
constexpr double kTileMacsPerNs = 300, kTileExpandedPerNs = 10, kTileRoundedPerNs = 4;

// A panel's part becomes f32, then tiles.
bool IsFp8(const CpuWeight& w) { return w.type == DType::kF8E4M3; }

}  // namespace

bool TileProduct::Supports(const CpuWeight& w) { return w.has_panels() || IsFp8(w) || FloatTypeOf(w).has_value(); }

void TileProduct::SetRows(const float* x, size_t rows, size_t k) {
  rows_ = rows;
  k_ = k;
  depth_ = TileDepth(k);
  const size_t groups = (rows + kTileRows - 1) / kTileRows;
  x_.EnsureCapacity(groups * depth_ * kTileBytes);
  team_.For(groups, 1, static_cast<double>(rows * k) / kTileRoundedPerNs, [&](size_t begin, size_t end) {
    for (size_t g = begin; g < end; ++g) {
      const size_t row = g * kTileRows;
      tiles_.round_rows(x + row * k, k, std::min(kTileRows, rows - row), k, x_.data() + Group(row));
    }
  });
}

// Tiles of a panel that are expanded at once.
size_t TileProduct::Segment() const { return std::min(depth_, kSegment); }

size_t TileProduct::ScratchBytes(const CpuWeight& w) const {
  return kSlice * Segment() * kTileBytes + (IsFp8(w) ? kPanel * Segment() * kTileDepth * sizeof(float) : 0);
}

TileProduct::Scratch TileProduct::Carve(std::byte* memory) const {
  return {memory, memory + kSlice * Segment() * kTileBytes};
}

// With `add` the product is summed in the cache and then added to `out`: sums wait for the next segment in the cache,
// and the bits do not depend on what they are added to.
void TileProduct::Multiply(const CpuWeight& w, float* out, bool add) {
  constexpr size_t kMaxPanels = kMaxSlices * kPanelGrain, kSums = kRowBlock * kMaxPanels * kPanel;
  const size_t tile_bytes = ScratchBytes(w), bytes = tile_bytes + (add ? kSums * sizeof(float) : 0),
               threads = static_cast<size_t>(team_.threads());
  std::byte* scratch = scratch_.EnsureCapacity(bytes * threads);  // here, as nothing may throw in a parallel region
  ForBlocks(w.n, w.n * w.k, kMaxPanels, [&](Range panel_range, Range rows, size_t thread) {
    std::byte* mine = scratch + bytes * thread;
    const size_t column = panel_range.from * kPanel, columns = std::min(w.n - column, panel_range.size() * kPanel);
    float* to = out + rows.from * w.n + column;
    if (!add) return MultiplyBlock(w, panel_range, rows, Carve(mine), to, w.n);
    auto* sums = reinterpret_cast<float*>(mine + tile_bytes);
    MultiplyBlock(w, panel_range, rows, Carve(mine), sums, columns);
    for (size_t r = 0; r < rows.size(); ++r, to += w.n, sums += columns) {
      for (size_t c = 0; c < columns; ++c) to[c] += sums[c];
    }
  });
}

// Calls f(panels, rows, thread) for blocks of up to `most` panels and kRowBlock rows that cover W and x. `weights`:
// number of weights.
template <typename Fn>
void TileProduct::ForBlocks(size_t n, size_t weights, size_t most, const Fn& f) const {
  const size_t panels = PanelCount(n),
               each = panels / (kSharesPerThread * static_cast<size_t>(team_.threads())) / kPanelGrain * kPanelGrain;
  const double ns =
      static_cast<double>(weights) * (static_cast<double>(rows_) / kTileMacsPerNs + 1 / kTileExpandedPerNs);
  // Every share reads all of x, so a share has several slices if there are enough slices for all threads.
  team_.For(panels, std::clamp(each, kPanelGrain, most), ns, [&](size_t begin, size_t end, size_t thread) {
    end = std::min(end, (n + kPanel - 1) / kPanel);
    tiles_.begin();
    for (size_t at = begin; at < end; at += most) {
      for (size_t row = 0; row < rows_; row += kRowBlock)
        f(Range{at, std::min(end, at + most)}, Range{row, std::min(rows_, row + kRowBlock)}, thread);
    }
    tiles_.end();
  });
}

// The sums of gate and up stay in the cache until they become rows of the next product, 32 columns (one tile) at a
// time.
void TileProduct::GatedLinearUnit(const CpuWeight& gate, const CpuWeight& up, Activation act) {
  constexpr size_t kSums = kRowBlock * kGatedPanels * kPanel;
  const size_t n = gate.n, depth = TileDepth(n), threads = static_cast<size_t>(team_.threads());
  const size_t tile_bytes = std::max(ScratchBytes(gate), ScratchBytes(up)),
               bytes = tile_bytes + 2 * kSums * sizeof(float);
  next_.EnsureCapacity((rows_ + kTileRows - 1) / kTileRows * depth * kTileBytes);
  std::byte* scratch = scratch_.EnsureCapacity(bytes * threads);  // here, as nothing may throw in a parallel region
  const auto times = ops_.TimesOf(act);
  ForBlocks(n, 2 * n * k_, kGatedPanels, [&](Range panel_range, Range rows, size_t thread) {
    std::byte* mine = scratch + bytes * thread;
    const size_t width = panel_range.size() * kPanel;
    auto* gates = reinterpret_cast<float*>(mine + tile_bytes);
    float* ups = gates + kSums;
    MultiplyBlock(gate, panel_range, rows, Carve(mine), gates, width);
    MultiplyBlock(up, panel_range, rows, Carve(mine), ups, width);
    for (size_t row = rows.from; row < rows.to; row += kTileRows) {
      const size_t count = std::min(kTileRows, rows.to - row), at = (row - rows.from) * width;
      // also computes the columns after the last one of W, which hold anything
      times(gates + at, ups + at, count * width, gates + at);
      for (size_t column = 0; column < width; column += kTileDepth) {
        const size_t first = panel_range.from * kPanel + column;
        tiles_.round_rows(gates + at + column, width, count, std::min(kTileDepth, n - first),
                          next_.data() + (row / kTileRows * depth + first / kTileDepth) * kTileBytes);
      }
    }
  });
  std::swap(x_, next_);
  k_ = n;
  depth_ = depth;
}

void TileProduct::MultiplyBlock(const CpuWeight& w, Range panel_range, Range rows, const Scratch& scratch, float* out,
                                size_t ldo) const {
  const size_t segment = Segment(), stride = segment * kTileBytes;
  for (size_t at = 0; at < depth_; at += segment) {
    const size_t depth = std::min(segment, depth_ - at);
    for (size_t slice = panel_range.from; slice < panel_range.to; slice += kSlice) {
      const size_t panels = std::min(kSlice, panel_range.to - slice);
      bool more = true;
      for (size_t part = 0; more; ++part) {
        more = Expand(w, {slice, panels, at, at + depth, stride, part > 0}, scratch);
        for (size_t row = rows.from; row < rows.to; row += 2 * kTileRows) {
          const std::byte* x = x_.data() + Group(row) + at * kTileBytes;
          for (size_t p = 0; p < panels; p += 2) {
            // With an odd number of panels the last one is multiplied alone.
            const size_t columns = std::min((panels - p) * kPanel, w.n - (slice + p) * kPanel);
            tiles_.multiply(x, depth_ * kTileBytes, rows.to - row, {scratch.tiles + p * stride, stride}, columns, depth,
                            at + part == 0, out + (row - rows.from) * ldo + (slice + p - panel_range.from) * kPanel,
                            ldo);
          }
        }
      }
    }
  }
  const size_t first = panel_range.from * kPanel, columns = std::min(panel_range.size() * kPanel, w.n - first);
  ScaleProducts(w, rows.size(), columns, out, ldo);
}

bool TileProduct::Expand(const CpuWeight& w, const Part& part, const Scratch& scratch) const {
  const auto plain = FloatTypeOf(w);
  bool residual = false;
  for (size_t i = 0; i < part.count; ++i) {
    const size_t panel = part.panel + i;
    std::byte* tiles = scratch.tiles + i * part.stride;
    if (w.has_panels()) {
      tiles_.expand_panel(w.panel_type, w.panels.data() + panel * w.panel_bytes, part.begin, part.end, tiles);
    } else if (plain) {
      const size_t column = panel * kPanel;
      residual |= tiles_.expand_floats(w.source.data + column * w.source.row_bytes(), *plain, part.residual,
                                       std::min(kPanel, w.n - column), k_, part.begin, part.end, tiles);
    } else {  // 8-bit floats
      const size_t column = panel * kPanel, columns = std::min(kPanel, w.n - std::min(w.n, column)),
                   from = part.begin * kTileDepth, to = std::min(k_, part.end * kTileDepth);
      auto* floats = reinterpret_cast<float*>(scratch.floats);
      ExpandFp8Rows(ops_, w.source, column, columns, from, to, floats);
      residual |= tiles_.expand_floats(floats, FloatType::kF32, part.residual, columns, to - from, 0,
                                       part.end - part.begin, tiles);
    }
  }
  return residual;
}

}  // namespace gyre::cpu
