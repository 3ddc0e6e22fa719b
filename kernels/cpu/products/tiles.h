// The interface to matrix tiles (AMX), which the hardware and its emulation implement. The drivers are tile_product.h
// and attention_tiles.h.
//
// x is rounded to bf16 (to nearest, ties to even), and so are quantized weights. Weights of f16 and f32, keys and
// values become a sum of two bf16 numbers: the rounded value and its residual (exact for f16, 16 bits of an f32). Sums
// are f32 in a fixed order: see TDPBF16PS in the Intel 64 and IA-32 Architectures Software Developer's Manual, volume
// 2. A tile has 16 rows of 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention/kv_span.h"
#include "kernels/cpu/products/panels.h"

namespace gyre::cpu {

enum class FloatType { kF32, kF16, kBf16 };

inline constexpr size_t kTileRows = 16;   // rows of x, or columns of W, in a tile
inline constexpr size_t kTileDepth = 32;  // positions of k in a tile
inline constexpr size_t kTileBytes = 1024;
static_assert(kTileRows == kPanel && kTileDepth == kBlock && kTileDepth == kKvBlock);
// Number of tiles that k positions take.
constexpr size_t TileDepth(size_t k) { return (k + kTileDepth - 1) / kTileDepth; }

// The shapes of tiles 0 to 7 in the format that LDTILECFG reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The half-open interval [from, to).
struct Range {
  size_t from, to;
  size_t size() const { return to - from; }
};

// Tiles of W: those of column group j (16 columns) begin at tiles[j * stride]. Their bf16 residuals, which are
// multiplied too, begin `residual` bytes after them; 0: there are none.
struct TileColumns {
  const std::byte* tiles;
  size_t stride, residual = 0;
};

// "Tiles [a, b)" of a row group or panel hold positions [a * kTileDepth, b * kTileDepth) and are consecutive. Positions
// after the end of x or W are zeros.
struct TileOps {
  // Rounds up to 16 rows of x into tiles: k floats each, ldx floats apart. A row of a tile has 32 positions of one row
  // of x.
  void (*round_rows)(const float* x, size_t ldx, size_t rows, size_t k, std::byte* tiles);
  // Expands tiles [begin, end) of a panel: row i has positions 2i and 2i + 1 of each column. REQUIRES: `begin` is the
  // first tile of a unit.
  void (*expand_panel)(PanelType type, const std::byte* panel, size_t begin, size_t end, std::byte* tiles);
  // The same for up to 16 rows of W with k float elements: rounded to bf16, or with `residual` what rounding left over.
  // Returns whether rounding leaves a residual; it leaves none if the f16 or f32 weights were made from bf16.
  bool (*expand_floats)(const void* w, FloatType type, bool residual, size_t columns, size_t k, size_t begin,
                        size_t end, std::byte* tiles);
  // Expands the keys of 16 positions as columns of W, with k = head_dim, to bf16 tiles, and to tiles of the residuals
  // unless `residual` is null. `stride` and the scales' layout are as in IsaOps::scores.
  void (*expand_keys)(const KvSpan& keys, size_t stride, size_t head_dim, std::byte* tiles, std::byte* residual);
  // Expands elements [column, column + 16) of the values of 16 positions, of which n from `skip` on exist, as columns
  // of W in the same way: half a tile, 8 rows. Infinity and NaN become the largest bf16.
  void (*expand_values)(const KvSpan& values, size_t skip, size_t n, size_t head_dim, size_t column, std::byte* rows,
                        std::byte* residual);
  // Writes the softmax weights exp(scale * score - *max) of the positions `seen` to a row of tiles, where *max is the
  // largest scaled score; the other positions of `whole`, a multiple of kTileDepth positions, get 0. The next
  // kTileDepth positions are one tile further. Returns the sum of the weights before they are rounded to bf16, added in
  // an order that depends on positions only. Relative error before rounding: about 1e-7, and as much again for each
  // unit below *max.
  float (*exp_scores)(const float* scores, Range whole, Range seen, float scale, float* max, std::byte* row);
  // out[r * ldo + c] = (first ? 0 : itself) + sum over `depth` tiles, for up to 32 rows and 32 columns; a[i * a_stride]
  // are the tiles of row group i.
  void (*multiply)(const std::byte* a, size_t a_stride, size_t rows, const TileColumns& b, size_t columns, size_t depth,
                   bool first, float* out, size_t ldo);
  // Every thread calls these before and after its calls of multiply.
  void (*begin)();
  void (*end)();
};

}  // namespace gyre::cpu
