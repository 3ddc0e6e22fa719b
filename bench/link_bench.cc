// The cost of a hop by carrier: how long a frame takes from one thread to another and back, and how many bytes a second
// pass one way. All named carriers are measured in turn, so that one run compares them. One JSON object per
// carrier on stdout.
//
//   link_bench [--seconds S] CARRIER...      tcp, memory, ...; none named: all
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "fmt/core.h"
#include "tests/testing/carriers.h"

namespace gyre {
namespace {

constexpr size_t kTiny = 1 << 10, kSmall = 16 << 10, kLarge = 256 << 10, kBulk = 1 << 20, kChunk = 2 << 20;
constexpr auto kPause = std::chrono::milliseconds(50);
constexpr int kTurns = 5;

struct Samples {
  std::vector<double> tiny_us, small_us, large_us;  // one way: half of a round trip
  std::vector<double> chunk_us;
  std::vector<double> mib_per_second;  // one for each turn
};

double At(std::vector<double>* v, double share) {
  if (v->empty()) return 0;
  std::sort(v->begin(), v->end());
  return (*v)[std::min(v->size() - 1, static_cast<size_t>(share * static_cast<double>(v->size())))];
}

double Micros(Duration d) { return std::chrono::duration<double, std::micro>(d).count(); }

void Check(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "link_bench: {}\n", Message(status));
  std::exit(1);
}

void SendFrame(Link& link, ByteSpan payload, FrameKind kind = FrameKind::kHidden) {
  const ByteSpan parts[] = {payload};
  Check(link.Send({.kind = kind}, parts, kNoDeadline));
}

// Sends back each frame, until a frame of another kind comes.
void Echo(Link& link) {
  for (;;) {
    const StatusOr<Frame> frame = link.Recv(kNoDeadline);
    Check(frame.status());
    if (frame->header.kind != FrameKind::kHidden) return;
    SendFrame(link, frame->payload);
  }
}

void RoundTrips(Link& a, Link& b, size_t bytes, Duration time, std::vector<double>* out) {
  std::thread echo(Echo, std::ref(b));
  const std::vector<std::byte> payload(bytes, std::byte{7});
  const Deadline warm = After(time / 10), end = After(time);
  for (Deadline now = Clock::now(); now < end;) {
    SendFrame(a, payload);
    Check(a.Recv(kNoDeadline).status());
    const Deadline then = Clock::now();
    if (now > warm) out->push_back(Micros(then - now) / 2);
    now = then;
  }
  SendFrame(a, {}, FrameKind::kAnswer);
  echo.join();
}

double Throughput(Link& a, Link& b, Duration time) {
  std::thread sender([&a, time] {
    const std::vector<std::byte> payload(kBulk, std::byte{7});
    for (const Deadline end = After(time); Clock::now() < end;) SendFrame(a, payload);
    SendFrame(a, {}, FrameKind::kAnswer);
  });
  size_t frames = 0;
  const Deadline start = Clock::now();
  for (;; ++frames) {
    const StatusOr<Frame> frame = b.Recv(kNoDeadline);
    Check(frame.status());
    if (frame->header.kind != FrameKind::kHidden) break;
  }
  const double seconds = Micros(Clock::now() - start) / 1e6;
  sender.join();
  return static_cast<double>(frames) * static_cast<double>(kBulk >> 20) / seconds;
}

// Measures one way, from Send to the end of Recv, for chunks with a pause before each, as a stage sends them that
// computes rows of a prompt between two of them.
void Chunks(Link& a, Link& b, std::vector<double>* out) {
  constexpr int kChunks = 10;
  std::vector<Deadline> sent;
  const std::vector<std::byte> payload(kChunk, std::byte{7});
  std::vector<Deadline> came;
  std::thread receiver([&] {
    for (int i = 0; i < kChunks; ++i) {
      StatusOr<Frame> frame = b.Recv(kNoDeadline);
      Check(frame.status());
      came.push_back(Clock::now());
      b.GiveBack(std::move(frame->payload));
    }
  });
  for (int i = 0; i < kChunks; ++i) {
    std::this_thread::sleep_for(kPause);
    sent.push_back(Clock::now());
    SendFrame(a, payload);
  }
  receiver.join();
  for (size_t i = 0; i < sent.size(); ++i) out->push_back(Micros(came[i] - sent[i]));
}

void Turn(const testing::Carrier& carrier, Duration time, Samples* out) {
  auto [a, b] = carrier.make();
  RoundTrips(*a, *b, kTiny, time, &out->tiny_us);
  RoundTrips(*a, *b, kSmall, time, &out->small_us);
  RoundTrips(*a, *b, kLarge, time, &out->large_us);
  Chunks(*a, *b, &out->chunk_us);
  out->mib_per_second.push_back(Throughput(*a, *b, time));
}

int Run(int argc, char** argv) {
  double seconds = 0.5;
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--seconds" && i + 1 < argc) {
      seconds = std::atof(argv[++i]);
    } else {
      names.emplace_back(argv[i]);
    }
  }
  std::vector<testing::Carrier> carriers;
  for (const testing::Carrier& c : testing::PlainCarriers()) {
    if (names.empty() || std::count(names.begin(), names.end(), c.name) > 0) carriers.push_back(c);
  }
  if (carriers.empty() || (!names.empty() && carriers.size() != names.size())) {
    std::string known;
    for (const testing::Carrier& c : testing::PlainCarriers()) known += fmt::format(" {}", c.name);
    fmt::print(stderr, "link_bench: expected carriers of:{}\n", known);
    return 2;
  }
  const auto time = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  std::vector<Samples> samples(carriers.size());
  for (int turn = 0; turn < kTurns; ++turn) {
    for (size_t i = 0; i < carriers.size(); ++i) Turn(carriers[i], time, &samples[i]);
  }
  for (size_t i = 0; i < carriers.size(); ++i) {
    Samples& s = samples[i];
    fmt::print(
        "{{\"carrier\": \"{}\", \"hop_1k_us\": {:.1f}, \"hop_16k_us\": {:.1f}, \"hop_16k_p90_us\": {:.1f}, "
        "\"hop_256k_us\": {:.1f}, "
        "\"hop_256k_p90_us\": {:.1f}, \"chunk_2m_us\": {:.0f}, \"chunk_2m_p90_us\": {:.0f}, \"mib_per_s\": {:.0f}}}\n",
        carriers[i].name, At(&s.tiny_us, 0.5), At(&s.small_us, 0.5), At(&s.small_us, 0.9), At(&s.large_us, 0.5),
        At(&s.large_us, 0.9), At(&s.chunk_us, 0.5), At(&s.chunk_us, 0.9), At(&s.mib_per_second, 0.5));
  }
  return 0;
}

}  // namespace
}  // namespace gyre

int main(int argc, char** argv) { return gyre::Run(argc, argv); }
