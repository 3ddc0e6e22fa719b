// TLS on the ring: who is let in, whose hop it is, and what happens to bytes that were changed on the way.
#include "transport/tls_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "identity/tls_context.h"
#include "tests/testing/identities.h"
#include "tests/testing/ring_ports.h"
#include "tests/testing/tcp_pair.h"
#include "transport/rate_limit.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::KeyAndCertificate;
using testing::SampleHello;
using testing::TestAuthority;

// A client's session with any certificate, or none, that believes whatever server there is.
std::unique_ptr<TlsSession> AnyClient(SSL_CTX* context) {
  return *TlsSession::Make(context, TlsSide::kClient, kRingProtocol,
                           [](X509*) { return StatusOr<Principal>(Principal{}); });
}

SslContextPtr ContextWith(const KeyAndCertificate& own) {
  SslContextPtr context = *MakeTlsContext(TlsSide::kClient, kRingProtocol);
  if (!own.key.empty()) {
    const auto certificate = *ReadCertificates(own.certificate);
    const KeyPtr key = *ReadPrivateKey(own.key);
    EXPECT_TRUE(UseCertificate(context.get(), certificate.front().get(), key.get()).ok());
  }
  return context;
}

class TlsPortTest : public ::testing::Test {
 protected:
  std::unique_ptr<RingPort> PortOf(Role role, const std::string& name) {
    RingPortOptions options;
    options.identity = authority_.IssueOpen(role, name);
    options.hello_timeout = seconds(20);
    return testing::OpenPort(std::move(options));
  }
  // The sample's hello, for a hop between these two members.
  static Hello Between(const std::string& from, const std::string& to) {
    Hello hello = SampleHello();
    hello.from = from;
    hello.to = to;
    return hello;
  }
  // Dials with a session of its own and says the hello; "" if it gets a welcome, else why not.
  std::string Call(const RingPort& port, SSL_CTX* context, const Hello& hello) {
    auto fd = ConnectTcp(port.address(), After(seconds(20)));
    if (!fd.ok()) return Message(fd.status());
    std::unique_ptr<ByteStream> stream = *MakeTcpStream(Fd(*fd));
    auto session = AnyClient(context);
    if (const Status s = DoHandshake(*stream, *session, After(seconds(20))); !s.ok()) return Message(s);
    auto link = *MakeFramedLink(MakeTlsStream(std::move(stream), std::move(session)), "port");
    Hash256 said;
    const auto payload = EncodeHello(hello, {}, &said);
    const ByteSpan parts[] = {payload};
    if (const Status s = link->Send({.kind = FrameKind::kHello}, parts, After(seconds(20))); !s.ok()) return Message(s);
    const auto frame = link->Recv(After(seconds(2)));
    if (absl::IsDeadlineExceeded(frame.status())) return "waits";
    return frame.ok() ? DecodeHelloReply(frame->payload, hello.key, said)->refusal : Message(frame.status());
  }
  TestAuthority authority_;
};

TEST_F(TlsPortTest, MembersMeetAndTheirFramesArrive) {
  auto w1 = PortOf(Role::kWorker, "w1"), w2 = PortOf(Role::kWorker, "w2"), head = PortOf(Role::kCoordinator, "head");
  auto [out, in] = testing::Connect(*w1, *w2, Between("w1", "w2"), Between("w1", "w2"));
  ASSERT_TRUE(out.ok() && in.ok()) << out.status() << in.status();
  const std::vector<std::byte> payload(300'000, std::byte{7});
  const ByteSpan parts[] = {payload};
  std::thread sender(
      [&, &link = *out] { EXPECT_TRUE(link->Send({.kind = FrameKind::kHidden}, parts, After(seconds(20))).ok()); });
  const auto frame = (*in)->Recv(After(seconds(20)));
  sender.join();
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->payload, payload);
  // The coordinator's ends, also of its own member.
  for (const char* name : {"coordinator", "local"}) {
    auto [to, from] = testing::Connect(*head, *w1, Between(name, "w1"), Between(name, "w1"));
    EXPECT_TRUE(to.ok() && from.ok()) << to.status() << from.status();
    auto [back, last] = testing::Connect(*w1, *head, Between("w1", name), Between("w1", name));
    EXPECT_TRUE(back.ok() && last.ok()) << back.status() << last.status();
  }
}

