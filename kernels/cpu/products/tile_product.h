// Products of many rows with matrix tiles: weights are expanded to bf16 in the second-level cache, a few panels at a
// time.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/cpu/products/packed.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/products/tiles.h"

namespace gyre::cpu {

// One thread drives it; it spreads the work over the team.
class TileProduct {
 public:
  // REQUIRES: ops.tiles.
  TileProduct(const IsaOps& ops, const Team& team) : ops_(ops), tiles_(*ops.tiles), team_(team) {}
  // Whether the type of the weights can be expanded to tiles.
  static bool Supports(const CpuWeight& w);

  // Rounds x [rows][k]; the products that follow multiply it.
  void SetRows(const float* x, size_t rows, size_t k);
  // out[r][n] (+)= sum over k of x[r][k] * W[n][k], rounded as tiles.h describes. REQUIRES: Supports(w), w.k is the k
  // of SetRows.
  void Multiply(const CpuWeight& w, float* out, bool add);
  // Replaces x by act(gate x) * (up x), [rows][gate.n], rounded to bf16 tiles as it is computed. REQUIRES: as for
  // Multiply; up.n == gate.n.
  void GatedLinearUnit(const CpuWeight& gate, const CpuWeight& up, Activation act);

 private:
  struct Scratch {
    std::byte* tiles;   // kSlice panels, a segment of each
    std::byte* floats;  // of a panel's segment, for 8-bit floats
  };
  struct Part {
    size_t panel, count;  // first panel and number of panels
    size_t begin, end;    // tiles of each panel
    size_t stride;        // bytes from one panel's tiles to the next's
    bool residual;        // expand what rounding left over
  };
  size_t Segment() const;
  size_t ScratchBytes(const CpuWeight& w) const;
  Scratch Carve(std::byte* memory) const;
  template <typename Fn>
  void ForBlocks(size_t n, size_t weights, size_t most, const Fn& f) const;
  // The columns of some panels for up to kRowBlock rows; `out` points to the first row and column of the block.
  void MultiplyBlock(const CpuWeight& w, Range panels, Range rows, const Scratch& scratch, float* out,
                     size_t ldo) const;
  // Returns whether rounding left a residual that has to be added.
  bool Expand(const CpuWeight& w, const Part& part, const Scratch& scratch) const;
  // offset of the tiles of a row's group
  size_t Group(size_t row) const { return row / kTileRows * depth_ * kTileBytes; }

  const IsaOps& ops_;
  const TileOps& tiles_;
  const Team& team_;
  Buffer x_;        // tiles, one row group after another
  Buffer next_;     // x of the next product
  Buffer scratch_;  // for all threads
  size_t rows_ = 0, k_ = 0, depth_ = 0;
};

}  // namespace gyre::cpu
