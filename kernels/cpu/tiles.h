// Products by matrix tiles (AMX): what differs between the hardware and its emulation. The drivers are tile_product.h
// and attention_tiles.h.
//
// x is rounded to bf16, to the nearest, ties to even, and so are quantized weights; those of f16 and f32, keys and
// values become a sum of with_residual bf16 (f16 exactly, f32 to 16 bits). A sum is in f32, its order fixed: TDPBF16PS in the
// Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2. A tile has 16 rows of 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kv_span.h"
#include "kernels/cpu/panels.h"

namespace gyre::cpu {

enum class FloatType { kF32, kF16, kBf16 };

inline constexpr size_t kTileRows = 16;   // of x; as many columns of W
inline constexpr size_t kTileDepth = 32;  // positions of k
inline constexpr size_t kTileBytes = 1024;
static_assert(kTileRows == kPanel && kTileDepth == kBlock && kTileDepth == kKvBlock);
// Tiles that k positions take.
constexpr size_t TileDepth(size_t k) { return (k + kTileDepth - 1) / kTileDepth; }

// The shapes of tiles 0 to 7, as LDTILECFG reads them.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// [from, to)
struct Range {
  size_t from, to;
  size_t size() const { return to - from; }
};

// Tiles of W: those of 16 columns j begin at tiles[j * stride], and `residual` behind each, unless that is 0, begins what
// is added to it.
struct TileColumns {
  const std::byte* tiles;
  size_t stride, residual = 0;
};

// "Tiles" [a, b) of a row group or panel are those of positions [a * kTileDepth, b * kTileDepth), one after the other.
// What lies behind the end of x or W is zeros.
struct TileOps {
  // Up to 16 rows of x, k floats each and ldx from one to the next, as tiles: a row of a tile is 32 positions of a row
  // of x.
  void (*round_rows)(const float* x, size_t ldx, size_t rows, size_t k, std::byte* tiles);
  // Tiles [begin, end) of a panel: row i is positions 2 i and 2 i + 1 of each column. `begin` is the first of a unit.
  void (*expand_panel)(PanelType type, const std::byte* panel, size_t begin, size_t end, std::byte* tiles);
  // The same of up to 16 rows of W, k elements each: rounded to bf16, or what is `residual` over then. Returns whether
  // rounding leaves something: not where f16 or f32 were made from bf16.
  bool (*expand_floats)(const void* w, FloatType type, bool residual, size_t columns, size_t k, size_t begin, size_t end,
                        std::byte* tiles);
  // Keys of 16 positions as the columns of W, k = head_dim, in bf16, and where `residual` is not null what is residual of them
  // then, again as tiles; `stride` and the scales' places are IsaOps::scores'.
  void (*expand_keys)(const KvSpan& keys, size_t stride, size_t head_dim, std::byte* tiles, std::byte* residual);
  // Elements [column, column + 16) of the values of 16 positions, of which n from `skip` on are there, as the columns
  // of W, in the same way: half a tile, 8 rows. Infinite ones and NaN become the largest bf16.
  void (*expand_values)(const KvSpan& values, size_t skip, size_t n, size_t head_dim, size_t column, std::byte* rows,
                        std::byte* residual);
  // Scores of the positions `seen` times scale become weights e^(s - *max), *max the largest s, in a row of tiles: 0
  // where `whole`, a multiple of kTileDepth positions from one, has more. The next kTileDepth positions are a tile
  // further on. Returns the weights' sum before they are rounded, in an order that depends on positions only. Relative
  // error of a weight before that panel_range 1e-7, and as much for each unit of s.
  float (*exp_scores)(const float* scores, Range whole, Range seen, float scale, float* max, std::byte* row);
  // out[r * ldo + c] = (first ? 0 : itself) + sum over `depth` tiles, for up to 32 rows and 32 columns: a[i * a_stride]
  // are the tiles of row group i.
  void (*multiply)(const std::byte* a, size_t a_stride, size_t rows, const TileColumns& b, size_t columns, size_t depth,
                   bool first, float* out, size_t ldo);
  // Around the calls of multiply of one thread.
  void (*begin)();
  void (*end)();
};

}  // namespace gyre::cpu
