// The distance between two sets of logits, and the distance that one trip over the ring may cause.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/wire_type.h"
#include "tests/testing/wire_rows.h"

namespace gyre::testing {

using Logits = std::vector<std::vector<float>>;  // [row][vocab]

struct Distance {
  double rms = 0;   // root mean square of what differs, by that of `a`
  double most = 0;  // the largest difference, by the same
};
// REQUIRES: the same shape.
inline Distance Between(const Logits& a, const Logits& b) {
  Distance d;
  double all = 0, n = 0;
  for (size_t r = 0; r < a.size(); ++r) {
    for (size_t i = 0; i < a[r].size(); ++i, ++n) {
      const double x = static_cast<double>(a[r][i]), e = static_cast<double>(b[r][i]) - x;
      all += x * x;
      d.rms += e * e;
      d.most = std::max(d.most, std::fabs(e));
    }
  }
  return {.rms = std::sqrt(d.rms / all), .most = d.most / std::sqrt(all / n)};
}

// The median of the rows' rms, each by its own row of `a`. REQUIRES: the same shape, at least one row.
inline double MedianRow(const Logits& a, const Logits& b) {
  std::vector<double> rows;
  for (size_t r = 0; r < a.size(); ++r) rows.push_back(Between({a[r]}, {b[r]}).rms);
  std::sort(rows.begin(), rows.end());
  return rows[rows.size() / 2];
}

// The error that `hops` trips add to rows of normal values, by root mean square: 0, 2.1e-4 and 5.4e-3 times the root of
// their number for f32, f16 and q8. A layer adds to the stream that passes it and the final norm scales it, so a
// relative error of a hidden state becomes about the same relative error of the logits; hops round independently, so
// their errors add up as squares do. Measured over seeds and 1 to 5 hops: logits differ by 1.0 to 1.3 times this,
// single ones by up to 7 times.
inline double RoundingOf(WireType type, int hops) {
  constexpr size_t kDim = 64, kRows = 1000;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> x(kDim * kRows), y(x.size());
  for (float& v : x) v = normal(random);
  std::vector<std::byte> bytes;
  EncodeRows(type, x, kDim, &bytes);
  DecodeRows(type, bytes, kDim, y.data());
  return Between({x}, {y}).rms * std::sqrt(static_cast<double>(hops));
}

}  // namespace gyre::testing
