// The graphs of steps that came again: docs/cuda.md, "Steps and graphs".
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/cuda/runtime.h"

namespace gyre::cuda {

// The graphs of one queue. Not thread-safe.
class StepGraphs {
 public:
  struct Counts {
    uint64_t direct = 0;    // steps whose calls were done one by one
    uint64_t captured = 0;  // steps that became a graph
    uint64_t replayed = 0;  // steps that were a launch of a graph
  };

  // capturing: held while the stream may not be waited for.
  StepGraphs(Runtime& runtime, std::mutex& capturing) : runtime_(runtime), capturing_(capturing) {}
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // Does `calls`, which `key` tells from others, as a graph from the third time on that the same key comes. Throws what
  // they throw.
  void Run(Stream stream, std::span<const std::byte> key, const std::function<void()>& calls);
  const Counts& counts() const { return counts_; }

 private:
  static constexpr uint32_t kUses = 3;  // a step that came so often becomes a graph
  static constexpr size_t kKept = 32;   // graphs at most
  static constexpr size_t kSeen = 128;  // steps that are remembered, with graphs or without
  struct Step {
    uint64_t hash = 0;
    std::vector<std::byte> key;
    uint32_t uses = 0;
    bool refused = false;  // it can't be captured
    Graph graph = nullptr;
  };

  Step& Find(std::span<const std::byte> key);
  void Trim();

  Runtime& runtime_;
  std::mutex& capturing_;
  std::list<Step> steps_;  // the last used one first
  Counts counts_;
};

}  // namespace gyre::cuda
