// Hops between processes: who may claim which.
#include "transport/ring_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <thread>

#include "tests/testing/recording_relay.h"
#include "tests/testing/ring_ports.h"
#include "tests/testing/tcp_pair.h"
#include "transport/plan_key.h"
#include "transport/unclaimed_links.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

using testing::OpenPort;
using testing::SampleHello;

TEST(HelloTest, RoundTripsAndRefusesEveryCut) {
  Hello hello = SampleHello();
  hello.to = "w2";
  const auto bytes = EncodeHello(hello);
  Hello back = *DecodeHello(bytes);
  EXPECT_TRUE(Proves(back, hello.key));
  back.key = hello.key;
  back.proof = {};
  back.said = {};
  EXPECT_EQ(back, hello);
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(DecodeHello(std::span(bytes).first(n)).ok()) << n;
  auto longer = bytes;
  longer.resize(longer.size() + 5);
  EXPECT_TRUE(DecodeHello(longer).ok()) << "a later protocol may put more behind it";
  hello.from = "a\nb\x1b[31m";
  EXPECT_EQ(DecodeHello(EncodeHello(hello))->from, "a?b?[31m") << "names reach logs";
  auto role = bytes;
  role[2] = std::byte{9};
  EXPECT_FALSE(DecodeHello(role).ok());
  const HelloReply reply{.refusal = "no"};
  const auto answer = EncodeHelloReply(reply, hello);
  EXPECT_EQ(*DecodeHelloReply(answer, hello.key, hello.said), reply);
  for (size_t n = 0; n < answer.size(); ++n) {
    EXPECT_FALSE(DecodeHelloReply(std::span(answer).first(n), hello.key, hello.said).ok());
  }
  const auto challenge = EncodeChallenge({std::byte{7}});
  EXPECT_EQ(*DecodeChallenge(challenge), HelloChallenge{std::byte{7}});
  for (size_t n = 0; n < challenge.size(); ++n) EXPECT_FALSE(DecodeChallenge(std::span(challenge).first(n)).ok());
}

bool Contains(std::span<const std::byte> bytes, const RingKey& key) {
  const auto needle = std::as_bytes(std::span(key));
  return std::search(bytes.begin(), bytes.end(), needle.begin(), needle.end()) != bytes.end();
}

TEST(HelloTest, AProofIsForOneHelloOneConnectionAndOneKey) {
  Hello hello = SampleHello();
  hello.to = "w2";
  const HelloChallenge asked{std::byte{1}, std::byte{2}};
  Hash256 said;
  const auto bytes = EncodeHello(hello, asked, &said);
  EXPECT_FALSE(Contains(bytes, hello.key));
  EXPECT_TRUE(Proves(*DecodeHello(bytes, asked), hello.key));
  EXPECT_FALSE(Proves(*DecodeHello(bytes, {std::byte{1}, std::byte{3}}), hello.key)) << "another connection";
  RingKey other = hello.key;
  other[15] ^= 1;
  EXPECT_FALSE(Proves(*DecodeHello(bytes, asked), other));
  for (size_t i = 0; i < 8 * bytes.size(); ++i) {
    auto changed = bytes;
    changed[i / 8] ^= std::byte{1} << (i % 8);
    const auto decoded = DecodeHello(changed, asked);
    EXPECT_FALSE(decoded.ok() && Proves(*decoded, hello.key)) << "bit " << i;
  }
  // And the answer is for this hello.
  Hello taken = *DecodeHello(bytes, asked);
  EXPECT_EQ(taken.said, said);
  EXPECT_FALSE(DecodeHelloReply(EncodeHelloReply({}, taken), hello.key, said)->proven) << "the key is not known there";
  taken.key = hello.key;
  const auto welcome = EncodeHelloReply({}, taken);
  EXPECT_FALSE(Contains(welcome, hello.key));
  EXPECT_TRUE(DecodeHelloReply(welcome, hello.key, said)->proven);
  EXPECT_FALSE(DecodeHelloReply(welcome, other, said)->proven);
  EXPECT_FALSE(DecodeHelloReply(welcome, hello.key, Hash256{})->proven) << "another hello";
  HelloReply refused{.refusal = "no"};
  EXPECT_FALSE(DecodeHelloReply(EncodeHelloReply(refused, taken), hello.key, said)->proven);
  EXPECT_NE(HelloKey(hello.key), UdpKey(hello.key));
}

