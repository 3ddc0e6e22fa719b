#include "kernels/cpu/top_k.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gyre {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr size_t kChunk = 1024;

bool Better(const RankedLogit& a, const RankedLogit& b) {
  if (std::isnan(a.logit) || std::isnan(b.logit)) {
    if (std::isnan(a.logit) != std::isnan(b.logit)) return std::isnan(b.logit);
  } else if (a.logit != b.logit) {
    return a.logit > b.logit;
  }
  return a.id < b.id;
}

// Asked of rising ids: is it allowed, and not to be skipped?
class Others {
 public:
  Others(std::span<const TokenId> skip, std::span<const uint64_t> mask) : skip_(skip), mask_(mask) {}
  bool Has(size_t id) {
    if (!mask_.empty() && (id / 64 >= mask_.size() || (mask_[id / 64] >> (id % 64) & 1) == 0)) return false;
    while (next_ < skip_.size() && static_cast<size_t>(skip_[next_]) < id) ++next_;
    return next_ == skip_.size() || static_cast<size_t>(skip_[next_]) != id;
  }
  // None of [begin, end) is left out. Same order of calls as Has.
  bool All(size_t end) const {
    return mask_.empty() && (next_ == skip_.size() || static_cast<size_t>(skip_[next_]) >= end);
  }

 private:
  std::span<const TokenId> skip_;
  std::span<const uint64_t> mask_;
  size_t next_ = 0;
};

// Calls f(values, count) for the logits in runs of kChunk, those that are left out being -inf.
template <typename Fn>
void EachChunk(std::span<const float> logits, std::span<const TokenId> skip, std::span<const uint64_t> mask, Fn f) {
  Others others(skip, mask);
  float copy[kChunk];
  for (size_t begin = 0; begin < logits.size(); begin += kChunk) {
    const size_t count = std::min(kChunk, logits.size() - begin);
    if (others.All(begin + count)) {
      f(logits.data() + begin, count);
      continue;
    }
    for (size_t i = 0; i < count; ++i) copy[i] = others.Has(begin + i) ? logits[begin + i] : kLowest;
    f(static_cast<const float*>(copy), count);
  }
}

}  // namespace

void TopKOf(const KernelTable& kernels, std::span<const float> logits, uint32_t k, std::span<const TokenId> skip,
            std::span<const uint64_t> mask, std::vector<RankedLogit>* heap, std::vector<TokenId>* ids) {
  ids->clear();
  heap->clear();
  if (k == 0) return;
  Others others(skip, mask);
  size_t i = 0;
  for (; i < logits.size() && heap->size() < k; ++i) {
    if (others.Has(i)) heap->push_back({logits[i], static_cast<TokenId>(i)});
  }
  // The worst of the best on top.
  std::make_heap(heap->begin(), heap->end(), Better);
  for (; i < logits.size(); ++i) {
    i = kernels.find_above(logits.data(), i, logits.size(), heap->front().logit);
    if (i == logits.size()) break;
    const RankedLogit found{logits[i], static_cast<TokenId>(i)};
    if (!Better(found, heap->front()) || !others.Has(i)) continue;
    std::pop_heap(heap->begin(), heap->end(), Better);
    heap->back() = found;
    std::push_heap(heap->begin(), heap->end(), Better);
  }
  std::sort_heap(heap->begin(), heap->end(), Better);
  for (const RankedLogit& l : *heap) ids->push_back(l.id);
}

double LogSumExpOf(const KernelTable& kernels, std::span<const float> logits, double inv_temperature,
                   std::span<const TokenId> skip, std::span<const uint64_t> mask) {
  float highest = kLowest;
  EachChunk(logits, skip, mask, [&](const float* x, size_t n) { highest = std::max(highest, kernels.max_of(x, n)); });
  const double max = static_cast<double>(highest);
  if (std::isinf(max)) return max;
  double sum = 0;
  EachChunk(logits, skip, mask, [&](const float* x, size_t n) { sum += kernels.sum_exp(x, n, max, inv_temperature); });
  return max * inv_temperature + std::log(sum);
}

}  // namespace gyre
