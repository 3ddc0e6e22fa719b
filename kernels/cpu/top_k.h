// Top-K and log-sum-exp over a row of logits: Backend::TopK and Backend::LogSumExp.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "kernels/cpu/team.h"

namespace gyre::cpu {

void SelectTop(const float* logits, size_t vocab, uint32_t k, std::span<const TokenId> skip,
               std::span<const uint64_t> mask, std::vector<TokenId>* ids);
double SumExp(const float* logits, size_t vocab, double inv_temperature, std::span<const TokenId> skip,
              std::span<const uint64_t> mask, const Team& team);

}  // namespace gyre::cpu
