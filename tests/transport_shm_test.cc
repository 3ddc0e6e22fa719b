// Shared memory: its layout, peers that lie or die, and how two ports come to it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "base/ring_address.h"
#include "tests/testing/carriers.h"
#include "tests/testing/ring_ports.h"
#include "transport/local_socket.h"
#include "transport/shm_hello.h"

namespace gyre {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::OpenPort;
using testing::SampleHello;

constexpr size_t kBytes = 4096 + 2 * kShmRingBytes;
// docs/wire.md: where ring i has its fields.
constexpr size_t Written(size_t i) { return 1024 * i + 1024; }
constexpr size_t Latency(size_t i) { return 1024 * i + 1792; }
constexpr size_t TakenOut(size_t i) { return 1024 * i + 1152; }

std::pair<Fd, Fd> Sockets() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  return {Fd(ends[0]), Fd(ends[1])};
}

// A dialer's link, and a peer that may write whatever it likes into the memory.
struct Rig {
  Rig() {
    auto [data_here, data_there] = Sockets();
    auto [room_here, room_there] = Sockets();
    data = std::move(data_there);
    room = std::move(room_there);
    ShmBells bells{.data = std::move(data_here), .room = std::move(room_here)};
    link = *MakeFramedLink(*MakeShmStream(ShmSide::kDialer, memory.get(), std::move(bells)), "the peer");
    at = static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0));
  }
  ~Rig() { munmap(at, kBytes); }
  uint64_t Get(size_t offset) const {
    uint64_t value;
    std::memcpy(&value, at + offset, 8);
    return value;
  }
  void Set(size_t offset, uint64_t value) { std::memcpy(at + offset, &value, 8); }

  Fd memory = *MakeShmMemory();
  Fd data, room;
  std::unique_ptr<Link> link;
  std::byte* at = nullptr;
};

Status Put(Link& link, size_t bytes, Deadline deadline = kNoDeadline) {
  const std::vector<std::byte> payload(bytes, std::byte{5});
  const ByteSpan parts[] = {payload};
  return link.Send({.kind = FrameKind::kHidden, .step = StepId{bytes}}, parts, deadline);
}

TEST(ShmTest, TheLayoutIsPinned) {
  Rig rig;
  EXPECT_EQ(std::memcmp(rig.at, "GYRESHM1", 8), 0);
  EXPECT_EQ(rig.Get(8), kShmRingBytes);
  ASSERT_TRUE(Put(*rig.link, 100).ok());
  EXPECT_EQ(rig.Get(Written(0)), 164u);
  EXPECT_EQ(std::memcmp(rig.at + 4096, "GYRE", 4), 0);
  const auto header = EncodeHeader({.kind = FrameKind::kAnswer, .step = StepId{9}});
  std::memcpy(rig.at + 4096 + kShmRingBytes, header.data(), header.size());
  rig.Set(Written(1), 64);
  EXPECT_EQ(rig.link->Recv(kNoDeadline)->header.step, StepId{9});
  EXPECT_EQ(rig.Get(TakenOut(1)), 64u);
  EXPECT_EQ(rig.Get(1024 + 1280), 0u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(rig.link->Recv(After(milliseconds(1))).status()));
  rig.link->Close();
  EXPECT_EQ(rig.Get(1536), 1u);
}

TEST(ShmTest, IndicesBeyondTheRingEndTheLink) {
  for (const uint64_t lie : {uint64_t{kShmRingBytes + 1}, ~uint64_t{2 * kShmRingBytes}, uint64_t{1} << 63}) {
    Rig reads;
    reads.Set(Written(1), lie);
    const Status read = reads.link->Recv(After(seconds(20))).status();
    EXPECT_TRUE(absl::IsDataLoss(read)) << lie;
    EXPECT_THAT(Message(read), HasSubstr("beyond its ring"));
    EXPECT_TRUE(absl::IsUnavailable(Put(*reads.link, 1))) << lie;
    Rig writes;
    writes.Set(TakenOut(0), lie);
    const Status status = Put(*writes.link, 1);
    EXPECT_TRUE(absl::IsUnavailable(status)) << lie;
    EXPECT_THAT(Message(status), HasSubstr("beyond its ring"));
  }
  // An index that goes back makes what was read unread.
  Rig back;
  const auto header = EncodeHeader({.kind = FrameKind::kAnswer});
  std::memcpy(back.at + 4096 + kShmRingBytes, header.data(), header.size());
  back.Set(Written(1), 64);
  ASSERT_TRUE(back.link->Recv(kNoDeadline).ok());
  back.Set(Written(1), 63);
  EXPECT_TRUE(absl::IsDataLoss(back.link->Recv(After(seconds(20))).status()));
}

