#include "transport/probe.h"

#include <algorithm>
#include <vector>

#include "base/coding.h"

namespace gyre {
namespace {

// Asks for `bytes` bytes, and returns the time that they took.
StatusOr<Duration> Ask(Link& link, Epoch epoch, uint32_t bytes, Duration timeout) {
  Encoder request;
  request.Put(bytes);
  const ByteSpan parts[] = {request.bytes()};
  const Deadline asked = Clock::now(), deadline = asked + timeout;
  GYRE_RETURN_IF_ERROR(link.Send({.kind = FrameKind::kProbe, .epoch = epoch}, parts, deadline));
  GYRE_ASSIGN_OR_RETURN(const Frame frame, link.Recv(deadline));
  if (frame.header.kind != FrameKind::kProbed || frame.payload.size() != bytes) {
    return DataLoss("a frame of kind {} with {} bytes came, expected {} bytes for a probe",
                    static_cast<int>(frame.header.kind), frame.payload.size(), bytes);
  }
  return std::max<Duration>(Clock::now() - asked, std::chrono::nanoseconds(1));
}

Status Measure(Link& link, Epoch epoch, const ProbeLimits& limits, LinkSpeed* speed) {
  Duration shortest = Duration::max();
  const Deadline end = After(limits.time);
  for (int i = 0; i < limits.round_trips && (i == 0 || Clock::now() < end); ++i) {
    GYRE_ASSIGN_OR_RETURN(const Duration took, Ask(link, epoch, 0, limits.timeout));
    shortest = std::min(shortest, took);
  }
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(shortest).count();
  speed->round_trip_us = std::max<uint64_t>(1, static_cast<uint64_t>(micros));
  // The frames get larger and larger: the last one is least affected by the round trip and by a slow start.
  uint64_t bytes = 0;
  for (uint32_t ask = 16 << 10; bytes + ask <= limits.bytes; ask = std::min(2 * ask, kMaxProbeBytes)) {
    GYRE_ASSIGN_OR_RETURN(const Duration took, Ask(link, epoch, ask, limits.timeout));
    bytes += ask;
    const auto seconds = [](Duration d) { return std::chrono::duration<double>(d).count(); };
    const double sending = std::max(seconds(took - shortest), seconds(took) / 2);
    speed->bytes_per_second = std::max(speed->bytes_per_second, ask / sending);
    if (Clock::now() >= end) break;
  }
  return absl::OkStatus();
}

}  // namespace

LinkSpeed ProbeLink(RingPort& port, const std::string& address, const Hello& hello, const ProbeLimits& limits) {
  LinkSpeed speed{.to = hello.to, .failure = ""};
  const StatusOr<std::unique_ptr<Link>> link = port.Dial(address, hello, After(limits.timeout));
  Status status = link.status();
  if (status.ok()) {
    status = Measure(**link, hello.epoch, limits, &speed);
    (*link)->Close();
  }
  if (!status.ok()) return {.to = hello.to, .failure = Message(status)};
  return speed;
}

Status AnswerProbe(Link& link, const Frame& frame, Deadline deadline) {
  Decoder in(frame.payload);
  const auto bytes = in.Get<uint32_t>();
  if (!in.Done() || bytes > kMaxProbeBytes) {
    return DataLoss("a probe of {} bytes that asks for {}, at most {} are sent", frame.payload.size(), bytes,
                    kMaxProbeBytes);
  }
  const std::vector<std::byte> zeros(bytes);
  const ByteSpan parts[] = {zeros};
  return link.Send({.kind = FrameKind::kProbed, .epoch = frame.header.epoch}, parts, deadline);
}

}  // namespace gyre
