// Products of many rows by matrix tiles: weights are expanded to bf16 in the second-level cache, a few panels at a
// time.
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
  // REQUIRES: ops.tiles.
  TileProduct(const IsaOps& ops, const Team& team) : ops_(ops), tiles_(*ops.tiles), team_(team) {}
  static bool Supports(const CpuWeight& w);

  // x [rows][k], to be multiplied from now on.
  void SetRows(const float* x, size_t rows, size_t k);
  // out[r][n] (+)= sum over k of x[r][k] * W[n][k], rounded as tiles.h says. REQUIRES: Supports(w), w.k is that of the
  // rows.
  void Multiply(const CpuWeight& w, float* out, bool add);
  // x becomes act(gate x) * (up x), [rows][gate.n], which is rounded as it is made. REQUIRES: as Multiply; up.n ==
  // gate.n.
  void GatedLinearUnit(const CpuWeight& gate, const CpuWeight& up, Activation act);

 private:
  struct Scratch {
    std::byte* tiles;   // kSlice panels, a segment of each
    std::byte* panels;  // with_residual, of codebook types
  };
  struct Part {
    size_t panel, count;  // panels
    size_t begin, end;    // tiles of each
    size_t stride;        // bytes from one panel's tiles to the next's
    bool residual;            // what rounding residual over
  };
  size_t Segment(const CpuWeight& w) const;
  size_t ScratchBytes(const CpuWeight& w) const;
  Scratch Carve(const CpuWeight& w, std::byte* memory) const;
  template <typename Fn>
  void ForBlocks(size_t n, size_t weights, size_t most, const Fn& f) const;
  // Some panels' columns of up to kRowBlock rows; `out` is where the first of both goes.
  void MultiplyBlock(const CpuWeight& w, Range panels, Range rows, const Scratch& scratch, float* out,
                     size_t ldo) const;
  // Whether rounding residual something to be added.
  bool Expand(const CpuWeight& w, const Part& part, const Scratch& scratch) const;
  size_t Group(size_t row) const { return row / kTileRows * depth_ * kTileBytes; }  // where a row's tiles begin

  const IsaOps& ops_;
  const TileOps& tiles_;
  const Team& team_;
  Buffer x_;        // group of rows after group
  Buffer next_;     // what x becomes
  Buffer scratch_;  // of all threads
  size_t rows_ = 0, k_ = 0, depth_ = 0;
};

}  // namespace gyre::cpu