// A look at what is there makes no system call, so it leaves the bell as it is; a wait empties it.
TEST(ShmTest, ALookLeavesTheBellAlone) {
  Rig rig;
  const std::byte ring[] = {std::byte{1}};
  testing::Put(rig.data.get(), ring);
  const auto unread = [&rig] {
    int bytes = 0;
    return ioctl(rig.data.get(), SIOCOUTQ, &bytes) == 0 ? bytes : -1;
  };
  ASSERT_GT(unread(), 0);
  EXPECT_TRUE(absl::IsDeadlineExceeded(rig.link->Recv(Clock::now()).status()));
  EXPECT_GT(unread(), 0);
  EXPECT_TRUE(absl::IsDeadlineExceeded(rig.link->Recv(After(milliseconds(20))).status()));
  EXPECT_EQ(unread(), 0);
}

// Everything in the memory and on both sockets is random, again and again: frames, errors, and no other end.
TEST(ShmTest, GarbageInTheMemoryIsAnErrorAndNoMore) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    Rig rig;
    for (int i = 0; i < 50; ++i) {
      rig.Set(random() % 512 * 8, random() % 3 == 0 ? random() : random() % (2 * kShmRingBytes));
      const auto header = EncodeHeader({.kind = FrameKind::kAnswer, .length = random() % 9000});
      std::memcpy(rig.at + 4096 + kShmRingBytes + random() % 1000, header.data(), header.size());
      if (random() % 2) testing::Put(rig.data.get(), header);
      if (random() % 2) testing::Put(rig.room.get(), header);
      (void)rig.link->Recv(Clock::now());
      (void)Put(*rig.link, random() % 3000, Clock::now());
    }
  }
}

TEST(ShmTest, OnlySealedMemoryOfThisLayoutIsTaken) {
  auto refused = [](const Fd& memory) {
    auto [data, data2] = Sockets();
    auto [room, room2] = Sockets();
    ShmBells bells{.data = std::move(data), .room = std::move(room)};
    const Status status = MakeShmStream(ShmSide::kDialer, memory.get(), std::move(bells)).status();
    return absl::IsDataLoss(status) ? Message(status) : std::string();
  };
  EXPECT_EQ(refused(*MakeShmMemory()), "");
  auto make = [](size_t bytes, int seals, uint64_t ring_bytes) {
    Fd memory(memfd_create("test", MFD_ALLOW_SEALING | MFD_CLOEXEC));
    const uint64_t head[] = {0x314D485345525947, ring_bytes};
    if (ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0 || pwrite(memory.get(), head, 16, 0) != 16 ||
        fcntl(memory.get(), F_ADD_SEALS, seals) != 0) {
      std::abort();
    }
    return memory;
  };
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  EXPECT_EQ(refused(make(kBytes, seals, kShmRingBytes)), "");
  EXPECT_THAT(refused(make(kBytes - 4096, seals, kShmRingBytes)), HasSubstr("sealed size"));
  EXPECT_THAT(refused(make(kBytes, F_SEAL_GROW, kShmRingBytes)), HasSubstr("sealed size"));
  EXPECT_THAT(refused(make(kBytes, seals, 2 * kShmRingBytes)), HasSubstr("another layout"));
  EXPECT_THAT(refused(Sockets().first), HasSubstr("sealed size"));
}

// Each end sleeps again and again, on data and on room: a byte that is missing once would stop them for good.
TEST(ShmTest, NobodyOversleeps) {
  auto [a, b] = testing::ShmPair(false);
  auto run = [](Link& from, Link& to, uint32_t seed) {
    std::mt19937 random(seed);
    std::thread sender([&from, seed] {
      std::mt19937 pauses(seed + 1);
      for (int i = 0; i < 1500; ++i) {
        if (pauses() % 4 == 0) std::this_thread::sleep_for(microseconds(pauses() % 80));
        ASSERT_TRUE(Put(from, pauses() % 20 == 0 ? 700000 : 3000, After(seconds(60))).ok());
      }
    });
    for (int i = 0; i < 1500; ++i) {
      if (random() % 4 == 0) std::this_thread::sleep_for(microseconds(random() % 80));
      if (random() % 100 == 0) std::this_thread::sleep_for(milliseconds(3));  // the ring becomes full
      ASSERT_TRUE(to.Recv(After(seconds(60))).ok());
    }
    sender.join();
  };
  std::thread other(run, std::ref(*a), std::ref(*b), 1);
  run(*b, *a, 7);
  other.join();
}

