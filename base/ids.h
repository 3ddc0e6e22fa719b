// Distinct types for the numbers that travel between coordinator and workers. Standard library only.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace gyre {

using TokenId = int32_t;
// Number of a KV block, valid in the whole cluster: every stage uses it as its page number.
using BlockId = uint32_t;
inline constexpr BlockId kNoBlock = 0xFFFFFFFFu;

enum class SeqId : uint64_t {};
enum class StepId : uint64_t {};

// Number of a plan: the coordinator's start time in milliseconds, then a counter whose values are used once.
struct Epoch {
  uint64_t term = 0;
  uint64_t number = 0;
  auto operator<=>(const Epoch&) const = default;
};

// A secret that the coordinator makes for each plan and hands out with it over the control plane. Links without it are
// refused, and a carrier that seals its packets itself derives its keys from it.
using RingKey = std::array<uint8_t, 16>;

// Layers [begin, end), counted from 0.
struct LayerRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  bool operator==(const LayerRange&) const = default;
};

// The arithmetic that a row is computed with: of prefill or of decode. It belongs to the row and is kept on replay, so
// that the bits of a row do not depend on when and beside which rows it is computed.
enum class RowClass : uint8_t { kPrompt = 0, kGenerated = 1 };

}  // namespace gyre
