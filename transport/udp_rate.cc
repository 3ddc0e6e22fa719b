#include "transport/udp_rate.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr double kHighGain = 2.885;  // 2 / ln 2: doubles what is delivered in each round trip
// A phase lasts one round trip: more than the rate to find room, less to drain the queue that this made.
constexpr std::array<double, 8> kCycle = {1.25, 0.75, 1, 1, 1, 1, 1, 1};
constexpr uint64_t kRateRounds = 10;
// On a host or in a rack a round trip is shorter than the time for which a thread may have to wait for a processor.
constexpr auto kLeastRound = milliseconds(1);
constexpr auto kLeastRateLife = milliseconds(200);
constexpr auto kRoundTripLife = seconds(10);
constexpr auto kProbeRoundTrip = milliseconds(100);
constexpr double kBurst = 64 << 10, kMostBurst = 256 << 10;
constexpr double kLeastWindow = 64 << 10;
constexpr double kMostMadeUp = 0.4;  // of the packets that are lost whatever the rate
constexpr double kLossShare = 1.0 / 64;
constexpr double kNotFull = 0.95;  // of what fits into the path
// The constants of the ceiling for bytes in flight.
constexpr double kExcess = 0.05, kFall = 0.7, kRise = 1.02, kNoCeiling = 1e18;
constexpr int kSlowSeen = 50, kFewLost = 8;

double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
Duration Of(double seconds) { return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)); }

}  // namespace

double UdpRate::Bdp() const { return least_ ? Bandwidth() * Seconds(*least_) : 0; }

double UdpRate::PacingRate() const {
  const double made_up = 1 / (1 - std::min(slow_loss_, kMostMadeUp));
  switch (mode_) {
    case Mode::kStartup: {
      // Before anything is measured: an initial window each round trip, or each millisecond.
      const double first = kHighGain * kLeastWindow / Seconds(least_ ? *least_ : milliseconds(1));
      return std::max(first, kHighGain * Bandwidth()) * made_up;
    }
    case Mode::kDrain: return Bandwidth() / kHighGain;
    case Mode::kSteady: return kCycle[static_cast<size_t>(phase_)] * Bandwidth() * made_up;
    case Mode::kProbeRoundTrip: return Bandwidth() * made_up;
  }
  return Bandwidth();
}

double UdpRate::Burst(size_t in_flight) const {
  const double least = 2.0 * static_cast<double>(datagram_);
  if (in_flight == 0) return std::max(kBurst, least);
  return std::max(std::min(PacingRate() * 1e-3, kMostBurst), least);
}

size_t UdpRate::Window() const {
  const double least = std::max(kLeastWindow, 4.0 * static_cast<double>(datagram_));
  if (mode_ == Mode::kProbeRoundTrip) return static_cast<size_t>(std::max(Bdp() / 2, least / 2));
  const double gain = mode_ == Mode::kStartup || mode_ == Mode::kDrain ? kHighGain : 2;
  // Bytes that wait for the receiver's thread, or for a whole burst, are no queue in the path.
  return static_cast<size_t>(std::max(std::min(gain * Bdp() + 3 * Burst(1), ceiling_), least));
}

UdpRate::Mark UdpRate::OnSent(Deadline now, size_t bytes, size_t in_flight_before) {
  const double burst = Burst(in_flight_before);
  tokens_ = std::min(burst, tokens_ + PacingRate() * Seconds(now - burst_at_)) - static_cast<double>(bytes);
  burst_at_ = now;
  if (in_flight_before == 0) first_sent_at_ = delivered_at_ = now;
  const bool limited = limited_until_ > 0;
  // Losses of a path that is not full do not depend on the rate.
  // Lost packets count as in flight for a round trip, though they fill nothing.
  const bool below = static_cast<double>(in_flight_before) * (1 - loss_) < kNotFull * Bdp();
  const bool slow = limited || (mode_ == Mode::kSteady && kCycle[static_cast<size_t>(phase_)] < 1 && below);
  return {.delivered = delivered_,
          .delivered_at = delivered_at_,
          .first_sent_at = first_sent_at_,
          .app_limited = limited,
          .slow = slow};
}

Deadline UdpRate::NextSend(Deadline now, size_t in_flight) const {
  const double rate = PacingRate();
  const double burst = Burst(in_flight);
  const double tokens = std::min(burst, tokens_ + rate * Seconds(now - burst_at_));
  if (tokens > 0) return now;
  // The wait is for half a burst, so that several datagrams leave with one system call.
  return now + Of((burst / 2 - tokens) / std::max(rate, 1e4));
}

void UdpRate::OnIdle(size_t in_flight) { limited_until_ = std::max<uint64_t>(delivered_ + in_flight, 1); }

