#include "kernels/cpu/top_k.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gyre::cpu {
namespace {

constexpr float kLeast = -std::numeric_limits<float>::infinity();
// Ids that a search passes over together where none of them is good enough, and of which a sum adds the parts.
constexpr size_t kRun = 64, kPart = 4096;

bool Allowed(size_t id, std::span<const uint64_t> mask) {
  return mask.empty() || (id / 64 < mask.size() && (mask[id / 64] >> (id % 64) & 1) != 0);
}

// Whether one of kRun numbers is above `than`. Compilers make vectors of this loop.
bool AnyAbove(const float* x, float than) {
  unsigned any = 0;
  for (size_t i = 0; i < kRun; ++i) any |= x[i] > than ? 1u : 0u;
  return any != 0;
}

// The logits of a part's ids [begin, end); the ids that do not take part are -infinity, in a copy.
const float* PartOf(const LogSumExpRow& row, size_t begin, size_t end, float (&copy)[kPart]) {
  const auto skip = std::lower_bound(row.skip.begin(), row.skip.end(), static_cast<TokenId>(begin));
  const bool skips = skip != row.skip.end() && static_cast<size_t>(*skip) < end;
  if (!skips && row.mask.empty()) return row.logits + begin;
  for (size_t id = begin; id < end; ++id) copy[id - begin] = Allowed(id, row.mask) ? row.logits[id] : kLeast;
  for (auto next = skip; next != row.skip.end() && static_cast<size_t>(*next) < end; ++next)
    copy[static_cast<size_t>(*next) - begin] = kLeast;
  return copy;
}

}  // namespace

void SelectTop(const TopKRow& row, size_t vocab, std::vector<TokenId>* ids) {
  ids->clear();
  if (row.k == 0) return;
  const float* const logits = row.logits;
  auto better = [logits](TokenId a, TokenId b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    if (std::isnan(x) || std::isnan(y)) {  // NaN ranks below everything
      if (std::isnan(x) != std::isnan(y)) return std::isnan(y);
      return a < b;
    }
    return x != y ? x > y : a < b;
  };
  // A heap of the best ids so far with the worst on top. Ids rise, so an equal logit never displaces one that is in the
  // heap.
  float worst = kLeast;
  bool full = false;
  auto skip = row.skip.begin();
  const auto offer = [&](size_t id) {
    if (full && logits[id] <= worst) return;  // false for NaN, which `better` ranks
    const auto token = static_cast<TokenId>(id);
    if (full && !better(token, ids->front())) return;
    if (full) {
      std::pop_heap(ids->begin(), ids->end(), better);
      ids->back() = token;
    } else {
      ids->push_back(token);
    }
    std::push_heap(ids->begin(), ids->end(), better);
    full = ids->size() == row.k;
    const float top = logits[static_cast<size_t>(ids->front())];
    worst = full ? top : worst;
  };
  for (size_t begin = 0; begin < vocab; begin += kRun) {
    const size_t end = std::min(vocab, begin + kRun);
    // A heap that holds NaN takes any number.
    if (full && !std::isnan(worst) && end == begin + kRun && !AnyAbove(logits + begin, worst)) continue;
    skip = std::lower_bound(skip, row.skip.end(), static_cast<TokenId>(begin));
    for (size_t id = begin; id < end; ++id) {
      if (skip != row.skip.end() && static_cast<size_t>(*skip) == id) {
        ++skip;
      } else if (Allowed(id, row.mask)) {
        offer(id);
      }
    }
  }
  std::sort_heap(ids->begin(), ids->end(), better);
}

void SumExponentials(const IsaOps& ops, std::span<const LogSumExpRow> rows, size_t vocab, const Team& team) {
  // Parts of a fixed size, added in order, give the same bits for any number of threads.
  const size_t parts = (vocab + kPart - 1) / kPart;
  std::vector<float> most(rows.size() * parts);
  std::vector<double> sums(rows.size() * parts);
  const auto each = [&](double nanoseconds, const auto& f) {
    team.For(rows.size() * parts, 1, nanoseconds * static_cast<double>(rows.size() * vocab),
             [&](size_t first, size_t last) {
               float copy[kPart];
               for (size_t i = first; i < last; ++i) {
                 const size_t begin = i % parts * kPart, end = std::min(vocab, begin + kPart);
                 f(i, rows[i / parts], PartOf(rows[i / parts], begin, end, copy), end - begin);
               }
             });
  };
  each(0.1, [&](size_t i, const LogSumExpRow&, const float* x, size_t n) { most[i] = ops.largest(x, n); });
  std::vector<double> top(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    top[r] = static_cast<double>(ops.largest(&most[r * parts], parts));
    if (std::isinf(top[r])) *rows[r].out = top[r];
  }
  each(1, [&](size_t i, const LogSumExpRow& row, const float* x, size_t n) {
    if (!std::isinf(top[i / parts])) sums[i] = ops.sum_exp(x, n, top[i / parts], row.inv_temperature);
  });
  for (size_t r = 0; r < rows.size(); ++r) {
    if (std::isinf(top[r])) continue;
    double total = 0;
    for (size_t part = 0; part < parts; ++part) total += sums[r * parts + part];
    *rows[r].out = top[r] * rows[r].inv_temperature + std::log(total);
  }
}

}  // namespace gyre::cpu
