#include "scoring/difference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gyre {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

double Off(float a, float b) {
  if (std::isnan(a) && std::isnan(b)) return 0;
  const double off = std::abs(static_cast<double>(b) - static_cast<double>(a));
  return std::isnan(off) ? (a == b ? 0 : kInfinite) : off;
}

// Log-probabilities of all ids; empty: a logit is no number, or none is finite.
std::vector<float> LogSoftmax(std::span<const float> logits) {
  double most = -kInfinite;
  for (const float l : logits) {
    if (std::isnan(l)) return {};
    most = std::max(most, static_cast<double>(l));
  }
  if (!std::isfinite(most)) return {};
  double sum = 0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l) - most);
  const double log_sum = most + std::log(sum);
  std::vector<float> out;
  out.reserve(logits.size());
  for (const float l : logits) out.push_back(static_cast<float>(static_cast<double>(l) - log_sum));
  return out;
}

}  // namespace

RowsDifference Compare(std::span<const float> a, std::span<const float> b, size_t width) {
  RowsDifference out;
  RelativeError error;
  error.Add(a, b);
  double of_a = 0, of_b = 0, product = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double off = Off(a[i], b[i]), x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    of_a += x * x;
    of_b += y * y;
    product += x * y;
    if (off > out.largest) {
      out.largest = off;
      out.row = i / width;
      out.element = i % width;
    }
  }
  out.error = error.value();
  // The square root of each alone: the product of the sums may not be a double.
  out.cosine = out.error == 0 && of_a > 0 ? 1 : product / (std::sqrt(of_a) * std::sqrt(of_b));
  return out;
}

void RelativeError::Add(std::span<const float> a, std::span<const float> b, std::span<const float> before) {
  for (size_t i = 0; i < a.size(); ++i) {
    const double off = Off(a[i], b[i]);
    const double whole = static_cast<double>(a[i]) - (before.empty() ? 0 : static_cast<double>(before[i]));
    off_ += off * off;
    whole_ += whole * whole;
  }
}

double RelativeError::value() const {
  if (off_ == 0) return 0;
  return std::isfinite(off_) && whole_ > 0 ? std::sqrt(off_ / whole_) : kInfinite;
}

std::optional<size_t> FirstJump(std::span<const double> errors) {
  for (size_t i = 0; i < errors.size(); ++i) {
    std::vector<double> beside;
    for (size_t j = i < 2 ? 0 : i - 2; j < std::min(errors.size(), i + 3); ++j) {
      if (j != i) beside.push_back(errors[j]);
    }
    if (beside.empty()) return std::nullopt;
    std::sort(beside.begin(), beside.end());
    // The median of an even number of values is the mean of the two in the middle.
    const size_t half = beside.size() / 2;
    const double median = beside.size() % 2 == 1 ? beside[half] : (beside[half - 1] + beside[half]) / 2;
    if (errors[i] > std::max(kRounding, kJump * median)) return i;
  }
  return std::nullopt;
}

StatusOr<TokenDifference> CompareLogits(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size() || a.empty())
    return InvalidArgument("{} and {} logits, expected equal numbers", a.size(), b.size());
  const std::vector<float> p = LogSoftmax(a), q = LogSoftmax(b);
  if (p.empty() || q.empty()) return InvalidArgument("a logit is no number, or none is finite");
  std::vector<TokenLogprob> teacher(p.size());
  for (size_t i = 0; i < p.size(); ++i) teacher[i] = {static_cast<TokenId>(i), p[i]};
  TokenDifference out;
  GYRE_ASSIGN_OR_RETURN(out.divergence, Diverge(teacher, q, true, 0.5));
  // None is negative, but the sums of rounded numbers may be.
  Divergence& d = out.divergence;
  for (double* figure : {&d.forward, &d.reverse, &d.jensen_shannon}) *figure = std::max(*figure, 0.0);
  const auto best_a = static_cast<size_t>(std::max_element(a.begin(), a.end()) - a.begin());
  const auto best_b = static_cast<size_t>(std::max_element(b.begin(), b.end()) - b.begin());
  out.same_best = best_a == best_b;
  for (size_t i = 0; i < b.size(); ++i) {
    if (b[i] > b[best_a] || (b[i] == b[best_a] && i < best_a)) ++out.rank;
  }
  return out;
}

}  // namespace gyre
