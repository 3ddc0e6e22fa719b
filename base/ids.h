// Distinct types for the numbers that travel between coordinator and workers. Standard library only.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace gyre {

using TokenId = int32_t;
// Number of a KV block, cluster-wide; every stage uses it as its page number.
using BlockId = uint32_t;
inline constexpr BlockId kNoBlock = 0xFFFFFFFFu;

enum class SeqId : uint64_t {};
enum class StepId : uint64_t {};

// Number of a plan: the coordinator's start time in milliseconds, then a count that is used once.
struct Epoch {
  uint64_t term = 0;
  uint64_t number = 0;
  auto operator<=>(const Epoch&) const = default;
};

// Made by the coordinator for each of its terms and handed out over the control plane; links without it are refused.
using RingKey = std::array<uint8_t, 16>;

// Layers [begin, end), counted from 0.
struct LayerRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  bool operator==(const LayerRange&) const = default;
};

// Which arithmetic a row is computed with. A property of the row, kept on replay, so that a row's bits do not
// depend on when or beside what it is computed.
enum class RowClass : uint8_t { kPrompt = 0, kGenerated = 1 };

}  // namespace gyre