TEST_F(TlsPortTest, TwoWorkersCannotSwapHops) {
  auto w1 = PortOf(Role::kWorker, "w1"), w2 = PortOf(Role::kWorker, "w2"), w3 = PortOf(Role::kWorker, "w3");
  // The plan gives the hop to w1 and w3. w2 knows its key and dials, by its own name and by the other's.
  auto accepted = std::async(std::launch::async, [&] { return w3->Accept(Between("w1", "w3"), After(seconds(20))); });
  const auto own = w2->Dial(w3->address(), Between("w2", "w3"), After(seconds(20)));
  EXPECT_THAT(Message(own.status()), HasSubstr("it comes from w2, the plan gives this hop to w1"));
  const auto false_name = w2->Dial(w3->address(), Between("w1", "w3"), After(seconds(20)));
  EXPECT_FALSE(false_name.ok());
  EXPECT_EQ(w3->stats().refused, 1u) << "its hello comes from w1, its certificate is w2's";
  // Nor is w2 taken for the receiver.
  const auto receiver = w1->Dial(w2->address(), Between("w1", "w3"), After(seconds(20)));
  EXPECT_THAT(Message(receiver.status()),
              HasSubstr("the certificate is that of worker w2, expected that of worker w3"));
  // Nor for the coordinator.
  const auto last = w1->Dial(w2->address(), Between("w1", "coordinator"), After(seconds(20)));
  EXPECT_THAT(Message(last.status()), HasSubstr("expected that of a coordinator"));
  const auto right = w1->Dial(w3->address(), Between("w1", "w3"), After(seconds(20)));
  EXPECT_TRUE(right.ok()) << right.status();
  EXPECT_TRUE(accepted.get().ok());
}

TEST_F(TlsPortTest, PagesAreGivenToMembersOfThePlanOnly) {
  auto w1 = PortOf(Role::kWorker, "w1"), w2 = PortOf(Role::kWorker, "w2");
  std::atomic<int> served{0};
  w1->SetBulkHandler("w1", [&](std::unique_ptr<Link>) { ++served; });
  Hello pull = Between("w2", "w1");
  pull.role = LinkRole::kBulk;
  EXPECT_TRUE(w2->Dial(w1->address(), pull, After(seconds(20))).ok());
  while (served < 1) std::this_thread::sleep_for(milliseconds(1));  // the dialer hears of it first
  Hello wrong = pull;
  wrong.key[0] ^= 1;
  EXPECT_FALSE(w2->Dial(w1->address(), wrong, After(seconds(20))).ok());
  wrong = pull;
  wrong.from = "w3";
  EXPECT_FALSE(w2->Dial(w1->address(), wrong, After(seconds(20))).ok());
  EXPECT_EQ(served, 1);
  // One whose plan is not known here yet waits for it.
  Hello early = pull;
  early.epoch.number += 1;
  early.key[0] ^= 2;
  auto dialed = std::async(std::launch::async, [&] { return w2->Dial(w1->address(), early, After(seconds(20))); });
  while (w1->stats().waiting == 0) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(served, 1);
  w1->SetKey(early.epoch, early.key);
  EXPECT_TRUE(dialed.get().ok());
  while (served < 2) std::this_thread::sleep_for(milliseconds(1));
  // The key of a plan that is long gone opens nothing.
  w1->SetKey({.term = 5, .number = 9}, early.key);
  EXPECT_FALSE(w2->Dial(w1->address(), pull, After(seconds(20))).ok());
  w1->SetBulkHandler("w1", {});
}