TEST(HelloTest, TheTypeOfActivationsIsAByteThatOlderVersionsLeaveZero) {
  for (WireType type : {WireType::kF32, WireType::kF16, WireType::kQ8}) {
    Hello hello = SampleHello();
    hello.wire = type;
    auto bytes = EncodeHello(hello);
    EXPECT_EQ(bytes[3], static_cast<std::byte>(type));
    EXPECT_EQ(DecodeHello(bytes)->wire, type);
    bytes[3] = std::byte{0};
    EXPECT_EQ(DecodeHello(bytes)->wire, WireType::kF32);
    for (int other : {1, 5, 9, 255}) {
      bytes[3] = static_cast<std::byte>(other);
      EXPECT_THAT(Message(DecodeHello(bytes).status()), HasSubstr("expected f32, f16 or q8"));
    }
    hello.role = LinkRole::kBulk;
    EXPECT_EQ(EncodeHello(hello)[3], std::byte{0}) << "no activations travel there";
  }
}

using testing::Connect;

void ExpectCarries(Link& a, Link& b) {
  const std::byte payload[] = {std::byte{1}, std::byte{2}};
  const ByteSpan parts[] = {payload};
  ASSERT_TRUE(a.Send({.kind = FrameKind::kTokens, .step = StepId{9}}, parts, After(seconds(1))).ok());
  const auto frame = b.Recv(After(seconds(1)));
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->header.step, StepId{9});
  EXPECT_EQ(frame->payload.size(), 2u);
}

TEST(RingPortTest, AHopWithinTheProcessStaysInMemory) {
  auto port = RingPort::Open({});
  ASSERT_TRUE(port.ok());
  EXPECT_EQ((*port)->address(), "");
  auto out = (*port)->Dial("", SampleHello(), After(seconds(1)));
  auto in = (*port)->Accept(SampleHello(), After(seconds(1)));
  ASSERT_TRUE(out.ok() && in.ok());
  ExpectCarries(**out, **in);
}

TEST(RingPortTest, AHopBetweenProcessesIsClaimedByItsName) {
  auto a = OpenPort(), b = OpenPort();
  Hello second = SampleHello();
  second.hop = 2;
  // Dialed before anybody waits for it, and in the other order.
  auto early = std::async(std::launch::async, [&] { return a->Dial(b->address(), second, After(seconds(5))); });
  auto [out, in] = Connect(*a, *b, SampleHello(), SampleHello());
  ASSERT_TRUE(out.ok() && in.ok()) << out.status() << in.status();
  auto in2 = b->Accept(second, After(seconds(5)));
  auto out2 = early.get();
  ASSERT_TRUE(in2.ok() && out2.ok());
  ExpectCarries(**out, **in);
  ExpectCarries(**out2, **in2);
}

TEST(RingPortTest, AnotherKeyOrModelIsRefusedAndTheRightOneStillComes) {
  auto a = OpenPort(), b = OpenPort();
  Hello wrong = SampleHello();
  wrong.key[3] ^= 1;
  EXPECT_FALSE(a->Dial(b->address(), wrong, After(seconds(2))).ok()) << "refused before it waits";
  Hello other = SampleHello();
  other.model_hash = 78;
  auto refused = std::async(std::launch::async, [&] { return a->Dial(b->address(), other, After(seconds(5))); });
  while (b->stats().waiting == 0) std::this_thread::sleep_for(milliseconds(1));
  auto [out, in] = Connect(*a, *b, SampleHello(), SampleHello());
  EXPECT_TRUE(out.ok() && in.ok()) << out.status() << in.status();
  const Status status = refused.get().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("model"));
  EXPECT_GE(b->stats().refused, 1u);
}

