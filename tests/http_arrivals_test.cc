// Connections that come too often: they wait, and clients at other addresses don't.
#include "coordinator/http/arrivals.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/host_port.h"
#include "tests/testing/http_server_rig.h"
#include "transport/fd.h"

namespace gyre {
namespace {

using http::Arrivals;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HttpClient;
using testing::Soon;

constexpr AddressLimits kRate{.per_second = 100, .burst = 20, .address_per_second = 10, .address_burst = 4};

TEST(ArrivalsTest, AnAddressThatComesTooOftenWaitsInItsOwnQueue) {
  Arrivals<int> arrivals(kRate, {.total = 8, .per_address = 3}, seconds(5));
  Deadline now = Deadline{} + seconds(100);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(arrivals.Arrive("10.0.0.1", i, now).serve, i);
  EXPECT_FALSE(arrivals.Arrive("10.0.0.1", 4, now).serve.has_value());
  EXPECT_EQ(arrivals.Arrive("10.0.0.2", 100, now).serve, 100) << "another address does not wait";
  EXPECT_TRUE(arrivals.Turns(now).empty());
  // A newcomer stands behind those that wait, although a turn is free.
  now += milliseconds(100);
  EXPECT_FALSE(arrivals.Arrive("10.0.0.1", 5, now).serve.has_value());
  EXPECT_EQ(arrivals.Turns(now), std::vector<int>{4});
  arrivals.Arrive("10.0.0.1", 6, now);
  arrivals.Arrive("10.0.0.1", 7, now);
  EXPECT_EQ(arrivals.Arrive("10.0.0.1", 8, now).give_way, 5) << "the oldest of its own";
  EXPECT_EQ(arrivals.waiting(), 3u);
  now += seconds(1);
  EXPECT_EQ(arrivals.Turns(now), (std::vector<int>{6, 7, 8}));
}

TEST(ArrivalsTest, WhoHasWaitedForTooLongGoes) {
  Arrivals<int> arrivals({.per_second = 0.01, .burst = 1, .address_per_second = 0.01, .address_burst = 1},
                         {.total = 8, .per_address = 8}, seconds(5));
  const Deadline now = Deadline{} + seconds(100);
  arrivals.Arrive("a", 0, now);
  arrivals.Arrive("a", 1, now);
  arrivals.Arrive("a", 2, now + seconds(1));
  EXPECT_TRUE(arrivals.Expired(now + milliseconds(4999)).empty());
  EXPECT_EQ(arrivals.Expired(now + seconds(5)), std::vector<int>{1});
  EXPECT_EQ(arrivals.Expired(now + seconds(6)), std::vector<int>{2});
  EXPECT_EQ(arrivals.waiting(), 0u);
}

class HttpArrivalsTest : public testing::HttpServerTest {
 protected:
  // A connection from that address of loopback.
  Fd ConnectFrom(const char* source) {
    const auto at = ParseHostPort(server_->address());
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in from{}, to{};
    from.sin_family = to.sin_family = AF_INET;
    inet_pton(AF_INET, source, &from.sin_addr);
    inet_pton(AF_INET, at->host.c_str(), &to.sin_addr);
    to.sin_port = htons(at->port);
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&from), sizeof from), 0);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    return fd;
  }
};

TEST_F(HttpArrivalsTest, AFloodOfOneAddressDelaysNobodyElse) {
  options_.limits.connections = 64;
  options_.limits.arrivals_at_once = 64;
  options_.limits.address_arrivals_per_second = 20;
  Serve();
  std::vector<Fd> flood;
  for (int i = 0; i < 400; ++i) {
    flood.push_back(ConnectFrom("127.0.0.2"));
    ::shutdown(flood.back().get(), SHUT_WR);
  }
  ASSERT_TRUE(Soon([&] { return server_->stats().accepted == 400; }));
  // 64 were served at once, and 64 wait; the others gave way.
  const uint64_t refused = server_->stats().refused;
  EXPECT_GE(refused, 400u - 64 - 64 - 20);
  EXPECT_LE(refused, 400u - 64 - 64);
  const Deadline before = Clock::now();
  EXPECT_EQ(Get("/echo").status, 200);
  EXPECT_LT(Clock::now() - before, seconds(1));
}

TEST_F(HttpArrivalsTest, WhoWaitsIsServedWhenItsTurnComes) {
  options_.limits.connections = 4;
  options_.limits.arrivals_at_once = 4;
  options_.limits.address_arrivals_per_second = 20;
  Serve();
  const Deadline before = Clock::now();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Get("/echo").status, 200);
  EXPECT_GE(Clock::now() - before, milliseconds(250));  // six of them waited for 50 ms
  EXPECT_EQ(server_->stats().refused, 0u);
}

}  // namespace
}  // namespace gyre
