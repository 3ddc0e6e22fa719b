// The table of carriers: every preference has a row, every caller exactly one carrier, and a link goes over each.
#include "transport/carrier.h"

#include <gtest/gtest.h>

#include <thread>

namespace gyre {
namespace {

using std::chrono::seconds;

class CarrierTest : public ::testing::Test {
 protected:
  const RingPortOptions options_{};
  const std::string host_id_ = "0123456789abcdef";
  const std::function<bool(const Hello&)> cancelled_ = [](const Hello&) { return false; };
  const Carriers carriers_{{.options = options_, .host_id = host_id_, .cancelled = cancelled_}};
};

TEST_F(CarrierTest, EveryWishHasARowOfItsOwn) {
  size_t preferences = 0;
  for (const std::string& name : TransportPreferences()) {
    const Transport preference = *ParseTransport(name);
    if (preference == Transport::kAuto) continue;
    ++preferences;
    EXPECT_EQ(carriers_.Of(preference).row().transport, preference) << name;
  }
  EXPECT_EQ(carriers_.all().size(), preferences);
}

TEST_F(CarrierTest, ACallersLinkGoesOverExactlyOne) {
  for (const bool local : {false, true}) {
    for (const bool udp : {false, true}) {
      const Caller caller{.address = {}, .peer = {}, .local = local, .who = {}};
      Hello hello;
      if (udp) hello.udp = UdpOffer{};
      int brings = 0;
      for (const auto& carrier : carriers_.all()) brings += carrier->Brings(caller, hello);
      EXPECT_EQ(brings, 1) << local << udp;
    }
  }
}

// Without this a dialer would have nothing to fall back to.
TEST_F(CarrierTest, TheLastAutomaticOneReachesEveryAddress) {
  const Carrier* last = nullptr;
  for (const auto& carrier : carriers_.all()) {
    if (carrier->row().automatic) last = carrier.get();
  }
  ASSERT_NE(last, nullptr);
  EXPECT_TRUE(last->Reaches({.tcp = "h:1"}).ok());
  EXPECT_TRUE(last->row().begins_with_tcp);
}

TEST_F(CarrierTest, ALinkGoesOverEachThatIsUsableHere) {
  for (const auto& carrier : carriers_.all()) {
    const Transport transport = carrier->row().transport;
    if (!carriers_.CheckUsable(transport).ok()) continue;
    RingPortOptions options;
    options.listen = "127.0.0.1:0";
    options.transport = transport;
    const Hello hop{.epoch = {.term = 5, .number = 1}, .hop = 1, .key = {1}, .from = "a", .transport = transport};
    auto a = RingPort::Open(options), b = RingPort::Open(options);
    ASSERT_TRUE(a.ok() && b.ok()) << carrier->row().words << a.status() << b.status();
    for (const auto& port : {a->get(), b->get()}) port->SetKey(hop.epoch, hop.key);
    StatusOr<std::unique_ptr<Link>> accepted = Unavailable("never");
    std::thread accepts([&] { accepted = (*b)->Accept(hop, After(seconds(20))); });
    const StatusOr<std::unique_ptr<Link>> dialed = (*a)->Dial((*b)->address(), hop, After(seconds(20)));
    accepts.join();
    ASSERT_TRUE(dialed.ok() && accepted.ok()) << carrier->row().words << dialed.status() << accepted.status();
    EXPECT_EQ((*dialed)->transport(), transport);
    EXPECT_EQ((*accepted)->transport(), transport);
  }
}

}  // namespace
}  // namespace gyre