TEST(RingPortTest, AnotherTypeOfActivationsIsRefusedWithBothNames) {
  auto a = OpenPort(), b = OpenPort();
  Hello expected = SampleHello(), other = SampleHello();
  expected.wire = WireType::kQ8;
  auto refused = std::async(std::launch::async, [&] { return a->Dial(b->address(), other, After(seconds(5))); });
  while (b->stats().waiting == 0) std::this_thread::sleep_for(milliseconds(1));
  auto [out, in] = Connect(*a, *b, expected, expected);
  ASSERT_TRUE(out.ok() && in.ok()) << out.status() << in.status();
  ExpectCarries(**out, **in);
  const Status status = refused.get().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(Message(status),
              HasSubstr("hop 1 of plan 3: its activations would come as f32, the plan's are q8 (--wire)"));
}

TEST(RingPortTest, WaitsEndByDeadlineAndByCancel) {
  auto a = OpenPort(), b = OpenPort();
  EXPECT_TRUE(absl::IsDeadlineExceeded(b->Accept(SampleHello(), After(milliseconds(20))).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(a->Dial(b->address(), SampleHello(), After(milliseconds(50))).status()));
  std::thread canceller([&] {
    std::this_thread::sleep_for(milliseconds(20));
    a->Cancel({.term = 5, .number = 3});
    b->Cancel({.term = 5, .number = 3});
  });
  EXPECT_TRUE(absl::IsCancelled(b->Accept(SampleHello(), After(seconds(20))).status()));
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(a->Dial(b->address(), SampleHello(), After(seconds(20))).status()));
  Hello next = SampleHello();
  next.epoch.number = 4;
  auto [out, in] = Connect(*a, *b, next, next);
  EXPECT_TRUE(out.ok() && in.ok()) << "the next plan is another matter";
  EXPECT_TRUE(absl::IsUnavailable(a->Dial("127.0.0.1:1", next, After(seconds(2))).status()));
  EXPECT_FALSE(a->Dial("nonsense", next, After(seconds(2))).ok());
}

// The plan of a coordinator that restarted is given up, too, while a wait of the one before is still on its way.
TEST(RingPortTest, APlanStaysCancelledWhenOneOfALaterTermIs) {
  auto port = OpenPort();
  const Hello hello = SampleHello();
  port->Cancel(hello.epoch);
  port->Cancel({.term = hello.epoch.term + 1, .number = 1});
  EXPECT_TRUE(absl::IsCancelled(port->Accept(hello, After(seconds(5))).status()));
}

TEST(RingPortTest, ALinkOfAnotherPlanIsNotClaimed) {
  auto a = OpenPort(), b = OpenPort();
  Hello next = SampleHello();
  next.epoch.number = 4;
  auto dialed = std::async(std::launch::async, [&] { return a->Dial(b->address(), next, After(seconds(20))); });
  while (b->stats().waiting == 0) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(b->Accept(SampleHello(), After(milliseconds(50))).status()));
  EXPECT_EQ(b->stats().waiting, 1u);
  auto in = b->Accept(next, After(seconds(20)));
  auto out = dialed.get();
  ASSERT_TRUE(in.ok() && out.ok()) << in.status() << out.status();
  ExpectCarries(**out, **in);
}

TEST(RingPortTest, BulkLinksReachTheWorkerTheyName) {
  auto a = OpenPort(), b = OpenPort();
  std::promise<std::unique_ptr<Link>> arrived;
  b->SetBulkHandler("w2", [&](std::unique_ptr<Link> link) { arrived.set_value(std::move(link)); });
  Hello hello = SampleHello();
  hello.role = LinkRole::kBulk;
  hello.to = "nobody";
  EXPECT_THAT(Message(a->Dial(b->address(), hello, After(seconds(5))).status()), HasSubstr("no worker nobody"));
  hello.to = "w2";
  auto out = a->Dial(b->address(), hello, After(seconds(5)));
  ASSERT_TRUE(out.ok()) << out.status();
  auto in = arrived.get_future().get();
  ExpectCarries(**out, *in);
  hello.epoch.term = 4;
  EXPECT_FALSE(a->Dial(b->address(), hello, After(seconds(5))).ok()) << "an old term";
  b->SetBulkHandler("w2", {});
}

