// A view on what a model's weights are multiplied by, for tools that measure how much each column matters.
#pragma once

#include <cstddef>
#include <functional>

#include "kernels/quant.h"

namespace gyre {

// x [rows][w.k], on the thread that called the op.
using ProductObserver = std::function<void(const WeightView& w, const float* x, size_t rows)>;

// From now on the CPU's backends of this process show the factors of each product before they compute it; an empty
// function ends that. Then products are computed one by one, which gives the same bits, slower. Call it while no op
// runs.
void ObserveProducts(ProductObserver observer);
// Empty: nobody observes.
const ProductObserver& TheProductObserver();

}  // namespace gyre
