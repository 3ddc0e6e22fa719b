#include <gtest/gtest.h>
namespace gyre {
TEST(ClusterTest, Placeholder) {}
}  // namespace gyre
