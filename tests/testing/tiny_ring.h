// Rings of the tiny model within the test's process.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "cli/local_ring.h"

namespace gyre::testing {

// A thread a stage, an exact KV cache in small blocks.
inline RingOptions TinyRing(const std::string& model, int stages, uint32_t ctx) {
  RingOptions o;
  o.model = model;
  o.stages = stages;
  o.threads = stages;
  o.kv_type = "f32";
  o.block_size = 4;
  o.ctx = ctx;
  o.parallel = 8;
  o.quiet = true;
  return o;
}

// Null, and the test has failed, where it can't be opened.
inline std::unique_ptr<LocalRing> OpenRing(const RingOptions& o) {
  auto ring = LocalRing::Open(o);
  EXPECT_TRUE(ring.ok()) << ring.status();
  return ring.ok() ? *std::move(ring) : nullptr;
}

}  // namespace gyre::testing
