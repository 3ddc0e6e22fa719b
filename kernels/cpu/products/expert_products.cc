#include "kernels/cpu/products/expert_products.h"

#include <algorithm>

#include "kernels/cpu/products/product_kernel.h"
#include "kernels/host_backend.h"

namespace gyre::cpu {
namespace {

const CpuWeight& Of(const PackedWeight& w) { return static_cast<const CpuWeight&>(w); }

float* Floats(Buffer& buffer, size_t n) { return reinterpret_cast<float*>(buffer.EnsureCapacity(n * sizeof(float))); }

}  // namespace

bool ExpertProducts::Supports(const IsaOps& ops, std::span<const Backend::RowRun> runs,
                              const Backend::Mixture& mixture) {
  for (const Backend::RowRun& run : runs) {
    if (run.arithmetic == Arithmetic::kExact) return false;
    if (run.arithmetic == Arithmetic::kPrefill && ops.tiles != nullptr) return false;
  }
  return std::all_of(mixture.experts.begin(), mixture.experts.end(), [](const Backend::Ffn& w) {
    return w.gated() && Of(w.gate).has_panels() && Of(w.up).has_panels() && Of(w.down).has_panels() &&
           Of(w.gate).panel_type == Of(w.up).panel_type;
  });
}

void ExpertProducts::Group(size_t rows, const Backend::Mixture& mixture) {
  const size_t all = rows * mixture.used;
  std::vector<size_t> count(mixture.experts.size());
  for (size_t i = 0; i < all; ++i) ++count[mixture.chosen[i]];
  jobs_.clear();
  std::vector<size_t> next(count.size());
  size_t first = 0;
  for (size_t e = 0; e < count.size(); ++e) {
    next[e] = first;
    if (count[e] > 0) jobs_.push_back({.expert = e, .first = first, .rows = count[e], .in = {}, .inner = {}});
    first += count[e];
  }
  job_of_.resize(all);
  source_.resize(all);
  place_of_.resize(all);
  for (size_t i = 0; i < all; ++i) {
    const size_t at = next[mixture.chosen[i]]++;
    place_of_[i] = at;
    source_[at] = i / mixture.used;
  }
  for (size_t j = 0; j < jobs_.size(); ++j) {
    for (size_t i = 0; i < jobs_[j].rows; ++i) job_of_[jobs_[j].first + i] = j;
  }
}

void ExpertProducts::Run(const float* x, size_t rows, const Backend::Mixture& mixture, float* out) {
  Group(rows, mixture);
  const size_t all = rows * mixture.used, dim = mixture.experts[0].up.k, width = mixture.experts[0].up.n;
  in_.Clear();
  inner_.Clear();
  for (Job& job : jobs_) {
    const Backend::Ffn& w = mixture.experts[job.expert];
    in_.Add(ops_, Of(w.gate), job.rows);
    inner_.Add(ops_, Of(w.down), job.rows);
  }
  in_.Allocate();
  inner_.Allocate();
  for (size_t j = 0; j < jobs_.size(); ++j) {
    jobs_[j].in = in_.View(j);
    jobs_[j].inner = inner_.View(j);
  }
  float *gates = Floats(gates_, 2 * all * width), *ups = gates + all * width, *made = Floats(made_, all * dim);

  team_.For(all, 1, static_cast<double>(all * dim) / kElemsPerNs / 4, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      in_.Quantize(ops_, job_of_[i], i - jobs_[job_of_[i]].first, x + source_[i] * dim);
  });
  products_.Clear();
  for (const Job& job : jobs_) {
    const Backend::Ffn& w = mixture.experts[job.expert];
    products_.Add(Of(w.gate), job.in, job.rows, gates + job.first * width, width);
    products_.Add(Of(w.up), job.in, job.rows, ups + job.first * width, width);
  }
  products_.Run(ops_, team_);
  const auto times = ops_.TimesOf(mixture.activation);
  const auto add = [](float* to, const float* bias, size_t n) {
    for (size_t i = 0; bias != nullptr && i < n; ++i) to[i] += bias[i];
  };
  team_.For(all, 1, static_cast<double>(all * width) / kElemsPerNs * 3, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const Job& job = jobs_[job_of_[i]];
      const Backend::Ffn& w = mixture.experts[job.expert];
      float *gate = gates + i * width, *up = ups + i * width;
      if (!w.plain()) {
        add(gate, w.gate_bias, width);
        add(up, w.up_bias, width);
        Limit(gate, up, width, w);
      }
      times(gate, up, width, gate);
      inner_.Quantize(ops_, job_of_[i], i - job.first, gate);
    }
  });
  products_.Clear();
  for (const Job& job : jobs_)
    products_.Add(Of(mixture.experts[job.expert].down), job.inner, job.rows, made + job.first * dim, dim);
  products_.Run(ops_, team_);
  team_.For(rows, 1, static_cast<double>(all * dim) / kElemsPerNs / 2, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) {
      float* to = out + r * dim;
      std::fill_n(to, dim, 0.0f);
      for (size_t u = r * mixture.used; u < (r + 1) * mixture.used; ++u) {
        const size_t e = mixture.chosen[u];
        float* from = made + place_of_[u] * dim;
        add(from, mixture.experts[e].down_bias, dim);
        const float by = mixture.weights[u] * (mixture.scales == nullptr ? 1 : mixture.scales[e]);
        for (size_t i = 0; i < dim; ++i) from[i] *= by;
        for (size_t i = 0; i < dim; ++i) to[i] += from[i];
      }
    }
  });
}

}  // namespace gyre::cpu
