// A ring port deals with those who dial it and should not: silence, garbage, hellos of unknown terms, floods.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "tests/testing/ring_ports.h"
#include "tests/testing/tcp_pair.h"
#include "transport/admission.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Call;
using testing::CallWith;
using testing::Connect;
using ::testing::HasSubstr;
using testing::OpenPort;
using testing::OpenPortWithoutKey;
using testing::SampleHello;

bool Eventually(const std::function<bool()>& holds) {
  for (const Deadline end = After(seconds(30)); Clock::now() < end; std::this_thread::sleep_for(milliseconds(5))) {
    if (holds()) return true;
  }
  return holds();
}

Hello OfUnknownTerm() {
  Hello hello = SampleHello();
  hello.epoch.term = 99;
  return hello;
}

// Whether the port closed it. What came before is read and forgotten.
bool Closed(int fd, milliseconds timeout) {
  for (const Deadline end = After(timeout);;) {
    pollfd p{.fd = fd, .events = POLLIN, .revents = 0};
    const auto left = std::max(std::chrono::ceil<milliseconds>(end - Clock::now()), milliseconds(0));
    if (poll(&p, 1, static_cast<int>(left.count())) != 1) return false;
    char bytes[256];
    if (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) <= 0) return true;
  }
}

void ExpectARingLink(RingPort& port) {
  auto other = OpenPort();
  auto [out, in] = Connect(*other, port, SampleHello(), SampleHello());
  EXPECT_TRUE(out.ok() && in.ok()) << out.status() << in.status();
}

TEST(AdmissionTest, TheOldestOfTheSameAddressGivesWayThenTheOldest) {
  const AdmissionLimits limits{.total = 4, .per_address = 2};
  const std::vector<std::string> waiting{"a", "b", "a"};
  EXPECT_EQ(GivesWay({}, "a", limits), std::nullopt);
  EXPECT_EQ(GivesWay(waiting, "a", limits), 0u);
  EXPECT_EQ(GivesWay(waiting, "b", limits), std::nullopt);
  const std::vector<std::string> full{"a", "b", "c", "b"};
  EXPECT_EQ(GivesWay(full, "b", limits), 1u) << "a flood displaces its own";
  EXPECT_EQ(GivesWay(full, "c", limits), 0u);
  EXPECT_EQ(GivesWay(full, "d", limits), 0u);
}

TEST(HostileTest, SilentConnectionsAreLimitedInTimeAndNumber) {
  RingPortOptions options;
  options.hello_timeout = milliseconds(300);
  options.unverified = {.total = 8, .per_address = 8};
  auto port = OpenPort(options);
  std::vector<int> sockets;
  for (int i = 0; i < 40; ++i) sockets.push_back(Call(*port));
  // Every one is closed: displaced by others, or for want of a hello.
  for (int fd : sockets) {
    EXPECT_TRUE(Closed(fd, seconds(20)));
    close(fd);
  }
  EXPECT_TRUE(Eventually([&] { return port->stats().refused == sockets.size(); })) << port->stats().refused;
  ExpectARingLink(*port);
}

TEST(HostileTest, AFloodOfSilentConnectionsKeepsNobodyOut) {
  RingPortOptions options;
  options.hello_timeout = seconds(600);
  auto port = OpenPort(options);
  std::vector<int> sockets;
  for (int i = 0; i < 100; ++i) sockets.push_back(Call(*port));
  ExpectARingLink(*port);
  EXPECT_TRUE(Closed(sockets[0], seconds(20))) << "the oldest gave way";
  EXPECT_FALSE(Closed(sockets[99], milliseconds(0)));
  for (int fd : sockets) close(fd);
}

// Nobody has checked their key, so nothing may depend on them.
TEST(HostileTest, HellosOfUnknownTermsLockNothing) {
  auto port = OpenPort();
  port->SetKey({.term = 5, .number = 2}, SampleHello().key);
  std::vector<int> sockets;
  for (int i = 0; i < 100; ++i) sockets.push_back(CallWith(*port, OfUnknownTerm()));
  auto dealt_with = [&] { return port->stats().accepted + port->stats().refused; };
  EXPECT_TRUE(Eventually([&] { return dealt_with() >= 100; }));
  EXPECT_LE(port->stats().waiting, 16u) << "they have one address";
  ExpectARingLink(*port);
  EXPECT_TRUE(Closed(sockets[0], seconds(20))) << "the oldest gave way";
  EXPECT_FALSE(Closed(sockets[99], milliseconds(0))) << "the youngest waits";
  // A link with the right key is not displaced by those without.
  auto other = OpenPort();
  auto dialed =
      std::async(std::launch::async, [&] { return other->Dial(port->address(), SampleHello(), After(seconds(60))); });
  EXPECT_TRUE(Eventually([&] { return port->stats().waiting == 17; }));
  const uint64_t before = dealt_with();
  for (int i = 0; i < 100; ++i) sockets.push_back(CallWith(*port, OfUnknownTerm()));
  EXPECT_TRUE(Eventually([&] { return dealt_with() >= before + 100; }));
  auto in = port->Accept(SampleHello(), After(seconds(60)));
  EXPECT_TRUE(in.ok()) << in.status();
  EXPECT_TRUE(dialed.get().ok());
  for (int fd : sockets) close(fd);
  EXPECT_TRUE(Eventually([&] { return port->stats().waiting == 0; })) << "closed ones are noticed";
}

