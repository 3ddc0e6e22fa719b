// The handling of acknowledgements on a UDP link: round trips, losses and probes (RFC 9002), and delivered bytes.
#include <algorithm>

#include "transport/udp_core.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kGranularity = milliseconds(1);
constexpr auto kPeerAckDelay = milliseconds(5);
constexpr auto kFirstRoundTrip = milliseconds(100);  // before there is a sample
constexpr auto kLongestProbe = seconds(2);
constexpr uint64_t kMostReordering = 256;  // packets
constexpr double kMostTimeFactor = 2;

}  // namespace

UdpCore::SentPacket* UdpCore::Find(uint64_t number) {
  if (number < first_number_ || number >= next_number_) return nullptr;
  return &sent_[number - first_number_];
}

bool UdpCore::OnAck(const AckFrame& ack) {
  const uint64_t largest = ack.ranges.front().last;
  if (largest >= next_number_) return false;
  const SentPacket* newest = Find(largest);
  const bool sample = newest != nullptr && newest->state == PacketState::kInFlight;
  const Deadline sent_at = newest != nullptr ? newest->at : Deadline{};
  largest_acked_ = std::max(largest_acked_, largest);
  if (largest >= phase_began_) phase_acked_ = true;
  bool progress = false;
  for (auto range = ack.ranges.rbegin(); range != ack.ranges.rend(); ++range) {
    for (uint64_t n = std::max(range->first, first_number_); n <= range->last; ++n) {
      SentPacket& p = *Find(n);
      if (p.state == PacketState::kAcked) continue;
      progress = progress || p.state != PacketState::kUncounted;
      OnPacketAcked(n, p);
    }
  }
  if (!progress) return true;
  std::optional<Duration> round_trip;
  if (sample) {
    round_trip = now_ - sent_at;
    OnRoundTrip(*round_trip, std::chrono::microseconds(ack.delay_us));
  }
  FindLost();
  rate_.OnAcked(round_trip, in_flight_, now_);
  rate_.SetDatagram(size_.size());
  probe_count_ = probes_due_ = 0;
  if (closed_ && !end_) {
    done_at_ = std::max(done_at_, now_ + kUdpLinger);
    if (base_ == written_ && end_acked_) done_ = true;
  }
  Forget();
  return true;
}

void UdpCore::OnPacketAcked(uint64_t number, SentPacket& p) {
  const PacketState before = p.state;
  p.state = PacketState::kAcked;
  if (p.acked > 0) received_.Forget(p.acked);
  if (before == PacketState::kUncounted) return;
  if (before == PacketState::kInFlight) {
    in_flight_ -= p.bytes;
    --in_flight_packets_;
  } else {
    // The packet was only late: the next one may be as late without being counted as lost.
    ++stats_.late;
    packet_threshold_ = std::clamp(largest_acked_ - number + 1, packet_threshold_, kMostReordering);
    if (round_trip_ && *round_trip_ > Duration::zero()) {
      const double trips = std::chrono::duration<double>(now_ - p.at) / std::chrono::duration<double>(*round_trip_);
      time_factor_ = std::clamp(trips + 0.125, time_factor_, kMostTimeFactor);
    }
  }
  rate_.OnPacketAcked(p.mark, p.at, p.bytes, now_);
  if (p.size_probe) {
    size_.OnProbeAcked(p.bytes, now_);
  } else {
    size_.OnAcked(number, p.bytes);
  }
  if (p.end) end_acked_ = true;
  for (uint8_t i = 0; i < p.chunks; ++i) Delivered(p.chunk[i].offset, p.chunk[i].offset + p.chunk[i].length);
}

void UdpCore::Delivered(uint64_t begin, uint64_t end) {
  begin = std::max(begin, base_);
  if (begin >= end) return;
  lost_.Remove(begin, end);
  if (begin == base_ && delivered_.empty()) {
    base_ = end;
    return;
  }
  delivered_.Add(begin, end);
  const auto first = *delivered_.ranges().begin();
  if (first.first > base_) return;
  base_ = first.second;
  delivered_.Remove(first.first, first.second);
}

