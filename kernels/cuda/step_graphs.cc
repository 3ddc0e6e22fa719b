#include "kernels/cuda/step_graphs.h"

#include <algorithm>
#include <cstring>

namespace gyre::cuda {
namespace {

uint64_t HashOf(std::span<const std::byte> bytes) {
  uint64_t hash = bytes.size();
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  for (; i < bytes.size(); ++i) hash = (hash ^ static_cast<uint64_t>(bytes[i])) * 0x9E3779B97F4A7C15u;
  return hash;
}

}  // namespace

StepGraphs::~StepGraphs() {
  for (const Step& step : steps_) {
    if (step.graph != nullptr) runtime_.DropGraph(step.graph);
  }
}

StepGraphs::Step& StepGraphs::Find(std::span<const std::byte> key) {
  const uint64_t hash = HashOf(key);
  const auto found = std::find_if(steps_.begin(), steps_.end(), [&](const Step& step) {
    return step.hash == hash && std::equal(step.key.begin(), step.key.end(), key.begin(), key.end());
  });
  if (found != steps_.end()) {
    steps_.splice(steps_.begin(), steps_, found);
  } else {
    steps_.push_front({.hash = hash, .key = {key.begin(), key.end()}});
  }
  return steps_.front();
}

void StepGraphs::Trim() {
  size_t graphs = 0, seen = 0;
  for (auto step = steps_.begin(); step != steps_.end();) {
    graphs += step->graph != nullptr ? 1 : 0;
    if (++seen <= kSeen && graphs <= kKept) {
      ++step;
      continue;
    }
    if (step->graph != nullptr) {
      runtime_.DropGraph(step->graph);
      --graphs;
    }
    step = steps_.erase(step);
  }
}

void StepGraphs::Run(Stream stream, std::span<const std::byte> key, const std::function<void()>& calls) {
  Step& step = Find(key);
  ++step.uses;
  if (step.graph == nullptr && step.uses >= kUses && !step.refused) {
    const std::lock_guard lock(capturing_);
    step.graph = runtime_.Capture(stream, calls);
    step.refused = step.graph == nullptr;
    counts_.captured += step.refused ? 0 : 1;
  }
  if (step.graph != nullptr) {
    runtime_.LaunchGraph(stream, step.graph);
    ++counts_.replayed;
  } else {
    calls();
    ++counts_.direct;
  }
  Trim();
}

}  // namespace gyre::cuda
