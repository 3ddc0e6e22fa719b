// Top-K and log-sum-exp over rows of logits: Backend::TopK and Backend::LogSumExp.
#pragma once

#include <span>
#include <vector>

#include "kernels/cpu/isa/isa_ops.h"
#include "kernels/cpu/team.h"
#include "kernels/ops.h"

namespace gyre::cpu {

// The best ids of a row, best first. Throws std::bad_alloc where *ids has room for fewer than row.k.
void SelectTop(const TopKRow& row, size_t vocab, std::vector<TokenId>* ids);
void SumExponentials(const IsaOps& ops, std::span<const LogSumExpRow> rows, size_t vocab, const Team& team);

}  // namespace gyre::cpu