TEST_F(TlsPortTest, UnauthenticatedPeersAreRefused) {
  auto w1 = PortOf(Role::kWorker, "w1");
  TestAuthority other;
  const Hello hello = Between("w2", "w1");
  const auto refusal = [&](const KeyAndCertificate& own) {
    const SslContextPtr context = ContextWith(own);
    return Call(*w1, context.get(), hello);
  };
  const std::string good = "URI:gyre://gyre/worker/w2";
  EXPECT_EQ(refusal(authority_.Forge(good)), "waits") << "what the others are compared with";
  // The handshake's own alerts, or the end of the connection where the port looks at the name.
  const auto ended =
      AnyOf(HasSubstr("alert"), HasSubstr("closed the link"), HasSubstr("Connection reset"), HasSubstr("Broken pipe"));
  EXPECT_THAT(refusal({}), ended) << "no certificate";
  EXPECT_THAT(refusal(other.Forge(good)), ended) << "another CA";
  EXPECT_THAT(refusal(authority_.Forge(good, -7200, -3600)), ended) << "expired";
  EXPECT_THAT(refusal(authority_.Forge(good, 3600, 7200)), ended) << "not yet valid";
  EXPECT_THAT(refusal(authority_.Forge("URI:gyre://gyre/client/w2")), ended) << "another role";
  EXPECT_THAT(refusal(authority_.Forge("URI:gyre://gyre/admin/w2")), ended) << "another role";
  EXPECT_THAT(refusal(authority_.Forge("URI:gyre://gyre/coordinator/w2")), ended)
      << "a coordinator under a worker's name";
  EXPECT_THAT(refusal(authority_.Forge("URI:gyre://other/worker/w2")), ended) << "another cluster";
  EXPECT_THAT(refusal(authority_.Forge("DNS:w2")), ended) << "no name of ours";
  // Without TLS, and with TLS for another purpose.
  const int plain = testing::Call(*w1);
  testing::Put(plain, HelloFrame(EncodeHello(hello)));
  char byte = 0;
  EXPECT_LE(recv(plain, &byte, 1, 0), 0);
  close(plain);
  const auto own = authority_.Forge(good);
  SslContextPtr join = *MakeTlsContext(TlsSide::kClient, kJoinProtocol);
  EXPECT_THAT(Call(*w1, join.get(), hello), ended);
}

TEST_F(TlsPortTest, ARevokedWorkerIsRefusedFromTheNextHandshakeOn) {
  RingPortOptions options;
  const auto identity = authority_.IssueOpen(Role::kWorker, "w1");
  options.identity = identity;
  auto w1 = testing::OpenPort(options);
  auto w2 = PortOf(Role::kWorker, "w2");
  auto [out, in] = testing::Connect(*w2, *w1, Between("w2", "w1"), Between("w2", "w1"));
  ASSERT_TRUE(out.ok() && in.ok());
  Authority ca = authority_.Open();
  ASSERT_TRUE(ca.Revoke("w2", std::nullopt).ok());
  ASSERT_TRUE(identity->TakeRevoked(*ca.RevokedPem()).ok());
  EXPECT_FALSE(w2->Dial(w1->address(), Between("w2", "w1"), After(seconds(20))).ok());
  // The dialer may know it before the port has counted it.
  for (int i = 0; i < 500 && w1->stats().refused == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GE(w1->stats().refused, 1u);
}

// Over each carrier that a hello over TLS may choose, whoever of the two dialed; others' links go on.
TEST_F(TlsPortTest, OpenLinksOfARevokedWorkerEndAtOnce) {
  for (const Transport transport : {Transport::kTcp, Transport::kUdp}) {
    RingPortOptions options{.transport = transport};
    const auto identity = authority_.IssueOpen(Role::kWorker, fmt::format("a{}", TransportName(transport)));
    const std::string own = identity->current()->self().name;
    const std::string bad = fmt::format("b{}", TransportName(transport));
    const std::string good = fmt::format("c{}", TransportName(transport));
    options.identity = identity;
    auto a = testing::OpenPort(options);
    options.identity = authority_.IssueOpen(Role::kWorker, bad);
    auto b = testing::OpenPort(options);
    options.identity = authority_.IssueOpen(Role::kWorker, good);
    auto c = testing::OpenPort(options);
    auto [to_a, from_b] = testing::Connect(*b, *a, Between(bad, own), Between(bad, own));
    auto [to_b, from_a] = testing::Connect(*a, *b, Between(own, bad), Between(own, bad));
    auto [to_c, from_a2] = testing::Connect(*a, *c, Between(own, good), Between(own, good));
    ASSERT_TRUE(to_a.ok() && from_b.ok() && to_b.ok() && from_a.ok() && to_c.ok() && from_a2.ok());
    Authority ca = authority_.Open();
    ASSERT_TRUE(ca.Revoke(bad, std::nullopt).ok());
    ASSERT_TRUE(identity->TakeRevoked(*ca.RevokedPem()).ok());
    // Its own ends first, then what the revoked one notices.
    const Deadline soon = After(seconds(10));
    for (Link* link : {from_b->get(), to_b->get(), to_a->get(), from_a->get()}) {
      const Status end = link->Recv(soon).status();
      EXPECT_TRUE(absl::IsUnavailable(end)) << TransportName(transport) << " " << end;
    }
    const ByteSpan nothing[] = {ByteSpan()};
    EXPECT_TRUE((*to_c)->Send({.kind = FrameKind::kHidden}, nothing, After(seconds(10))).ok());
    EXPECT_TRUE((*from_a2)->Recv(After(seconds(10))).ok());
  }
}

// Bytes of a session that one end sends and the other reads, with one of them changed.
TEST(TlsSessionTest, EveryFlippedByteEndsTheLink) {
  TestAuthority authority;
  const auto a = authority.IssueOpen(Role::kWorker, "a"), b = authority.IssueOpen(Role::kWorker, "b");
  const std::string text = "The ring carries what nobody else shall read.";
  const auto bytes = std::as_bytes(std::span(text));
  const auto shake = [&](TlsSession& client, TlsSession& server) {
    std::vector<std::byte> flight;
    for (int i = 0; i < 4; ++i) {
      for (auto [from, to] : {std::pair(&client, &server), std::pair(&server, &client)}) {
        ASSERT_TRUE(from->Handshake().ok());
        flight.clear();
        from->TakeOutput(&flight);
        ASSERT_TRUE(to->Feed(flight).ok());
      }
    }
  };
  size_t length = 1;
  for (size_t at = 0; at <= length; ++at) {
    auto client = *TlsSession::Make(a->current(), TlsSide::kClient),
         server = *TlsSession::Make(b->current(), TlsSide::kServer);
    shake(*client, *server);
    EXPECT_EQ(server->peer().name, "a");
    EXPECT_EQ(client->peer().name, "b");
    ASSERT_TRUE(client->Seal(bytes).ok());
    std::vector<std::byte> sealed, opened(1000);
    client->TakeOutput(&sealed);
    length = sealed.size();
    EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(sealed.data()), length).find("nobody"),
              std::string_view::npos);
    if (at < length) sealed[at] ^= std::byte{1};
    ASSERT_TRUE(server->Feed(sealed).ok());
    const auto n = server->Open(opened);
    if (at == length) {
      EXPECT_EQ(**n, text.size());
    } else {
      EXPECT_FALSE(n.ok() && *n && **n > 0) << "byte " << at;  // a longer record would be waited for
    }
    // Once more, as somebody who recorded it would send it.
    if (at == length) {
      ASSERT_TRUE(server->Feed(sealed).ok());
      EXPECT_FALSE(server->Open(opened).ok());
    }
  }
}

