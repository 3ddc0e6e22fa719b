// Products of many rows by matrix tiles: weights are expanded to bf16 in the second-level cache, a few panels at a time.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/cpu/packed.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/tiles.h"

namespace gyre::cpu {

// One thread drives it; it spreads the work over the team.
class TileProduct {
 public:
  TileProduct(const TileOps& ops, const Team& team) : ops_(ops), team_(team) {}
  static bool Takes(const CpuWeight& w);

  // x [rows][k], to be multiplied from now on.
  void SetRows(const float* x, size_t rows, size_t k);
  // out[r][n] = sum over k of x[r][k] * W[n][k], rounded as tiles.h says. REQUIRES: Takes(w), w.k is that of SetRows.
  void Multiply(const CpuWeight& w, float* out);

 private:
  struct Scratch {
    std::byte* tiles;   // kSlice panels, `segment` tiles each
    std::byte* panels;  // two, of codebook types
  };
  void MultiplyPanels(const CpuWeight& w, size_t begin, size_t end, size_t segment, const Scratch& scratch, float* out) const;
  struct Part {
    size_t panel, count;  // panels
    size_t begin, end;    // tiles of each
    size_t stride;        // bytes from one panel's tiles to the next's
    bool left;            // what rounding left over
  };
  // Whether rounding left something to be added.
  bool Expand(const CpuWeight& w, const Part& part, const Scratch& scratch) const;
  size_t Group(size_t row) const { return row / kTileRows * depth_ * kTileBytes; }  // where a row's tiles begin

  const TileOps& ops_;
  const Team& team_;
  Buffer x_;        // group of rows after group
  Buffer scratch_;  // of all threads
  size_t rows_ = 0, k_ = 0, depth_ = 0;
};

}  // namespace gyre::cpu
