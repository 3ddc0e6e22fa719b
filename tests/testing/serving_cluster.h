// A simulated cluster that serves already.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "tests/testing/cluster_world.h"

namespace gyre::testing {

class ServingClusterTest : public ::testing::Test {
 protected:
  // Workers w1 ... wN that serve 8 layers, after the coordinator's own member if there is one.
  ClusterWorld& Serving(int workers, MemberInfo info = {}, bool local = false) {
    New(ClusterWorld::Policy(8, workers));
    if (local) world_->JoinLocal();
    for (int i = 1; i <= workers; ++i) world_->Join(fmt::format("w{}", i), info);
    world_->Advance(std::chrono::seconds(1));
    EXPECT_EQ(world_->text(), "serving");
    world_->engine.calls.clear();
    world_->engine.losses.clear();
    world_->begun.clear();
    return *world_;
  }
  ClusterWorld& New(const ClusterPolicy& policy) {
    world_ = std::make_unique<ClusterWorld>(policy);
    return *world_;
  }
  void TearDown() override {
    if (world_) EXPECT_EQ(world_->problem(), "");
  }
  std::unique_ptr<ClusterWorld> world_;
};

}  // namespace gyre::testing
