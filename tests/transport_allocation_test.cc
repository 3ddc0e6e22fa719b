// A link's requests for memory when its peer announces more than it sends. In a program of its own, as it replaces
// operator new.
#include <gtest/gtest.h>

#include "tests/testing/largest_allocation.h"
#include "tests/testing/ring_ports.h"
#include "tests/testing/tcp_pair.h"

namespace gyre {
namespace {

// The memory of a payload is taken as it comes in.
TEST(TcpAllocationTest, AnAnnouncedLengthTakesNoMemory) {
  const auto [client, server] = testing::ConnectedSockets();
  auto link = *MakeTcpLink(server, "the client", {});
  testing::Put(client, EncodeHeader({.kind = FrameKind::kTokens, .length = kMaxPayload}));
  testing::Put(client, std::vector<std::byte>(1000));
  const size_t largest = testing::LargestAllocation(
      [&] { EXPECT_TRUE(absl::IsDeadlineExceeded(link->Recv(After(std::chrono::milliseconds(100))).status())); });
  EXPECT_LE(largest, size_t{2} << 20);
  close(client);
}

}  // namespace
}  // namespace gyre