// The reader says how long the bytes took that it waited for.
TEST(ShmTest, TheLatencyIsKnownToTheWriter) {
  auto [a, b] = testing::ShmPair(false);
  EXPECT_EQ(a->RoundTrip(), std::nullopt) << "nothing was sent yet";
  for (int i = 0; i < 5; ++i) {
    std::thread sender([&from = *a] {
      std::this_thread::sleep_for(milliseconds(2));
      ASSERT_TRUE(Put(from, 3000, After(seconds(60))).ok());
    });
    ASSERT_TRUE(b->Recv(After(seconds(60))).ok());
    sender.join();
  }
  ASSERT_TRUE(a->RoundTrip().has_value());
  EXPECT_GT(*a->RoundTrip(), Duration{});
  EXPECT_LT(*a->RoundTrip(), seconds(10));
  EXPECT_EQ(b->RoundTrip(), std::nullopt) << "it has sent nothing";
}

TEST(ShmTest, ALatencyThatCanNotBeIsNotKnown) {
  Rig rig;
  for (uint64_t made_up : {uint64_t{0}, UINT64_MAX, uint64_t{1} << 40}) {
    rig.Set(Latency(0), made_up);
    EXPECT_EQ(rig.link->RoundTrip(), std::nullopt);
  }
  rig.Set(Latency(0), 1500);
  EXPECT_EQ(rig.link->RoundTrip(), std::chrono::nanoseconds(3000));
}

// A process that is killed says nothing: its sockets end, and what it wrote before is still received.
TEST(ShmTest, TheDeathOfAPeerIsNoticed) {
  auto [data_here, data_there] = Sockets();
  auto [room_here, room_there] = Sockets();
  const Fd memory = *MakeShmMemory();
  const pid_t child = fork();
  if (child == 0) {
    { Fd close_data(std::move(data_here)), close_room(std::move(room_here)); }
    ShmBells bells{.data = std::move(data_there), .room = std::move(room_there)};
    auto link = *MakeFramedLink(*MakeShmStream(ShmSide::kAcceptor, memory.get(), std::move(bells)), "the parent");
    if (!Put(*link, 1000).ok()) _exit(1);
    for (;;) pause();
  }
  { Fd close_data(std::move(data_there)), close_room(std::move(room_there)); }
  ShmBells bells{.data = std::move(data_here), .room = std::move(room_here)};
  auto link = *MakeFramedLink(*MakeShmStream(ShmSide::kDialer, memory.get(), std::move(bells)), "the child");
  EXPECT_EQ(link->Recv(After(seconds(20)))->header.step, StepId{1000});
  std::thread killer([child] {
    std::this_thread::sleep_for(milliseconds(50));
    kill(child, SIGKILL);
  });
  const Status status = link->Recv(kNoDeadline).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(absl::IsUnavailable(Put(*link, 1)));
  killer.join();
  waitpid(child, nullptr, 0);
}

TEST(ShmTest, ASenderThatWaitsForRoomNoticesTheDeathToo) {
  Rig rig;
  std::thread closer([&rig] {
    std::this_thread::sleep_for(milliseconds(50));
    shutdown(rig.room.get(), SHUT_RDWR);
  });
  Status status;
  while (status.ok()) status = Put(*rig.link, 300000);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  closer.join();
}

std::unique_ptr<RingPort> PortOf(Transport transport) {
  RingPortOptions options;
  options.transport = transport;
  return OpenPort(options);
}

