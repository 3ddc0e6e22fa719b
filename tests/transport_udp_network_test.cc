// UDP links over a simulated network: every frame exactly once and in order, whatever the network does. The share of
// the link's capacity that was reached is printed. GYRE_UDP_FRAMES says how many frames; a million in the slow test.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "fmt/core.h"
#include "tests/testing/udp_network.h"
#include "transport/frame.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::PacketPath;
using testing::UdpNetwork;

uint64_t Frames() {
  const char* text = std::getenv("GYRE_UDP_FRAMES");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 30000;
}

const std::vector<std::byte>& Noise() {
  static const std::vector<std::byte> noise = [] {
    std::mt19937_64 random(7);
    std::vector<std::byte> bytes(1 << 16);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    return bytes;
  }();
  return noise;
}

// Frame i has a length and bytes that only i decides.
ByteSpan PayloadOf(uint64_t i) {
  const uint64_t h = i * 0x9E3779B97F4A7C15;
  return ByteSpan(Noise()).subspan((h >> 20) % 30000, (h >> 40) % 1200);
}

class Writer {
 public:
  explicit Writer(uint64_t frames) : frames_(frames) {}
  bool done() const { return number_ == frames_ && at_ == bytes_.size(); }
  void Write(UdpCore& core, Deadline now) {
    for (;;) {
      if (at_ == bytes_.size()) {
        if (number_ == frames_) return;
        const ByteSpan payload = PayloadOf(number_);
        const auto head = EncodeHeader({.kind = FrameKind::kHidden, .step = StepId{number_}, .length = payload.size()});
        bytes_.assign(head.begin(), head.end());
        bytes_.insert(bytes_.end(), payload.begin(), payload.end());
        at_ = 0;
        ++number_;
      }
      const iovec part[] = {{bytes_.data() + at_, bytes_.size() - at_}};
      const auto n = core.Write(part, now);
      ASSERT_TRUE(n.ok()) << n.status();
      at_ += *n;
      total_ += *n;
      if (*n == 0) return;
    }
  }
  uint64_t total() const { return total_; }

 private:
  const uint64_t frames_;
  uint64_t number_ = 0, total_ = 0;
  std::vector<std::byte> bytes_;
  size_t at_ = 0;
};

class Reader {
 public:
  uint64_t frames() const { return number_; }
  bool ended() const { return ended_; }
  void Read(UdpCore& core, size_t most = ~size_t{0}) {
    while (most > 0) {
      const size_t before = bytes_.size();
      bytes_.resize(before + std::min<size_t>(most, 1 << 16));
      const auto n = core.Read(std::span(bytes_).subspan(before));
      ASSERT_TRUE(n.ok()) << n.status();
      bytes_.resize(before + n->value_or(0));
      ended_ = *n == size_t{0};
      if (n->value_or(0) == 0) break;
      most -= **n;
      Check();
    }
  }

 private:
  void Check() {
    size_t at = 0;
    while (bytes_.size() - at >= kFrameHeaderBytes) {
      const auto header = DecodeHeader(std::span(bytes_).subspan(at, kFrameHeaderBytes), kMaxPayload);
      ASSERT_TRUE(header.ok()) << header.status();
      ASSERT_EQ(header->step, StepId{number_});
      if (bytes_.size() - at - kFrameHeaderBytes < header->length) break;
      const ByteSpan expected = PayloadOf(number_);
      ASSERT_EQ(header->length, expected.size());
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), bytes_.begin() + at + kFrameHeaderBytes));
      at += kFrameHeaderBytes + header->length;
      ++number_;
    }
    bytes_.erase(bytes_.begin(), bytes_.begin() + at);
  }
  uint64_t number_ = 0;
  std::vector<std::byte> bytes_;
  bool ended_ = false;
};

struct Scenario {
  const char* name;
  PacketPath path;
  double least_share;  // of the capacity that loss leaves
};

class UdpNetworkTest : public ::testing::TestWithParam<Scenario> {};

constexpr double kHundredMbit = 12.5e6;

std::vector<Scenario> Scenarios() {
  const auto ms = [](int n) { return milliseconds(n); };
  std::vector<Scenario> all = {
      {"Plain", {.delay = ms(1)}, 0.85},
      {"NoDelay", {}, 0.85},
      {"Delay20", {.delay = ms(10)}, 0.8},
      {"Delay200", {.delay = ms(100)}, 0.4},
      {"Loss1", {.delay = ms(10), .loss = 0.01}, 0.7},
      {"Loss5", {.delay = ms(10), .loss = 0.05}, 0.6},
      {"Loss10", {.delay = ms(10), .loss = 0.1}, 0.6},
      {"Loss30", {.delay = ms(10), .loss = 0.3}, 0.4},
      {"Bursts", {.delay = ms(10), .burst = 0.002, .burst_length = 30}, 0.6},
      {"Reorder", {.delay = ms(10), .jitter = ms(5)}, 0.7},
      {"Duplicates", {.delay = ms(10), .duplicate = 0.2}, 0.7},
      {"Flips", {.delay = ms(10), .flip = 0.02}, 0.7},
      {"ShortQueue", {.queue = 60000, .delay = ms(10)}, 0.6},
      {"All",
       {.delay = ms(10),
        .jitter = ms(3),
        .loss = 0.05,
        .duplicate = 0.05,
        .flip = 0.01,
        .burst = 0.001,
        .burst_length = 10},
       0.4},
      {"Loss5Delay200", {.delay = ms(100), .loss = 0.05}, 0.25},
      {"Slow", {.bytes_per_second = 1.25e6, .delay = ms(20), .loss = 0.02}, 0.6},
  };
  for (Scenario& s : all) s.path.largest = 1472;
  return all;
}

TEST_P(UdpNetworkTest, EveryFrameOnceAndInOrder) {
  const Scenario& s = GetParam();
  const uint64_t frames = Frames();
  UdpNetwork net(s.path, 1);
  Writer writer(frames);
  Reader reader;
  const Deadline start = net.now();
  while (reader.frames() < frames) {
    writer.Write(net.core(0), net.now());
    net.Send(0);
    reader.Read(net.core(1));
    if (HasFatalFailure()) return;
    net.Send(1);
    ASSERT_TRUE(net.Step());
    ASSERT_LT(net.now() - start, std::chrono::hours(10));
  }
  const double took = std::chrono::duration<double>(net.now() - start).count();
  const double share = static_cast<double>(writer.total()) / took / s.path.bytes_per_second;
  const double left = 1 - s.path.loss - s.path.flip - s.path.burst * s.path.burst_length;
  const UdpCoreStats& stats = net.core(0).stats();
  fmt::print(
      "{:14} {:5.1f} s, {:3.0f}% of the capacity, {:3.0f}% of what loss leaves; {} packets, {} lost, {} late, {} "
      "copies, {} probes, {} found a full queue, size {}, loss {:.3f}\n",
      s.name, took, 100 * share, 100 * share / left, stats.sent, stats.lost, stats.late, stats.copies, stats.probes,
      net.full(0), net.core(0).datagram_size(), net.core(0).rate().loss());
  EXPECT_GT(share / left, s.least_share);
  // And the end.
  net.core(0).Close(net.now());
  for (int i = 0; i < 100000 && !reader.ended(); ++i) {
    net.Send(0);
    ASSERT_TRUE(net.Step());
    reader.Read(net.core(1));
  }
  EXPECT_TRUE(reader.ended());
}

INSTANTIATE_TEST_SUITE_P(Scenarios, UdpNetworkTest, ::testing::ValuesIn(Scenarios()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gyre
