#include "kernels/cpu/products/joint_products.h"

#include <algorithm>

namespace gyre::cpu {

void MultiplyPanels(const IsaOps& ops, const Quantized& x, size_t rows, const CpuWeight& w, size_t from, size_t to,
                    float* out, size_t ldo) {
  const size_t column = from * kPanel, columns = std::min(w.n - column, (to - from) * kPanel);
  ops.dot_panels(x, rows, w.panel_type, w.panels.data() + from * w.panel_bytes, to - from, columns, out + column, ldo,
                 ops.streams);
  ScaleProducts(w, rows, columns, out + column, ldo);
}

void JointProducts::Run(const IsaOps& ops, const Team& team) {
  panels_before_.assign(1, 0);
  double ns = 0;
  for (const Product& p : products_) {
    panels_before_.push_back(panels_before_.back() + PanelCount(p.w->n));
    ns += std::max(static_cast<double>(p.rows * p.w->n * p.w->k) / kMacsPerNs,
                   static_cast<double>(p.w->bytes) / kBytesPerNs);
  }
  team.For(panels_before_.back(), kPanelGrain, ns, [&](size_t begin, size_t end) {
    auto i = static_cast<size_t>(std::upper_bound(panels_before_.begin(), panels_before_.end(), begin) -
                                 panels_before_.begin() - 1);
    for (; begin < end; ++i) {
      const Product& p = products_[i];
      // Both ends are even, as the numbers of panels are.
      const size_t from = begin - panels_before_[i], to = std::min(end, panels_before_[i + 1]) - panels_before_[i];
      MultiplyPanels(ops, p.x, p.rows, *p.w, from, to, p.out, p.stride);
      begin = panels_before_[i] + to;
    }
  });
}

}  // namespace gyre::cpu
