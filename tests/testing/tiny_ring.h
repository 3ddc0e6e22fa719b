// Rings of the tiny model within the test's process.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "runtime/runtime.h"

namespace gyre::testing {

// A ring with one thread per stage, and an exact KV cache in small blocks.
inline RuntimeOptions TinyRing(const std::string& model, int stages, uint32_t ctx) {
  RuntimeOptions o;
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

// If it can't be opened, it is null and the test has failed.
inline std::unique_ptr<Runtime> OpenRing(const RuntimeOptions& o) {
  auto ring = Runtime::Open(o);
  EXPECT_TRUE(ring.ok()) << ring.status();
  return ring.ok() ? *std::move(ring) : nullptr;
}

}  // namespace gyre::testing