TEST(HostileTest, UnclaimedLinksOfUnknownTermsEndInTime) {
  RingPortOptions options;
  options.unclaimed_timeout = milliseconds(100);
  auto port = OpenPort(options);
  const int fd = CallWith(*port, OfUnknownTerm());
  EXPECT_TRUE(Closed(fd, seconds(20)));
  close(fd);
  // One with the right key waits as long as its dialer does.
  auto other = OpenPort();
  auto dialed =
      std::async(std::launch::async, [&] { return other->Dial(port->address(), SampleHello(), After(seconds(60))); });
  std::this_thread::sleep_for(milliseconds(1500));
  EXPECT_EQ(port->stats().waiting, 1u);
  EXPECT_TRUE(port->Accept(SampleHello(), After(seconds(60))).ok());
  EXPECT_TRUE(dialed.get().ok());
}

TEST(HostileTest, AWrongKeyEndsWhenTheRightOneIsKnown) {
  auto port = OpenPortWithoutKey();
  Hello wrong = SampleHello();
  wrong.key[0] ^= 1;
  const int bad = CallWith(*port, wrong), good = CallWith(*port, SampleHello());
  EXPECT_TRUE(Eventually([&] { return port->stats().waiting == 2; }));
  port->SetKey(SampleHello().epoch, SampleHello().key);
  EXPECT_EQ(port->stats().waiting, 1u);
  EXPECT_EQ(port->stats().refused, 1u);
  EXPECT_TRUE(Closed(bad, seconds(20)));
  EXPECT_TRUE(port->Accept(SampleHello(), After(seconds(20))).ok());
  // From now on it is refused before it waits.
  const int again = CallWith(*port, wrong);
  EXPECT_TRUE(Closed(again, seconds(20)));
  EXPECT_EQ(port->stats().refused, 2u);
  // Another term's key ends what the last one's let in.
  const int old = CallWith(*port, SampleHello());
  EXPECT_TRUE(Eventually([&] { return port->stats().waiting == 1; }));
  port->SetKey({.term = 6, .number = 1}, SampleHello().key);
  EXPECT_TRUE(Closed(old, seconds(20)));
  for (int fd : {bad, good, again, old}) close(fd);
}

TEST(HostileTest, WhoClaimsALinkChecksItsKey) {
  auto port = OpenPortWithoutKey();
  Hello wrong = SampleHello();
  wrong.key[15] ^= 1;
  const int bad = CallWith(*port, wrong);
  EXPECT_TRUE(Eventually([&] { return port->stats().waiting == 1; }));
  EXPECT_TRUE(absl::IsDeadlineExceeded(port->Accept(SampleHello(), After(milliseconds(50))).status()));
  EXPECT_EQ(port->stats().waiting, 0u) << "it was refused";
  const int good = CallWith(*port, SampleHello());
  EXPECT_TRUE(port->Accept(SampleHello(), After(seconds(20))).ok());
  for (int fd : {bad, good}) close(fd);
}

TEST(HostileTest, ACancelDropsTheUnclaimedLinksOfItsPlans) {
  auto port = OpenPort();
  port->SetKey({.term = 5, .number = 2}, SampleHello().key);
  std::vector<int> sockets;
  for (uint64_t number : {2, 3, 4}) {
    Hello hello = SampleHello();
    hello.epoch.number = number;
    sockets.push_back(CallWith(*port, hello));
  }
  EXPECT_TRUE(Eventually([&] { return port->stats().waiting == 3; }));
  port->Cancel(SampleHello().epoch);
  EXPECT_EQ(port->stats().waiting, 1u);
  EXPECT_TRUE(Closed(sockets[0], seconds(20)) && Closed(sockets[1], seconds(20)));
  EXPECT_FALSE(Closed(sockets[2], milliseconds(0))) << "the next plan is another matter";
  for (int fd : sockets) close(fd);
}

TEST(HostileTest, BeforeAKeyIsKnownNobodyReachesAWorker) {
  auto port = OpenPortWithoutKey();
  bool called = false;
  port->SetBulkHandler("w", [&called](std::unique_ptr<Link>) { called = true; });
  // Term and key are zero where nothing was set.
  const int fd = CallWith(*port, {.role = LinkRole::kBulk, .epoch = {}, .key = {}, .to = "w"});
  EXPECT_TRUE(Closed(fd, seconds(20)));
  EXPECT_EQ(port->stats().refused, 1u);
  close(fd);
  port->SetBulkHandler("w", {});
  EXPECT_FALSE(called);
}