TEST(ShmPortTest, PortsOfOneHostShareMemoryUnlessOneOfThemDoesNot) {
  struct Case {
    Transport dialer, acceptor, expected;
  };
  for (const Case& c : {Case{Transport::kAuto, Transport::kAuto, Transport::kShm},
                        Case{Transport::kShm, Transport::kAuto, Transport::kShm},
                        Case{Transport::kAuto, Transport::kShm, Transport::kShm},
                        Case{Transport::kTcp, Transport::kAuto, Transport::kTcp},
                        Case{Transport::kAuto, Transport::kTcp, Transport::kTcp}}) {
    auto a = PortOf(c.dialer), b = PortOf(c.acceptor);
    auto [out, in] = testing::Connect(*a, *b, SampleHello(), SampleHello());
    ASSERT_TRUE(out.ok() && in.ok()) << out.status() << in.status();
    EXPECT_EQ((*out)->transport(), c.expected);
    EXPECT_EQ((*in)->transport(), c.expected);
    ASSERT_TRUE(Put(**out, 100).ok());
    EXPECT_TRUE((*in)->Recv(After(seconds(20))).ok());
    ASSERT_TRUE(Put(**in, 50).ok());
    EXPECT_TRUE((*out)->Recv(After(seconds(20))).ok());
  }
}

// io_uring is a matter of one end: the other one sees TCP.
TEST(ShmPortTest, EachEndMayUseIoUringForTcp) {
  if (!CheckUring().ok()) GTEST_SKIP() << Message(CheckUring());
  struct Case {
    Transport dialer, acceptor, out, in;
  };
  for (const Case& c : {Case{Transport::kKernel, Transport::kKernel, Transport::kKernel, Transport::kKernel},
                        Case{Transport::kKernel, Transport::kAuto, Transport::kKernel, Transport::kTcp},
                        Case{Transport::kTcp, Transport::kKernel, Transport::kTcp, Transport::kKernel}}) {
    auto a = PortOf(c.dialer), b = PortOf(c.acceptor);
    auto [out, in] = testing::Connect(*a, *b, SampleHello(), SampleHello());
    ASSERT_TRUE(out.ok() && in.ok()) << out.status() << in.status();
    EXPECT_EQ((*out)->transport(), c.out);
    EXPECT_EQ((*in)->transport(), c.in);
    ASSERT_TRUE(Put(**out, 100000).ok());
    EXPECT_TRUE((*in)->Recv(After(seconds(20))).ok());
    ASSERT_TRUE(Put(**in, 100000).ok());
    EXPECT_TRUE((*out)->Recv(After(seconds(20))).ok());
  }
}

TEST(ShmPortTest, BulkLinksShareMemoryToo) {
  auto a = PortOf(Transport::kAuto), b = PortOf(Transport::kAuto);
  std::promise<std::unique_ptr<Link>> arrived;
  b->SetBulkHandler("w2", [&](std::unique_ptr<Link> link) { arrived.set_value(std::move(link)); });
  Hello hello = SampleHello();
  hello.role = LinkRole::kBulk;
  hello.to = "w2";
  auto out = a->Dial(b->address(), hello, After(seconds(20)));
  ASSERT_TRUE(out.ok()) << out.status();
  auto served = arrived.get_future().get();
  EXPECT_EQ(served->transport(), Transport::kShm);
  ASSERT_TRUE(Put(**out, 100).ok());
  EXPECT_TRUE(served->Recv(After(seconds(20))).ok());
  hello.to = "nobody";
  EXPECT_THAT(Message(a->Dial(b->address(), hello, After(seconds(20))).status()), HasSubstr("no worker nobody here"));
  b->SetBulkHandler("w2", {});
}

TEST(ShmPortTest, WhatWasAskedForAndCannotBeHadFailsWithTheReason) {
  auto shm = PortOf(Transport::kShm), tcp = PortOf(Transport::kTcp), both = PortOf(Transport::kAuto);
  const auto why = [](RingPort& from, const std::string& to, Transport preference) {
    Hello hello = SampleHello();
    hello.transport = preference;
    const Status status = from.Dial(to, hello, After(seconds(20))).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    return Message(status);
  };
  EXPECT_THAT(why(*shm, tcp->address(), Transport::kAuto), HasSubstr("it offers no shared memory"));
  EXPECT_THAT(why(*both, tcp->address(), Transport::kShm), HasSubstr("it offers no shared memory"));
  EXPECT_THAT(why(*tcp, shm->address(), Transport::kShm), HasSubstr("the cluster's links go over shm"));
  RingAddress far = *ParseRingAddress(both->address());
  far.shm = std::string(32, 'a') + "@" + std::string(16, 'b');
  EXPECT_THAT(why(*shm, FormatRingAddress(far), Transport::kAuto), HasSubstr("it is on another host"));
  far.shm = std::string(32, 'a') + "@" + HostId();
  EXPECT_THAT(why(*shm, FormatRingAddress(far), Transport::kAuto), HasSubstr("not in this network namespace"));
}