void UdpCore::OnPacketLost(uint64_t number, SentPacket& p) {
  p.state = PacketState::kLost;
  in_flight_ -= p.bytes;
  --in_flight_packets_;
  if (p.size_probe) return size_.OnProbeLost(now_);
  ++stats_.lost;
  rate_.OnLost(p.mark);
  size_.OnLost(number, p.bytes, now_);
  if (p.window > 0 && p.window == granted_ && (!end_ || whole_ < *end_)) window_due_ = true;
  // Its bytes are already on their way again, or have arrived by now.
  const SentPacket* twin = p.twin > 0 ? Find(p.twin) : nullptr;
  if (twin != nullptr && twin->state == PacketState::kInFlight) return;
  if (p.end && !end_acked_ && !end_) end_due_ = true;
  for (uint8_t i = 0; i < p.chunks; ++i) {
    const Chunk& c = p.chunk[i];
    delivered_.ForEachGap(std::max(c.offset, base_), c.offset + c.length,
                          [this](uint64_t begin, uint64_t end) { lost_.Add(begin, end); });
  }
}

void UdpCore::FindLost() {
  loss_at_ = kNoDeadline;
  const Duration threshold = TimeThreshold();
  for (uint64_t n = first_number_; n < largest_acked_ && n < next_number_; ++n) {
    SentPacket& p = *Find(n);
    if (p.state != PacketState::kInFlight) continue;
    if (largest_acked_ - n >= packet_threshold_ || p.at + threshold <= now_) {
      OnPacketLost(n, p);
    } else {
      loss_at_ = std::min(loss_at_, p.at + threshold);
    }
  }
}

// Lost packets are kept for a while, so that late ones are recognised.
void UdpCore::Forget() {
  const Deadline old = now_ - 3 * ProbeTimeout();
  while (!sent_.empty()) {
    const SentPacket& p = sent_.front();
    if (p.state == PacketState::kInFlight || (p.state == PacketState::kLost && p.at > old)) return;
    sent_.pop_front();
    ++first_number_;
  }
}

void UdpCore::OnRoundTrip(Duration sample, Duration peer_delay) {
  latest_ = sample;
  if (!round_trip_) {
    least_ = sample;
    round_trip_ = sample;
    deviation_ = sample / 2;
    return;
  }
  least_ = std::min(least_, sample);
  peer_delay = std::min<Duration>(peer_delay, kPeerAckDelay);
  const Duration adjusted = sample >= least_ + peer_delay ? sample - peer_delay : sample;
  const Duration off = *round_trip_ > adjusted ? *round_trip_ - adjusted : adjusted - *round_trip_;
  deviation_ = (3 * deviation_ + off) / 4;
  round_trip_ = (7 * *round_trip_ + adjusted) / 8;
}

Duration UdpCore::TimeThreshold() const {
  const Duration trip = std::max(round_trip_.value_or(kFirstRoundTrip), latest_);
  const auto threshold = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(trip) * time_factor_);
  return std::max<Duration>(threshold, kGranularity);
}

Duration UdpCore::ProbeTimeout() const {
  if (!round_trip_) return 2 * kFirstRoundTrip;
  return *round_trip_ + std::max<Duration>(4 * deviation_, kGranularity) + kPeerAckDelay;
}

Deadline UdpCore::ProbeAt() const {
  if (in_flight_packets_ == 0 || loss_at_ != kNoDeadline) return kNoDeadline;
  const Duration timeout = ProbeTimeout() * (int64_t{1} << std::min(probe_count_, 10));
  return last_asked_ + std::min<Duration>(timeout, std::max<Duration>(kLongestProbe, ProbeTimeout()));
}

}  // namespace gyre