TEST(HostileTest, AHugeHelloIsRefusedByItsHeader) {
  RingPortOptions options;
  options.hello_timeout = seconds(600);
  auto port = OpenPort(options);
  for (uint64_t length : {uint64_t{kMaxHello} + 1, uint64_t{1} << 20, kMaxPayload}) {
    const int fd = Call(*port);
    testing::Put(fd, EncodeHeader({.kind = FrameKind::kHello, .length = length}));
    EXPECT_TRUE(Closed(fd, seconds(20))) << length;
    close(fd);
  }
  // One of the largest size is read.
  const int fd = Call(*port);
  std::vector<std::byte> payload = EncodeHello(SampleHello());
  payload.resize(kMaxHello);
  testing::Put(fd, testing::HelloFrame(payload));
  EXPECT_TRUE(Eventually([&] { return port->stats().refused == 4; })) << "its proof is not for what stands there";
  close(fd);
}

TEST(HostileTest, ChangedHellosAreRefusedOrNeverClaimed) {
  RingPortOptions options;
  options.hello_timeout = milliseconds(500);
  auto port = OpenPort(options);
  std::mt19937 random(4);
  uint64_t whole = 0;
  constexpr uint64_t kCalls = 300;
  for (uint64_t i = 0; i < kCalls; ++i) {
    const int fd = Call(*port);
    ASSERT_GE(fd, 0);
    const auto hello = EncodeHello(SampleHello(), testing::ReadChallenge(fd));
    // With a right checksum, so that the change reaches the hello's reader; every third is damaged on its way instead.
    auto payload = hello;
    const bool on_its_way = i % 3 == 0;
    if (!on_its_way) payload[random() % payload.size()] ^= static_cast<std::byte>(1 + random() % 255);
    if (random() % 4 == 0) payload.resize(random() % payload.size());
    auto bytes = testing::HelloFrame(payload);
    if (on_its_way) bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 + random() % 255);
    whole += payload.size() == hello.size() && !on_its_way;
    testing::Put(fd, bytes);
    if (i % 2 == 0) Closed(fd, milliseconds(20));
    close(fd);
  }
  auto all = [&] { return port->stats().refused + port->stats().accepted >= kCalls; };
  EXPECT_TRUE(Eventually(all)) << port->stats().refused << " " << port->stats().accepted;
  // A changed hello of a later or unknown plan waits for its key, as nobody can check it yet.
  EXPECT_LT(port->stats().accepted, whole / 2);
  EXPECT_GT(port->stats().refused, kCalls / 3);
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      port->Accept({.epoch = {.term = 5, .number = 77}, .hop = 9}, After(milliseconds(10))).status()));
}

TEST(HostileTest, WithoutDescriptorsTheSilentGiveWayAndThePortGoesOn) {
  RingPortOptions options;
  options.hello_timeout = seconds(600);
  auto port = OpenPort(options);
  const int silent = Call(*port), caller = Call(*port);
  EXPECT_TRUE(Eventually([&] { return !Closed(silent, milliseconds(0)); }));
  std::this_thread::sleep_for(milliseconds(100));  // both are taken in
  std::vector<int> late;
  {
    testing::FewDescriptors few(1);
    late.push_back(Call(*port));  // the one that is left
    EXPECT_TRUE(Closed(silent, seconds(20))) << "its descriptor serves the newcomer";
    // Both ends are of this process, and the port may give a descriptor back at any time.
    auto without_descriptors = [&](auto call) {
      return Eventually([&] {
        for (int fd = dup(STDIN_FILENO); fd >= 0; fd = dup(STDIN_FILENO)) late.push_back(fd);
        return absl::IsResourceExhausted(call());
      });
    };
    EXPECT_TRUE(without_descriptors([&] {
      const StatusOr<int> fd = ConnectTcp(port->address(), After(seconds(5)));
      if (fd.ok()) late.push_back(*fd);
      return fd.status();
    }));
    EXPECT_TRUE(without_descriptors([] { return RingPort::Open({.listen = "127.0.0.1:0"}).status(); }));
    EXPECT_TRUE(
        without_descriptors([&] { return port->Dial("127.0.0.1:9", SampleHello(), After(seconds(5))).status(); }));
  }
  late.insert(late.end(), {silent, caller});
  for (int fd : late) close(fd);
  ExpectARingLink(*port);
}

TEST(HostileTest, ALinkWithoutAnEventIsAnError) {
  const auto [client, server] = testing::ConnectedSockets();
  {
    testing::FewDescriptors none(0);
    EXPECT_EQ(MakeTcpLink(server, "it", {}).status().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_TRUE(Closed(client, seconds(20))) << "its socket was closed";
  close(client);
}

}  // namespace
}  // namespace gyre