// A replica dials its source while the plan serves, after other plans were given up.
TEST(RingPortTest, BulkLinksOfThePlanThatServesAreAlwaysTaken) {
  auto a = testing::OpenPortWithoutKey(), b = testing::OpenPortWithoutKey();
  Hello hello = SampleHello();
  hello.role = LinkRole::kBulk;
  hello.to = "w2";
  Epoch later = hello.epoch;
  for (const auto& port : {a.get(), b.get()}) {
    port->SetKey(hello.epoch, hello.key);
    port->Serves(hello.epoch);
    for (int i = 0; i < 3; ++i) {
      ++later.number;
      port->SetKey(later, {9});
      port->Cancel(later);
    }
  }
  std::promise<std::unique_ptr<Link>> arrived;
  b->SetBulkHandler("w2", [&](std::unique_ptr<Link> link) { arrived.set_value(std::move(link)); });
  auto out = a->Dial(b->address(), hello, After(seconds(5)));
  ASSERT_TRUE(out.ok()) << out.status();
  auto in = arrived.get_future().get();
  ExpectCarries(**out, *in);
  Hello wrong = hello;
  wrong.key = {8};
  EXPECT_FALSE(a->Dial(b->address(), wrong, After(seconds(5))).ok());
  hello.role = LinkRole::kRing;
  EXPECT_TRUE(absl::IsCancelled(a->Dial(b->address(), hello, After(seconds(5))).status())) << "but no hop";
  hello.role = LinkRole::kBulk;
  for (const auto& port : {a.get(), b.get()}) {
    port->SetKey(later, {9});
    ++later.number;
    port->SetKey(later, {9});
    port->Serves(later);
  }
  EXPECT_TRUE(absl::IsCancelled(a->Dial(b->address(), hello, After(seconds(5))).status())) << "until another serves";
  b->SetBulkHandler("w2", {});
}

// A link whose hello came in, and the end of who dials it.
std::pair<UnclaimedLink, Fd> Arrived(LinkRole role, Epoch epoch, const RingKey& key = SampleHello().key) {
  Hello hello = SampleHello();
  hello.role = role;
  hello.epoch = epoch;
  hello.key = key;
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  return {UnclaimedLink{.hello = *DecodeHello(EncodeHello(hello)), .connection = {.socket = Fd(ends[0])}}, Fd(ends[1])};
}

// A plan that is over has no key here any more, so nobody who comes for it can have a wrong one.
TEST(UnclaimedLinksTest, WhoComesForAPlanThatIsOverIsLateAndNoUnauthenticatedPeer) {
  std::vector<std::string> late, unauthenticated;
  UnclaimedLinks links({.timeout = seconds(60),
                        .unverified = {},
                        .max_verified = 8,
                        .on_refused = [&](const Caller&, const std::string& why, bool is_late) {
                          (is_late ? late : unauthenticated).push_back(why);
                        }});
  const auto at = [](uint64_t number) { return Epoch{.term = 5, .number = number}; };
  const RingKey key = SampleHello().key;
  links.SetKey(at(2), key);
  std::vector<Fd> dialers;
  const auto comes = [&](Epoch epoch, const RingKey& with = SampleHello().key) {
    for (const LinkRole role : {LinkRole::kRing, LinkRole::kBulk}) {
      auto [link, dialer] = Arrived(role, epoch, with);
      dialers.push_back(std::move(dialer));
      links.Add(&link);
    }
  };
  // It waits for plan 3, which is given up before this process hears of it.
  comes(at(3));
  EXPECT_EQ(links.size(), 2u);
  links.SetKey(at(4), key);
  EXPECT_EQ(links.size(), 0u);
  EXPECT_EQ(late.size(), 2u);
  // A plan that was cancelled, and one whose key had to go.
  links.Cancel(at(4));
  comes(at(4));
  links.SetKey(at(5), key);
  comes(at(2));
  EXPECT_EQ(late.size(), 6u);
  // A link that the last term's key let in.
  auto [old, dials] = Arrived(LinkRole::kRing, at(5));
  EXPECT_EQ(links.Add(&old), Arrival::kWaits);
  links.SetKey({.term = 6, .number = 1}, key);
  EXPECT_EQ(late.size(), 7u);
  EXPECT_THAT(late, ::testing::Each("its hello has a plan that is over"));
  EXPECT_TRUE(unauthenticated.empty());
  RingKey wrong = key;
  wrong[0] ^= 1;
  comes({.term = 6, .number = 1}, wrong);
  EXPECT_EQ(unauthenticated, std::vector<std::string>(2, "its hello has a wrong key"));
  EXPECT_EQ(late.size(), 7u);
}