void UdpRate::OnPacketAcked(const Mark& mark, Deadline sent_at, size_t bytes, Deadline now) {
  delivered_ += bytes;
  delivered_at_ = now;
  loss_ -= loss_ * kLossShare;
  if (mark.slow) {
    slow_loss_ -= slow_loss_ * kLossShare;
    ++slow_seen_;
  } else {
    ++round_came_;
  }
  if (!newest_ || mark.delivered > newest_->mark.delivered ||
      (mark.delivered == newest_->mark.delivered && sent_at > newest_->sent_at)) {
    newest_ = {.mark = mark, .sent_at = sent_at};
  }
}

void UdpRate::OnLost(const Mark& mark) {
  loss_ += (1 - loss_) * kLossShare;
  if (mark.slow) {
    slow_loss_ += (1 - slow_loss_) * kLossShare;
    ++slow_seen_;
  } else {
    ++round_lost_;
  }
}

void UdpRate::Learn(double rate, bool app_limited, Deadline now) {
  if (app_limited && rate < Bandwidth()) return;
  while (!best_.empty() && best_.back().rate <= rate) best_.pop_back();
  best_.push_back({.round = round_, .rate = rate, .at = now});
  while (best_.front().round + kRateRounds < round_ && best_.front().at + kLeastRateLife < now) best_.pop_front();
}

void UdpRate::OnAcked(std::optional<Duration> round_trip, size_t in_flight, Deadline now) {
  if (limited_until_ > 0 && delivered_ > limited_until_) limited_until_ = 0;
  const bool old = least_ && now - least_at_ > kRoundTripLife;
  if (round_trip && *round_trip > Duration::zero()) {
    if (mode_ == Mode::kProbeRoundTrip) probed_ = std::min(probed_.value_or(*round_trip), *round_trip);
    if (!least_ || *round_trip <= *least_ || (old && limited_until_ > 0)) {
      least_ = round_trip;
      least_at_ = now;
    }
  }
  round_began_ = false;
  if (newest_) {
    const Mark& mark = newest_->mark;
    if (mark.delivered >= round_ends_ && now - round_at_ >= kLeastRound) {
      round_ends_ = delivered_;
      round_at_ = now;
      if (!mark.app_limited) ++round_;  // what was learnt does not age while there is nothing to send
      round_began_ = true;
      OnRound();
    }
    const Duration interval = std::max(now - mark.delivered_at, newest_->sent_at - mark.first_sent_at);
    first_sent_at_ = newest_->sent_at;
    // Several acknowledgements may come within less than a round trip.
    if (interval > Duration::zero() && (!least_ || interval >= *least_)) {
      Learn(static_cast<double>(delivered_ - mark.delivered) / Seconds(interval), mark.app_limited, now);
    }
    if (!full_ && round_began_ && !mark.app_limited) {
      if (Bandwidth() >= full_rate_ * 1.25) {
        full_rate_ = Bandwidth();
        rounds_without_growth_ = 0;
      } else if (++rounds_without_growth_ >= 3) {
        full_ = true;
      }
    }
    newest_.reset();
  }
  NextMode(in_flight, now);
}

// More loss than the path's own is caused by this sender, so fewer bytes may be in flight.
void UdpRate::OnRound() {
  const double sent = round_came_ + round_lost_;
  const double excess = sent > 0 ? round_lost_ / sent - slow_loss_ : 0;
  const double most = kHighGain * Bdp() + 3 * kMostBurst;
  if (full_ && slow_seen_ >= kSlowSeen && round_lost_ >= kFewLost && excess > kExcess) {
    ceiling_ = std::max(std::min(ceiling_, most) * kFall, Bdp());
  } else if (ceiling_ < most) {
    ceiling_ *= kRise;
  } else {
    ceiling_ = kNoCeiling;
  }
  round_came_ = round_lost_ = 0;
}

void UdpRate::NextMode(size_t in_flight, Deadline now) {
  const auto flying = static_cast<double>(in_flight);
  switch (mode_) {
    case Mode::kStartup:
      if (full_) mode_ = Mode::kDrain;
      break;
    case Mode::kDrain:
      if (flying > Bdp()) break;
      mode_ = Mode::kSteady;
      phase_ = 2;
      phase_at_ = now;
      break;
    case Mode::kSteady: {
      const Duration round_trip = least_.value_or(milliseconds(1));
      if (now - phase_at_ > round_trip) {
        phase_ = (phase_ + 1) % static_cast<int>(kCycle.size());
        phase_at_ = now;
      }
      break;
    }
    case Mode::kProbeRoundTrip:
      if (now < probe_until_) return;
      if (probed_) least_ = probed_;
      least_at_ = now;
      mode_ = full_ ? Mode::kSteady : Mode::kStartup;
      phase_ = 2;
      phase_at_ = now;
      return;
  }
  if (least_ && now - least_at_ > kRoundTripLife && limited_until_ == 0 && full_) {
    mode_ = Mode::kProbeRoundTrip;
    probe_until_ = now + kProbeRoundTrip + *least_;
    probed_.reset();
  }
}

}  // namespace gyre
