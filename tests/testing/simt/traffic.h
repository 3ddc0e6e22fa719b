// What the warps of a launch ask memory for, request by request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/testing/simt/simt.h"

namespace gyre::simt {

// One access of one lane.
struct Request {
  uint32_t code = 0;
  uint8_t bytes = 0;
  bool write = false, shared = false;
  uintptr_t at = 0;
};

class TrafficBook {
 public:
  // What each lane of a warp did since the lanes last met, in its order. Accesses of one line of code, each lane's n-th
  // one, are one request.
  void AddWarp(std::span<const std::vector<Request>* const> lanes);

  const Counts& counts() const { return counts_; }
  std::string Worst(size_t lines) const;

 private:
  struct Line {
    Traffic traffic;
    bool write = false, shared = false;
  };
  void AddRequest(std::span<const Request* const> lanes);

  Counts counts_;
  std::unordered_map<uint32_t, Line> lines_;
};

}  // namespace gyre::simt
