// What the last stage tells of a row of logits instead of all of them.
#pragma once

#include <span>
#include <vector>

#include "kernels/cpu/kernel_table.h"

namespace gyre {

// A logit and its id, while the best are being looked for.
struct RankedLogit {
  float logit;
  TokenId id;
};

// Backend::TopK and Backend::LogSumExp. `heap` is scratch memory, kept between calls.
void TopKOf(const KernelTable& kernels, std::span<const float> logits, uint32_t k, std::span<const TokenId> skip,
            std::span<const uint64_t> mask, std::vector<RankedLogit>* heap, std::vector<TokenId>* ids);
double LogSumExpOf(const KernelTable& kernels, std::span<const float> logits, double inv_temperature,
                   std::span<const TokenId> skip, std::span<const uint64_t> mask);

}  // namespace gyre