// A dialer that comes the wrong way is refused, and does not end the wait for one that comes the right way.
TEST(ShmPortTest, AnAcceptorRefusesTheCarrierThatItWasToldNotToUse) {
  auto a = PortOf(Transport::kAuto), b = PortOf(Transport::kAuto);
  const std::string tcp_only = TcpPart(b->address());
  Hello expected = SampleHello();
  expected.transport = Transport::kShm;
  auto accepted = std::async(std::launch::async, [&] { return b->Accept(expected, After(seconds(60))); });
  const Status refused = a->Dial(tcp_only, SampleHello(), After(seconds(20))).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("it comes over tcp, this end takes shm only"));
  auto out = a->Dial(b->address(), expected, After(seconds(20)));
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_TRUE(accepted.get().ok());
}

TEST(ShmPortTest, AutoFallsBackToTcp) {
  auto a = PortOf(Transport::kAuto), b = PortOf(Transport::kAuto);
  RingAddress to = *ParseRingAddress(b->address());
  for (const std::string& shm : {std::string(), std::string(32, 'a') + "@" + HostId()}) {
    to.shm = shm;
    auto accepted = std::async(std::launch::async, [&] { return b->Accept(SampleHello(), After(seconds(60))); });
    auto out = a->Dial(FormatRingAddress(to), SampleHello(), After(seconds(20)));
    ASSERT_TRUE(out.ok()) << out.status();
    EXPECT_EQ((*out)->transport(), Transport::kTcp);
    EXPECT_TRUE(accepted.get().ok());
  }
}

TEST(ShmPortTest, AWrongKeyOrModelIsRefusedThereToo) {
  auto a = PortOf(Transport::kAuto), b = PortOf(Transport::kAuto);
  Hello wrong = SampleHello();
  wrong.key[0] ^= 1;
  EXPECT_FALSE(a->Dial(b->address(), wrong, After(milliseconds(500))).ok());
  EXPECT_GE(b->stats().refused, 1u);
  wrong = SampleHello();
  wrong.model_hash = 1;
  auto accepted = std::async(std::launch::async, [&] { return b->Accept(SampleHello(), After(seconds(60))); });
  EXPECT_THAT(Message(a->Dial(b->address(), wrong, After(seconds(20))).status()),
              HasSubstr("the model is another one"));
  EXPECT_TRUE(a->Dial(b->address(), SampleHello(), After(seconds(20))).ok());
  EXPECT_TRUE(accepted.get().ok());
}

TEST(ShmPortTest, ACancelledPlanEndsADialThatNobodyClaims) {
  auto a = PortOf(Transport::kAuto), b = PortOf(Transport::kAuto);
  auto dial =
      std::async(std::launch::async, [&] { return a->Dial(b->address(), SampleHello(), After(seconds(60))).status(); });
  EXPECT_EQ(dial.wait_for(milliseconds(100)), std::future_status::timeout);
  a->Cancel(SampleHello().epoch);
  EXPECT_TRUE(absl::IsCancelled(dial.get()));
}

TEST(ShmPortTest, SilentProcessesOfThisHostCostNoMoreThanUnauthenticatedPeers) {
  RingPortOptions options;
  options.transport = Transport::kAuto;
  options.hello_timeout = milliseconds(100);
  auto port = OpenPort(options);
  const RingAddress at = *ParseRingAddress(port->address());
  std::vector<Fd> silent;
  for (int i = 0; i < 40; ++i) {
    silent.push_back(*ConnectLocal(at.shm.substr(0, 32), After(seconds(20)), {}));
    if (i % 2 == 0) testing::Put(silent.back().get(), testing::HelloFrame({}));
  }
  const Deadline end = After(seconds(20));
  while (port->stats().refused < 40 && Clock::now() < end) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(port->stats().refused, 40u);
}