// A bulk link whose hello comes just before its plan's key waits for it; one that comes just after never does, as
// nobody would look for it any more. Whichever comes first, one of the two calls hands the link on.
TEST(UnclaimedLinksTest, ABulkLinkIsHandedOnWheneverItsKeyComes) {
  UnclaimedLinks links({.timeout = seconds(60), .unverified = {}, .max_verified = 8, .on_refused = {}});
  const auto bulk = [](uint64_t plan) {
    return Arrived(LinkRole::kBulk, {.term = SampleHello().epoch.term, .number = plan});
  };
  const Hello sample = SampleHello();
  links.SetKey({sample.epoch.term, 1}, sample.key);
  auto [before, dials_before] = bulk(2);
  EXPECT_EQ(links.Add(&before), Arrival::kWaits);
  const auto found = links.SetKey({sample.epoch.term, 2}, sample.key);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].hello.key, sample.key);
  auto [after, dials_after] = bulk(2);
  EXPECT_EQ(links.Add(&after), Arrival::kReady);
  EXPECT_TRUE(after.connection.socket.ok()) << "it is still the caller's";
  EXPECT_EQ(after.hello.key, sample.key);
  EXPECT_EQ(links.size(), 0u) << "none waits for somebody who claims it";
}

TEST(RingPortTest, AKeyGoesWithItsPlan) {
  auto port = testing::OpenPortWithoutKey();
  EXPECT_EQ(port->stats().keys, 0u);
  const auto at = [](uint64_t number) { return Epoch{.term = 5, .number = number}; };
  port->SetKey(at(3), {1});
  port->SetKey(at(4), {2});
  EXPECT_EQ(port->stats().keys, 2u) << "of the running plan, and of the prepared one";
  port->SetKey(at(5), {3});
  EXPECT_EQ(port->stats().keys, 2u);
  port->Cancel(at(4));
  EXPECT_EQ(port->stats().keys, 1u);
  port->Cancel(at(5));
  EXPECT_EQ(port->stats().keys, 0u);
  // One of a plan that is gone is refused, one of a plan that may come waits.
  const auto refused = port->stats().refused;
  Hello gone = SampleHello(), comes = SampleHello();
  gone.key = {3};
  gone.epoch = at(5);
  comes.epoch = at(6);
  auto other = OpenPort();
  EXPECT_FALSE(other->Dial(port->address(), gone, After(seconds(5))).ok());
  EXPECT_GE(port->stats().refused + port->stats().waiting, refused);
  auto dialed = std::async(std::launch::async, [&] { return other->Dial(port->address(), comes, After(seconds(20))); });
  while (port->stats().waiting == 0) std::this_thread::sleep_for(milliseconds(1));
  port->SetKey(at(6), comes.key);
  EXPECT_TRUE(port->Accept(comes, After(seconds(20))).ok());
  EXPECT_TRUE(dialed.get().ok());
  port->SetKey({.term = 6, .number = 1}, {9});
  EXPECT_EQ(port->stats().keys, 1u) << "those of another term go";
}

// A listener opens no other link with what it hears of one.
TEST(RingPortTest, AListenerCanNotUseWhatItHears) {
  auto a = OpenPort(), b = OpenPort();
  testing::RecordingRelay relay(b->address());
  auto accepted = std::async(std::launch::async, [&] { return b->Accept(SampleHello(), After(seconds(20))); });
  auto out = a->Dial(relay.address(), SampleHello(), After(seconds(20)));
  ASSERT_TRUE(out.ok()) << out.status();
  ASSERT_TRUE(accepted.get().ok());
  const std::string heard = relay.Recorded();
  EXPECT_GT(heard.size(), 200u);
  EXPECT_FALSE(Contains(std::as_bytes(std::span(heard)), SampleHello().key));
  const Hash256 hello_key = HelloKey(SampleHello().key);
  EXPECT_EQ(heard.find(std::string(reinterpret_cast<const char*>(hello_key.data()), 16)), std::string::npos);
  // Its hello, which comes after the challenge of another connection.
  const size_t begin = heard.find("GYRE", 1);
  ASSERT_NE(begin, std::string::npos);
  const int fd = testing::Call(*b);
  testing::ReadChallenge(fd);
  const auto refused = b->stats().refused;
  testing::Put(fd, std::as_bytes(std::span(heard)).subspan(begin));
  for (const Deadline end = After(seconds(20)); b->stats().refused == refused && Clock::now() < end;) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(b->stats().refused, refused + 1);
  EXPECT_EQ(b->stats().waiting, 0u);
  close(fd);
}

