#include "kernels/observe.h"

#include <utility>

namespace gyre {
namespace {

ProductObserver& Observer() {
  static ProductObserver observer;
  return observer;
}

}  // namespace

void ObserveProducts(ProductObserver observer) { Observer() = std::move(observer); }
const ProductObserver& TheProductObserver() { return Observer(); }

}  // namespace gyre
