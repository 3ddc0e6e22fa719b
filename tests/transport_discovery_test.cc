// The datagrams by which a worker finds its coordinator.
#include "transport/discovery.h"

#include <gtest/gtest.h>

#include <random>

namespace gyre {
namespace {

TEST(DiscoveryTest, MessagesThereAndBackAndNothingElse) {
  const DiscoveryMessage question{.nonce = std::string(16, 'n'), .authority = std::string(32, 'a')};
  const DiscoveryMessage answer{.answer = true, .port = 7070, .nonce = std::string(16, 'n'), .authority = ""};
  for (const DiscoveryMessage& m : {question, answer}) {
    const auto bytes = EncodeDiscovery(m);
    EXPECT_EQ(*DecodeDiscovery(bytes), m);
    for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(DecodeDiscovery(std::span(bytes).first(n)).ok()) << n;
  }
  EXPECT_EQ(EncodeDiscovery(question).size(), EncodeDiscovery(answer).size()) << "it amplifies nothing";
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    std::vector<std::byte> bytes(random() % 100);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    EXPECT_FALSE(DecodeDiscovery(bytes).ok());
  }
}

TEST(DiscoveryTest, ASearchCanBeStopped) {
  int asked = 0;
  const auto found = FindCoordinator(std::string(32, 'x'), kNoDeadline, [&asked] { return ++asked > 3; });
  EXPECT_TRUE(absl::IsCancelled(found.status()) || absl::IsUnavailable(found.status())) << found.status();
}

}  // namespace
}  // namespace gyre