TEST(ShmPortTest, AnotherUserIsNoPeer) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  auto port = PortOf(Transport::kAuto);
  const std::string name = ParseRingAddress(port->address())->shm.substr(0, 32);
  const pid_t child = fork();
  if (child == 0) {
    if (seteuid(65534) != 0) _exit(2);
    _exit(absl::IsFailedPrecondition(ConnectLocal(name, After(seconds(20)), {}).status()) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "it would have told its key to a process of another user";
  const Deadline end = After(seconds(20));
  while (port->stats().refused == 0 && Clock::now() < end) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(port->stats().refused, 1u) << "a process of another user may not wait here";
}

// Whatever an acceptor answers at a Unix socket is an error of the dial, and no descriptor of it stays open.
TEST(ShmPortTest, StrangeAnswersAreErrors) {
  const auto answer = [](std::span<const std::byte> bytes, std::span<const int> fds) {
    auto [here, there] = Sockets();
    EXPECT_TRUE(SendWithFds(there.get(), bytes, fds).ok());
    shutdown(there.get(), SHUT_WR);
    return SayHelloForMemory(std::move(here), SampleHello(), After(seconds(20)), {}).status();
  };
  Hello said = SampleHello();
  EncodeHello(said, {}, &said.said);
  const auto welcome = HelloFrame(EncodeHelloReply({}, said));
  EXPECT_NE(welcome, HelloFrame(EncodeHelloReply({}, SampleHello())));
  const auto open_files = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  const auto before = open_files();
  EXPECT_TRUE(absl::IsDataLoss(answer(welcome, {})));
  const int one[] = {0};
  EXPECT_TRUE(absl::IsDataLoss(answer(welcome, one)));
  const int many[] = {0, 0, 0, 0, 0, 0, 0};
  EXPECT_TRUE(absl::IsDataLoss(answer(welcome, many)));
  EXPECT_TRUE(absl::IsUnavailable(answer(std::span(welcome).first(30), many)));
  EXPECT_TRUE(absl::IsDataLoss(answer(std::vector<std::byte>(200, std::byte{7}), many)));
  EXPECT_EQ(open_files(), before);
}

TEST(TransportTest, WishesHaveNamesAndContradictOnlyEachOther) {
  for (Transport preference :
       {Transport::kAuto, Transport::kTcp, Transport::kUdp, Transport::kShm, Transport::kKernel}) {
    EXPECT_TRUE(IsTransportPreference(preference));
    EXPECT_EQ(*ParseTransport(TransportName(preference)), preference);
    EXPECT_EQ(*AgreedTransport(Transport::kAuto, preference), preference);
    EXPECT_EQ(*AgreedTransport(preference, Transport::kAuto), preference);
    EXPECT_EQ(*AgreedTransport(preference, preference), preference);
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(AgreedTransport(Transport::kShm, Transport::kTcp).status()));
  EXPECT_FALSE(IsTransportPreference(Transport::kMemory));
  EXPECT_FALSE(IsTransport(static_cast<Transport>(6)));
  EXPECT_THAT(Message(ParseTransport("pigeon").status()), HasSubstr("expected one of auto, tcp, udp, shm, kernel"));
  EXPECT_EQ(TransportName(static_cast<Transport>(77)), "?");
}

TEST(RingAddressTest, SchemesAreReadAndUnauthenticatedPeersAreRefused) {
  const std::string shm = std::string(32, 'a') + "@" + std::string(16, '0');
  for (const RingAddress& a :
       {RingAddress{.tcp = "127.0.0.1:7"}, RingAddress{.tcp = ":7", .shm = shm},
        RingAddress{.tcp = "[::1]:7", .shm = shm}, RingAddress{.tcp = ":7", .udp = 65535},
        RingAddress{.tcp = ":7", .shm = shm, .udp = 9}, RingAddress{.tcp = "h:7", .udp = 9, .only_udp = true}}) {
    const auto back = ParseRingAddress(FormatRingAddress(a));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, a);
  }
  EXPECT_EQ(ParseRingAddress("h:1,quic:h:2,shm:" + shm + ",later")->shm, shm);
  EXPECT_EQ(TcpPart("h:1,shm:" + shm), "h:1");
  for (const std::string& bad :
       {std::string(), std::string(",shm:") + shm, "h:1,shm:" + shm + "0", std::string("h:1,shm:"),
        std::string("h:1,shm:@"), "h:1,shm:" + std::string(32, 'A') + "@" + std::string(16, '0'),
        "h:1," + std::string(2000, 'x'), std::string("h:1 ,x"), std::string("h:1,udp:"), std::string("h:1,udp:0"),
        std::string("h:1,udp:65536"), std::string("h:1,udp:h:2")}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseRingAddress(bad).status())) << bad;
  }
}

}  // namespace
}  // namespace gyre
