// The rate at which a UDP link sends: the congestion controller and the pacer. It follows BBR,
// draft-cardwell-iccrg-bbr- congestion-control-00, and delivery rate estimation,
// draft-cheng-iccrg-delivery-rate-estimation-00: the path is modelled by the largest delivery rate and the least round
// trip of recent time. Loss does not slow it down; loss that does not depend on the rate is compensated. Pure:
// times are passed in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "base/clock.h"

namespace gyre {

class UdpRate {
 public:
  // The state that is kept with each packet in flight.
  struct Mark {
    uint64_t delivered = 0;
    Deadline delivered_at{}, first_sent_at{};
    bool app_limited = false;
    bool slow = false;  // sent when the path was not full, so its loss is not of our making
  };

  UdpRate(Deadline now, size_t datagram) : burst_at_(now), datagram_(datagram) {}

  Mark OnSent(Deadline now, size_t bytes, size_t in_flight_before);
  // Called for each packet of an acknowledgement, then OnAcked once. `round_trip`: the sample, if there is one.
  void OnPacketAcked(const Mark& mark, Deadline sent_at, size_t bytes, Deadline now);
  void OnAcked(std::optional<Duration> round_trip, size_t in_flight, Deadline now);
  void OnLost(const Mark& mark);
  // Called when there was nothing to send though the window was open.
  void OnIdle(size_t in_flight);
  void SetDatagram(size_t bytes) { datagram_ = bytes; }

  // The bytes that may be in flight.
  size_t Window() const;
  // The time at which the next datagram may leave: `now` or earlier means at once.
  Deadline NextSend(Deadline now, size_t in_flight) const;
  // The share of packets lost recently.
  double loss() const { return loss_; }
  // The share of packets that were lost although the path was not full when they were sent.
  double own_loss() const { return slow_loss_; }
  double bytes_per_second() const { return Bandwidth(); }

 private:
  enum class Mode : uint8_t { kStartup, kDrain, kSteady, kProbeRoundTrip };

  double Bandwidth() const { return best_.empty() ? 0 : best_.front().rate; }
  double PacingRate() const;
  double Bdp() const;
  double Burst(size_t in_flight) const;
  void Learn(double rate, bool app_limited, Deadline now);
  void OnRound();
  void NextMode(size_t in_flight, Deadline now);

  struct Best {
    uint64_t round;
    double rate;
    Deadline at;
  };

  // The delivery rate.
  uint64_t delivered_ = 0;
  Deadline delivered_at_{}, first_sent_at_{};
  uint64_t limited_until_ = 0;  // in delivered bytes: samples up to there came while the sender had too little to send
  uint64_t round_ = 0, round_ends_ = 0;
  Deadline round_at_{};
  bool round_began_ = false;
  struct Sample {
    Mark mark;
    Deadline sent_at{};
  };
  std::optional<Sample> newest_;  // of the acknowledgement under way

  // The model of the path.
  std::deque<Best> best_;  // the rates fall, the rounds rise
  std::optional<Duration> least_, probed_;
  Deadline least_at_{};
  double loss_ = 0, slow_loss_ = 0;
  int slow_seen_ = 0;
  double round_came_ = 0, round_lost_ = 0;  // packets of this round that were not slow
  double ceiling_ = 1e18;                   // bytes in flight

  Mode mode_ = Mode::kStartup;
  double full_rate_ = 0;
  int rounds_without_growth_ = 0;
  bool full_ = false;
  int phase_ = 0;  // of kSteady
  Deadline phase_at_{};
  Deadline probe_until_{};

  // The pacer: bytes that may leave at burst_at_; they grow with the rate up to the burst.
  double tokens_ = 64 << 10;
  Deadline burst_at_;
  size_t datagram_;
};

}  // namespace gyre
