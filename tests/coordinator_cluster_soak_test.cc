// Random joins, leaves, faults, late answers, broken rings and resizes against a cluster, checked after every event.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/cluster_world.h"
#include "tests/testing/draw.h"

namespace gyre {
namespace {
TEST(ClusterSoak, Placeholder) {}
}  // namespace
}  // namespace gyre