// A process that took the address of a worker that has gone gets no activations.
TEST(RingPortTest, AnAcceptorWithoutTheKeyGetsNoFrames) {
  auto a = OpenPort();
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(listen(listener, 4), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size), 0);
  std::thread impostor([&] {
    const int fd = accept(listener, nullptr, nullptr);
    testing::Put(fd, HelloFrame(EncodeChallenge({std::byte{5}})));
    std::byte bytes[256];
    (void)!recv(fd, bytes, sizeof bytes, 0);
    testing::Put(fd, HelloFrame(EncodeHelloReply({}, SampleHello())));  // for another hello, as the key alone would be
    (void)!recv(fd, bytes, sizeof bytes, 0);
    close(fd);
  });
  const auto out = a->Dial(fmt::format("127.0.0.1:{}", ntohs(at.sin_port)), SampleHello(), After(seconds(20)));
  EXPECT_THAT(Message(out.status()), HasSubstr("welcomes hop 1 of plan 3, but does not know its key"));
  impostor.join();
  close(listener);
}

TEST(HostPortTest, ParsesAndRefuses) {
  EXPECT_EQ(ParseHostPort("a.b:70")->port, 70);
  EXPECT_EQ(ParseHostPort("[::1]:70")->host, "::1");
  EXPECT_EQ(FormatHostPort("::1", 70), "[::1]:70");
  for (const char* bad : {"", "a", "a:", ":1", "a:x", "a:70000", "a:-1", "::1:70", "a:1 "})
    EXPECT_FALSE(ParseHostPort(bad).ok()) << bad;
  EXPECT_TRUE(IsLoopback("localhost") && IsLoopback("127.0.0.5") && IsLoopback("::1"));
  EXPECT_FALSE(IsLoopback("0.0.0.0") || IsLoopback("10.0.0.1") || IsLoopback("example.com") || IsLoopback("::"));
}

// A peer that stands still within a frame, or lies about one.
TEST(TcpLinkTest, HalfFramesHugeLengthsAndWrongChecksumsEndTheLink) {
  auto send = [](std::span<const std::byte> bytes, const TcpOptions& options) {
    const auto [client, server] = testing::ConnectedSockets();
    auto link = *MakeTcpLink(server, "the client", options);
    (void)!write(client, bytes.data(), bytes.size());
    const Status status = link->Recv(After(seconds(5))).status();
    close(client);
    return status;
  };
  TcpOptions options;
  options.silence = milliseconds(50);
  options.max_payload = 1000;
  const FrameHeader header{.kind = FrameKind::kTokens, .length = 10};
  const auto good = EncodeHeader(header);
  EXPECT_THAT(Message(send(std::span(good).first(20), options)), HasSubstr("stands still"));
  EXPECT_THAT(Message(send(good, options)), HasSubstr("stands still"));
  std::vector<std::byte> whole(good.begin(), good.end());
  whole.resize(whole.size() + 10, std::byte{1});
  EXPECT_THAT(Message(send(whole, options)), HasSubstr("checksum"));
  const auto huge = EncodeHeader({.kind = FrameKind::kTokens, .length = 1001});
  EXPECT_TRUE(absl::IsDataLoss(send(huge, options)));
  const std::vector<std::byte> noise(200, std::byte{'x'});
  EXPECT_TRUE(absl::IsDataLoss(send(noise, options)));
}

}  // namespace
}  // namespace gyre
