#include "coordinator/state/leadership.h"

namespace gyre {

std::optional<Leadership::Call> Leadership::Next(Deadline now) {
  if (Lost(now)) state_ = State::kLost;
  if (under_way_ || state_ == State::kLost || now < next_) return std::nullopt;
  under_way_ = true;
  switch (state_) {
    case State::kFree: return Grant{};
    case State::kGranted: return Campaign{lease_};
    case State::kLeading: return Renew{lease_};
    default: return Look{};
  }
}

Deadline Leadership::deadline() const {
  if (state_ == State::kLost) return kNoDeadline;
  if (state_ == State::kLeading) return under_way_ ? until_ : std::min(next_, until_);
  return under_way_ ? kNoDeadline : next_;
}

void Leadership::Looked(const StatusOr<bool>& taken, Deadline now) {
  under_way_ = false;
  if (state_ != State::kWatching) return;
  if (taken.ok() && !*taken) state_ = State::kFree;
  next_ = !taken.ok() ? now + options_.retry : *taken ? now + options_.look : now;
}

void Leadership::Granted(const StatusOr<Lease>& lease, Deadline asked, Deadline now) {
  under_way_ = false;
  if (state_ != State::kFree) return;
  next_ = lease.ok() ? now : now + options_.retry;
  if (!lease.ok()) return;
  lease_ = lease->id;
  life_ = lease->life;
  until_ = SureUntil(asked, life_);
  state_ = State::kGranted;
}

void Leadership::Campaigned(const StatusOr<bool>& won, Deadline now) {
  under_way_ = false;
  if (state_ != State::kGranted) return;
  // If a campaign gets no answer, it is unknown whether it was won: then nobody leads until its lease has ended.
  const bool leads = won.ok() && *won && now < until_;
  state_ = leads ? State::kLeading : State::kWatching;
  next_ = leads ? until_ - life_ * 4 / 5 + life_ / 3 : now + options_.retry;
}

void Leadership::Renewed(const StatusOr<Duration>& life, Deadline asked, Deadline now) {
  under_way_ = false;
  if (Lost(now)) state_ = State::kLost;
  if (state_ != State::kLeading) return;
  if (!life.ok()) {
    next_ = now + options_.retry;
    return;
  }
  if (*life <= Duration{}) {
    state_ = State::kLost;
    return;
  }
  life_ = *life;
  until_ = SureUntil(asked, life_);
  next_ = asked + life_ / 3;
  if (now >= until_) state_ = State::kLost;
}

}  // namespace gyre
