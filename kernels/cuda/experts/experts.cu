#include "kernels/cuda/experts/experts.h"

#include "kernels/cuda/math.cuh"
#include "kernels/cuda/warp.cuh"

namespace gyre::cuda {
namespace {

constexpr unsigned kThreads = 128;

struct ChooseShared {
  double rank[kMostExperts];
  double worth_of_group[kMostExperts];
  uint8_t taken[kMostExperts];  // whether the expert, or before it the group, is chosen
  OfWarps<double, kThreads / 32> largest, sums;
};

// Whether a comes before b: the larger rank first, NaN last, the lower number first among equals.
GPU_FN bool Before(const double* rank, size_t a, size_t b) {
  const auto of_a = gpu::Load<double>(rank + a), of_b = gpu::Load<double>(rank + b);
  const bool nan_a = of_a != of_a, nan_b = of_b != of_b;
  if (nan_a != nan_b) return nan_b;
  if (!nan_a && of_a != of_b) return of_a > of_b;
  return a < b;
}
GPU_FN bool AmongBest(const double* rank, size_t count, size_t i, size_t best) {
  size_t before = 0;
  for (size_t other = 0; other < count; ++other) before += Before(rank, other, i) ? 1 : 0;
  return before < best;
}
// A group is as good as its two best experts together.
GPU_FN double WorthOfGroup(const double* rank, size_t size) {
  double best = -Infinity64(), second = -Infinity64();
  for (size_t i = 0; i < size; ++i) {
    const auto r = gpu::Load<double>(rank + i);
    if (r > best) {
      second = best;
      best = r;
    } else if (r > second) {
      second = r;
    }
  }
  return size > 1 ? gpu::Add(best, second) : best;
}

// RouterParams::near. A thread has a row, as few experts are chosen of few.
GPU_KERNEL(128, 4)
MixSparselyKernel(const float* scores, size_t rows, RouterParams p, uint32_t* experts, float* weights) {
  const size_t r = size_t{gpu::BlockX()} * kThreads + gpu::Thread();
  if (r >= rows) return;
  const float* row = scores + r * p.count;
  uint32_t* chosen = experts + r * p.used;
  float* by = weights + r * p.used;
  for (size_t n = 0; n < p.used; ++n) {  // those before n are chosen, by rising number
    const auto taken = [&](size_t e) {
      for (size_t i = 0; i < n; ++i) {
        if (chosen[i] == e) return true;
      }
      return false;
    };
    size_t top = p.count;
    for (size_t e = 0; e < p.count; ++e) {
      if (!taken(e) && (top == p.count || row[e] > row[top])) top = e;
    }
    const auto best = static_cast<double>(row[top]);
    double sum = 0;
    for (size_t e = 0; e < p.count; ++e) {
      const auto s = static_cast<double>(row[e]);
      const double size = s < 0 ? -s : s, most = size > best ? size : best;
      const bool near = s == best || gpu::Div(gpu::Add(best, -s), most) <= static_cast<double>(p.near);
      if (near && !taken(e)) sum = gpu::Add(sum, Exp(gpu::Add(s, -best)));
    }
    const auto weight = static_cast<float>(gpu::Mul(gpu::Div(1.0, sum), static_cast<double>(p.scale)));
    size_t at = n;
    for (; at > 0 && chosen[at - 1] > top; --at) {
      chosen[at] = chosen[at - 1];
      by[at] = by[at - 1];
    }
    chosen[at] = static_cast<uint32_t>(top);
    by[at] = weight;
  }
}

// A block a row. In double, so that rounding does not show.
GPU_KERNEL(128, 4)
ChooseExpertsKernel(const float* scores, RouterParams p, const float* choice_bias, uint32_t* experts, float* weights) {
  GPU_SHARED(ChooseShared, s);
  const float* row = scores + gpu::BlockX() * p.count;
  double top = -Infinity64();
  for (size_t e = gpu::Thread(); e < p.count; e += kThreads) top = row[e] > top ? static_cast<double>(row[e]) : top;
  top = s.largest.Max(top);
  double all = 0;
  for (size_t e = gpu::Thread(); e < p.count; e += kThreads)
    all = gpu::Add(all, Exp(gpu::Add(static_cast<double>(row[e]), -top)));
  all = s.sums.Sum(all);
  const auto worth = [&](size_t e) {
    const auto score = static_cast<double>(row[e]);
    if (p.sigmoid) return gpu::Div(1.0, gpu::Add(1.0, Exp(-score)));
    return gpu::Div(Exp(gpu::Add(score, -top)), all);
  };
  const bool biased = choice_bias != nullptr;
  for (size_t e = gpu::Thread(); e < p.count; e += kThreads) {
    // Without a choice bias a softmax has the order of its scores.
    double rank = static_cast<double>(row[e]);
    if (p.sigmoid || biased) rank = gpu::Add(worth(e), biased ? static_cast<double>(choice_bias[e]) : 0.0);
    gpu::Store(&s.rank[e], rank);
  }
  gpu::SyncBlock();
  if (p.groups > 1) {
    const size_t size = p.count / p.groups;
    for (size_t g = gpu::Thread(); g < p.groups; g += kThreads)
      gpu::Store(&s.worth_of_group[g], WorthOfGroup(s.rank + g * size, size));
    gpu::SyncBlock();
    for (size_t g = gpu::Thread(); g < p.groups; g += kThreads)
      s.taken[g] = AmongBest(s.worth_of_group, p.groups, g, p.used_groups) ? 1 : 0;
    gpu::SyncBlock();
    for (size_t e = gpu::Thread(); e < p.count; e += kThreads) {
      if (s.taken[e / size] == 0) gpu::Store(&s.rank[e], -Infinity64());
    }
    gpu::SyncBlock();
  }
  for (size_t e = gpu::Thread(); e < p.count; e += kThreads) s.taken[e] = AmongBest(s.rank, p.count, e, p.used) ? 1 : 0;
  gpu::SyncBlock();
  for (size_t e = gpu::Thread(); e < p.count; e += kThreads) {
    if (s.taken[e] == 0) continue;
    size_t place = 0;
    double sum = p.normalize ? 0.0 : 1.0;
    for (size_t other = 0; other < p.count; ++other) {
      if (s.taken[other] == 0) continue;
      place += other < e ? 1 : 0;
      if (p.normalize) sum = gpu::Add(sum, worth(other));
    }
    const size_t at = gpu::BlockX() * p.used + place;
    experts[at] = static_cast<uint32_t>(e);
    weights[at] = static_cast<float>(gpu::Mul(gpu::Div(worth(e), sum), static_cast<double>(p.scale)));
  }
}

struct PlaceShared {
  uint32_t counts[kMostExperts];
};
// One block; a thread has some experts.
GPU_KERNEL(256, 1) PlaceRowsKernel(const uint32_t* chosen, size_t entries, size_t used, size_t experts, Places to) {
  GPU_SHARED(PlaceShared, s);
  for (size_t e = gpu::Thread(); e < experts; e += 256) {
    uint32_t count = 0;
    for (size_t i = 0; i < entries; ++i) count += chosen[i] == e ? 1 : 0;
    s.counts[e] = count;
  }
  gpu::SyncBlock();
  for (size_t e = gpu::Thread(); e < experts; e += 256) {
    uint32_t place = 0;
    for (size_t before = 0; before < e; ++before) place += s.counts[before];
    to.bounds[e] = place;
    if (e + 1 == experts) to.bounds[experts] = static_cast<uint32_t>(entries);
    for (size_t i = 0; i < entries; ++i) {
      if (chosen[i] != e) continue;
      to.places[i] = place;
      to.rows_of[place++] = static_cast<uint32_t>(i / used);
    }
  }
}

GPU_KERNEL(256, 4)
AddBiasToPlacesKernel(float* x, size_t rows, const uint32_t* bounds, size_t dim, const float* bias) {
  const size_t i = size_t{gpu::BlockX()} * 256 + gpu::Thread();
  const size_t first = bounds == nullptr ? 0 : bounds[0], end = bounds == nullptr ? rows : bounds[1];
  if (i >= (end - first) * dim) return;
  float& element = x[first * dim + i];
  element = gpu::Add(element, bias[i % dim]);
}

GPU_KERNEL(256, 4)
ActivatePlacesKernel(float* gate, float* up, size_t rows, const uint32_t* bounds, size_t dim, Activation act,
                     bool gated) {
  const size_t i = size_t{gpu::BlockX()} * 256 + gpu::Thread();
  const size_t first = bounds == nullptr ? 0 : bounds[0], end = bounds == nullptr ? rows : bounds[1];
  if (i >= (end - first) * dim) return;
  const size_t at = first * dim + i;
  if (gated)
    gate[at] = Gated(gate[at], up[at], act);
  else
    up[at] = Activated(up[at], act);
}

// A thread has one element of one row.
GPU_KERNEL(256, 4)
SumExpertsKernel(const float* made, size_t n, size_t used, size_t dim, const uint32_t* chosen, const float* weights,
                 const float* scales, const uint32_t* places, float* out) {
  const size_t at = size_t{gpu::BlockX()} * 256 + gpu::Thread();
  if (at >= n) return;
  const size_t row = at / dim, column = at % dim;
  float sum = 0;
  for (size_t i = row * used; i < (row + 1) * used; ++i) {
    const float by = gpu::Mul(weights[i], scales == nullptr ? 1.0f : scales[chosen[i]]);
    sum = gpu::Add(sum, gpu::Mul(made[places[i] * dim + column], by));
  }
  out[at] = sum;
}

}  // namespace

void ChooseExperts(Stream stream, const float* scores, size_t rows, const RouterParams& params,
                   const float* choice_bias, uint32_t* experts, float* weights) {
  if (rows == 0) return;
  if (params.near != 0) {
    GPU_LAUNCH(MixSparselyKernel, Blocks(rows, kThreads), kThreads, stream, scores, rows, params, experts, weights);
    return;
  }
  GPU_LAUNCH(ChooseExpertsKernel, static_cast<unsigned>(rows), 128, stream, scores, params, choice_bias, experts,
             weights);
}
void PlaceRows(Stream stream, const uint32_t* chosen, size_t rows, size_t used, size_t experts, const Places& places) {
  GPU_LAUNCH(PlaceRowsKernel, 1, 256, stream, chosen, rows * used, used, experts, places);
}
void AddBiasToPlaces(Stream stream, float* x, size_t rows, const uint32_t* bounds, size_t dim, const float* bias) {
  if (rows * dim == 0) return;
  GPU_LAUNCH(AddBiasToPlacesKernel, Blocks(rows * dim, 256), 256, stream, x, rows, bounds, dim, bias);
}
void ActivatePlaces(Stream stream, float* gate, float* up, size_t rows, const uint32_t* bounds, size_t dim,
                    Activation act, bool gated) {
  if (rows * dim == 0) return;
  GPU_LAUNCH(ActivatePlacesKernel, Blocks(rows * dim, 256), 256, stream, gate, up, rows, bounds, dim, act, gated);
}
void SumExperts(Stream stream, const float* made, size_t rows, size_t used, size_t dim, const uint32_t* chosen,
                const float* weights, const float* scales, const uint32_t* places, float* out) {
  const size_t n = rows * dim;
  if (n == 0) return;
  GPU_LAUNCH(SumExpertsKernel, Blocks(n, 256), 256, stream, made, n, used, dim, chosen, weights, scales, places, out);
}

}  // namespace gyre::cuda