TEST(TlsSessionTest, KeysAreRenewedInBothDirectionsAtOnce) {
  TestAuthority authority;
  const auto identity = authority.IssueOpen(Role::kWorker, "a");
  const TlsSessionOptions few{.records_a_key = 3};
  const auto [left, right] = testing::ConnectedSockets();
  std::unique_ptr<ByteStream> to = *MakeTcpStream(Fd(left)), from = *MakeTcpStream(Fd(right));
  auto client = *TlsSession::Make(identity->current(), TlsSide::kClient, few),
       server = *TlsSession::Make(identity->current(), TlsSide::kServer, few);
  TlsSession &c = *client, &s = *server;
  auto shaken = std::async(std::launch::async, [&] { return DoHandshake(*from, s, After(seconds(20))); });
  ASSERT_TRUE(DoHandshake(*to, c, After(seconds(20))).ok());
  ASSERT_TRUE(shaken.get().ok());
  auto a = *MakeFramedLink(MakeTlsStream(std::move(to), std::move(client)), "b"),
       b = *MakeFramedLink(MakeTlsStream(std::move(from), std::move(server)), "a");
  constexpr int kFrames = 500;
  const std::vector<std::byte> payload(20'000, std::byte{1});
  const auto send = [&](Link& link) {
    const ByteSpan parts[] = {payload};
    for (int i = 0; i < kFrames; ++i)
      ASSERT_TRUE(link.Send({.kind = FrameKind::kHidden}, parts, After(seconds(20))).ok());
  };
  const auto receive = [&](Link& link) {
    for (int i = 0; i < kFrames; ++i) ASSERT_TRUE(link.Recv(After(seconds(20))).ok());
  };
  std::thread t1(send, std::ref(*a)), t2(send, std::ref(*b)), t3(receive, std::ref(*a));
  receive(*b);
  t1.join(), t2.join(), t3.join();
  EXPECT_GE(c.key_updates(), uint64_t{kFrames} / 3);
  EXPECT_GE(s.key_updates(), uint64_t{kFrames} / 3);
}

// Carries the handshake, and counts what is written from then on.
class CountingStream : public ByteStream {
 public:
  explicit CountingStream(std::unique_ptr<ByteStream> inner) : inner_(std::move(inner)) {}
  StatusOr<size_t> Write(std::span<const iovec> parts) override {
    if (room == 0) return inner_->Write(parts);
    size_t bytes = 0;
    for (const iovec& part : parts) bytes += part.iov_len;
    written += bytes;
    return bytes;
  }
  size_t Room() const override { return room; }
  StatusOr<std::optional<size_t>> Read(std::span<std::byte> into) override { return inner_->Read(into); }
  Status Wait(Ready direction, Deadline deadline) override { return inner_->Wait(direction, deadline); }
  void Wake() override { inner_->Wake(); }
  void Close() override { inner_->Close(); }
  Transport transport() const override { return inner_->transport(); }

  size_t room = 0, written = 0;

 private:
  const std::unique_ptr<ByteStream> inner_;
};

TEST(TlsStreamTest, TheRoomIsThatOfTheStreamBelowWithoutTheSeals) {
  TestAuthority authority;
  const auto identity = authority.IssueOpen(Role::kWorker, "a");
  const auto [left, right] = testing::ConnectedSockets();
  auto counting = std::make_unique<CountingStream>(*MakeTcpStream(Fd(left)));
  CountingStream& below = *counting;
  std::unique_ptr<ByteStream> from = *MakeTcpStream(Fd(right));
  auto client = *TlsSession::Make(identity->current(), TlsSide::kClient),
       server = *TlsSession::Make(identity->current(), TlsSide::kServer);
  auto shaken = std::async(std::launch::async, [&, &s = *server] { return DoHandshake(*from, s, After(seconds(20))); });
  ASSERT_TRUE(DoHandshake(below, *client, After(seconds(20))).ok());
  ASSERT_TRUE(shaken.get().ok());
  const auto stream = MakeTlsStream(std::move(counting), std::move(client));
  for (const size_t room : {size_t{100}, size_t{5000}, size_t{20'000}, size_t{1} << 20, size_t{16} << 20}) {
    below.room = room;
    below.written = 0;
    const size_t promised = stream->Room();
    EXPECT_GE(promised + room / 200 + 150, room);
    std::vector<std::byte> bytes(promised, std::byte{1});
    for (size_t sent = 0; sent < promised;) {
      const iovec part{.iov_base = bytes.data() + sent, .iov_len = promised - sent};
      sent += *stream->Write({&part, 1});
    }
    EXPECT_TRUE(*stream->Flush());
    EXPECT_LE(below.written, room);
  }
}

TEST(AddressBudgetTest, AnAddressHasItsShareAndAllHaveOne) {
  AddressBudget budget({.per_second = 10, .burst = 20, .address_per_second = 2, .address_burst = 4});
  Deadline now{};
  const auto take = [&](const std::string& host, int n) {
    int taken = 0;
    for (int i = 0; i < n; ++i) taken += budget.Take(host, now);
    return taken;
  };
  now += seconds(1);
  EXPECT_EQ(take("10.0.0.1", 100), 4);
  EXPECT_EQ(take("10.0.0.2", 100), 4);
  now += seconds(1);
  EXPECT_EQ(take("10.0.0.1", 100), 2);
  // A /64 of IPv6 is one address.
  EXPECT_EQ(take("fd00::1", 3) + take("fd00::2", 3), 4);
  EXPECT_EQ(take("fd00:0:0:1::2", 3), 3);
  EXPECT_EQ(AddressGroup("::ffff:10.0.0.7"), "10.0.0.7");
  EXPECT_EQ(AddressGroup("fe80::1%lo"), AddressGroup("fe80::2%lo"));
  int taken = 0;
  for (int i = 0; i < 1000; ++i) taken += take(fmt::format("10.1.{}.{}", i / 250, i % 250), 1);
  EXPECT_LE(taken, 20);
  EXPECT_LE(budget.hosts(), 60u);
  for (int i = 0; i < 1000; ++i) {
    now += milliseconds(100);
    take(fmt::format("10.2.{}.{}", i / 250, i % 250), 1);
  }
  EXPECT_LE(budget.hosts(), 60u) << "who was long away is forgotten";
}

}  // namespace
}  // namespace gyre
