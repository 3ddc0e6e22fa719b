#include "kernels/cpu/top_k.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gyre::cpu {
namespace {

bool Allowed(size_t id, std::span<const uint64_t> mask) {
  return mask.empty() || (id / 64 < mask.size() && (mask[id / 64] >> (id % 64) & 1) != 0);
}

// Calls f(id) for the ids of [begin, end) that are allowed and not skipped, in rising order.
template <typename Fn>
void ForEachOther(size_t begin, size_t end, std::span<const TokenId> skip, std::span<const uint64_t> mask, Fn f) {
  auto next = std::lower_bound(skip.begin(), skip.end(), static_cast<TokenId>(begin));
  for (size_t id = begin; id < end; ++id) {
    if (next != skip.end() && static_cast<size_t>(*next) == id) {
      ++next;
    } else if (Allowed(id, mask)) {
      f(id);
    }
  }
}

}  // namespace

void SelectTop(const float* logits, size_t vocab, uint32_t k, std::span<const TokenId> skip,
               std::span<const uint64_t> mask, std::vector<TokenId>* ids) {
  ids->clear();
  if (k == 0) return;
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
  float worst = -std::numeric_limits<float>::infinity();
  bool full = false;
  ForEachOther(0, vocab, skip, mask, [&](size_t id) {
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
    full = ids->size() == k;
    const float top = logits[static_cast<size_t>(ids->front())];
    worst = full ? top : worst;
  });
  std::sort_heap(ids->begin(), ids->end(), better);
}

double SumExp(const float* logits, size_t vocab, double inv_temperature, std::span<const TokenId> skip,
              std::span<const uint64_t> mask, const Team& team) {
  float max = -std::numeric_limits<float>::infinity();
  ForEachOther(0, vocab, skip, mask, [&](size_t id) { max = std::max(max, logits[id]); });
  if (std::isinf(max)) return static_cast<double>(max);
  // Parts of a fixed size, added in order, give the same bits for any number of threads.
  constexpr size_t kPart = 4096;
  const size_t parts = (vocab + kPart - 1) / kPart;
  std::vector<double> sums(parts, 0.0);
  const double top = static_cast<double>(max);
  team.For(parts, 1, static_cast<double>(vocab) * 6, [&](size_t begin, size_t end) {
    for (size_t part = begin; part < end; ++part) {
      double sum = 0;
      ForEachOther(part * kPart, std::min(vocab, (part + 1) * kPart), skip, mask,
                   [&](size_t id) { sum += std::exp((static_cast<double>(logits[id]) - top) * inv_temperature); });
      sums[part] = sum;
    }
  });
  double total = 0;
  for (double sum : sums) total += sum;
  return top * inv_temperature + std::log(total);
}

}  // namespace gyre::cpu
