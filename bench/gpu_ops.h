// The ops that gyre-gpu-check looks at, each with inputs made on the spot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace gyre::bench {

// An op with small seeded inputs. `run` returns the bytes of its results.
struct GoldenOp {
  std::string name;
  std::function<std::vector<std::byte>(Backend& queue)> run;
};
std::vector<GoldenOp> GoldenOps();

// An op on `rows` rows; `row` says which row of its result is returned, computed among the others, or alone.
struct RowOp {
  std::string name;
  std::function<std::vector<std::byte>(Backend& queue, size_t rows, size_t row, bool alone)> run;
};
std::vector<RowOp> RowOps(bool small);

// An op of a model of 8B, to be measured: `make` puts its inputs on the device and returns one call of it.
struct TimedOp {
  std::string name, shape;
  double bytes = 0;       // that it has to read and write
  double operations = 0;  // multiplications and additions
  std::function<std::function<void()>(Backend& queue)> make;
};
std::vector<TimedOp> TimedOps(bool small);

}  // namespace gyre::bench
