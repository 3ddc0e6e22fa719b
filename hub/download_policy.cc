#include "hub/download_policy.h"

#include <algorithm>
#include <limits>

namespace gyre {

DownloadPolicy::DownloadPolicy(const DownloadPolicyOptions& options)
    : options_(options),
      slots_(static_cast<size_t>(std::max(1, options.connections))),
      allowed_(static_cast<int>(slots_.size())) {}

uint64_t DownloadPolicy::limit() const { return size_.value_or(std::numeric_limits<uint64_t>::max()); }

std::vector<DownloadAction> DownloadPolicy::Next(Deadline now) {
  std::vector<DownloadAction> out;
  out.swap(cancels_);
  wake_ = kNoDeadline;
  if (!failure_.ok() || finished() || locating_) return out;
  if (not_before_ > now) {
    wake_ = not_before_;
    return out;
  }
  if (!located_) {
    locating_ = true;
    locate_started_ = now;
    out.push_back({.kind = DownloadAction::kLocate});
    return out;
  }
  const int most = ranges_ ? allowed_ : 1;
  for (size_t i = 0; i < slots_.size() && running() < most; ++i) {
    Slot& slot = slots_[i];
    if (slot.running) continue;
    if (slot.not_before > now) {
      wake_ = std::min(wake_, slot.not_before);
      continue;
    }
    if (!ranges_) {
      Assign(&slot, {0, limit()}, now);
      slot.whole = true;
    } else if (const std::optional<ByteRange> range = Unassigned()) {
      Assign(&slot, *range, now);
    } else if (Split(&slot) || TakeOver(&slot, now)) {
      Assign(&slot, {slot.at, slot.end}, now);
    } else {
      break;
    }
    // Cancels come before the requests that replace the cancelled ones.
    out.insert(out.end(), cancels_.begin(), cancels_.end());
    cancels_.clear();
    out.push_back({.kind = DownloadAction::kFetch,
                   .slot = static_cast<int>(i),
                   .range = {slot.at, slot.end},
                   .whole = slot.whole});
  }
  return out;
}

int DownloadPolicy::running() const {
  return static_cast<int>(std::count_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.running; }));
}

void DownloadPolicy::Assign(Slot* slot, ByteRange range, Deadline now) {
  slot->running = true;
  slot->whole = false;
  slot->begin = slot->at = range.begin;
  slot->end = slot->asked_end = range.end;
  slot->started = slot->active = now;
}

// The first missing bytes that no connection is asked for.
std::optional<ByteRange> DownloadPolicy::Unassigned() const {
  for (uint64_t from = 0;;) {
    ByteRange gap = done_.FirstGap(from, limit());
    if (gap.size() == 0) return std::nullopt;
    bool moved = false;
    for (const Slot& s : slots_) {
      if (!s.running || s.end <= gap.begin || s.at >= gap.end) continue;
      if (s.at <= gap.begin) {
        from = s.end, moved = true;
        break;
      }
      gap.end = s.at;
    }
    if (!moved) return ByteRange{gap.begin, std::min(gap.end, gap.begin + options_.range_bytes)};
  }
}

// Takes over the second half of the slot that has most left. Sets the idle slot's range.
bool DownloadPolicy::Split(Slot* idle) {
  Slot* longest = nullptr;
  for (Slot& s : slots_) {
    if (s.running && (longest == nullptr || s.end - s.at > longest->end - longest->at)) longest = &s;
  }
  if (longest == nullptr || longest->end - longest->at < 2 * options_.least_split) return false;
  const uint64_t middle = longest->at + (longest->end - longest->at) / 2;
  idle->at = middle, idle->end = longest->end;
  longest->end = middle;
  return true;
}

// Takes over the whole rest of a connection that has gone silent, so that the end need not wait for it. Sets the idle
// slot's range, or the time of the next check.
bool DownloadPolicy::TakeOver(Slot* idle, Deadline now) {
  Slot* silent = nullptr;
  for (Slot& s : slots_) {
    if (s.running && s.at < s.end && (silent == nullptr || s.active < silent->active)) silent = &s;
  }
  if (silent == nullptr) return false;
  const Deadline late = silent->active + options_.idle_timeout * (1 + failures_);
  if (now < late) {
    wake_ = std::min(wake_, late);
    return false;
  }
  CountFailure(Unavailable("the server has gone silent in the middle of its answer"), now, now);
  if (!failure_.ok()) return false;
  idle->at = silent->at, idle->end = silent->end;
  Stop(silent);
  return true;
}

void DownloadPolicy::OnLocated(const LocatedFile& file, const ByteRanges& done, Deadline now) {
  locating_ = false;
  located_at_ = now;
  if (known_) {
    if (file.size != size_ || file.etag != etag_) {
      failure_ = DataLoss("the file has changed while it was downloaded; try again");
      return;
    }
  } else {
    done_ = done;
    size_ = file.size;
    etag_ = file.etag;
    known_ = true;
  }
  located_ = true;
  ranges_ = ranges_ && file.ranges && file.size.has_value();
}

void DownloadPolicy::OnMoved() {
  for (Slot& s : slots_) Stop(&s);
}

void DownloadPolicy::OnLocateFailed(const Status& status, Again again, std::optional<Duration> retry_after,
                                    Deadline now) {
  locating_ = false;
  if (again == Again::kNo) {
    failure_ = status;
    return;
  }
  CountFailure(status, locate_started_, now, again == Again::kBusy);
  not_before_ = now + std::min(retry_after.value_or(Pause(failures_)), options_.longest_retry_after);
}

void DownloadPolicy::OnHead(int index, const RangeAnswer& answer, Deadline now) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  if (!slot.running || !failure_.ok()) return;
  if (answer.code != 200 && answer.code != 206) return OnRefused(&slot, answer, now);
  if (!etag_.empty() && !answer.etag.empty() && answer.etag != etag_) {
    failure_ = DataLoss("the file has changed while it was downloaded; try again");
  } else if (size_.has_value() && answer.total.has_value() && *answer.total != *size_) {
    failure_ = DataLoss("the server gives a file of {} bytes, expected {}", *answer.total, *size_);
  } else if (answer.code == 200) {
    OnWholeFile(&slot, answer);
  } else if (slot.whole || !answer.range.has_value() || answer.range->begin != slot.at) {
    Stop(&slot);
    Failed(&slot, DataLoss("the server answers with another range than was asked"), now);
  }
}

// The server gives no ranges, or none for a file that has changed.
void DownloadPolicy::OnWholeFile(Slot* slot, const RangeAnswer& answer) {
  ranges_ = false;
  if (!size_.has_value() && answer.total.has_value()) size_ = answer.total;
  for (Slot& s : slots_) {
    if (&s != slot) Stop(&s);
  }
  if (slot->at != 0) return Stop(slot);
  slot->whole = true;
  slot->end = slot->asked_end = limit();
}

void DownloadPolicy::OnRefused(Slot* slot, const RangeAnswer& answer, Deadline now) {
  Stop(slot);
  const bool moved = answer.code / 100 == 3,
             expired = answer.code == 401 || answer.code == 403 || answer.code == 404 || answer.code == 410;
  if (moved || expired) {
    // A redirect's URL is valid for some minutes. If a new one is refused too, the refusal counts.
    if (slot->started < located_at_ || !located_) return;
    located_ = false;
    if (++refusals_ > options_.first_attempts) failure_ = answer.refusal;
    return;
  }
  const bool busy = answer.code == 429 || answer.code == 503;
  if (busy) {
    if (CountFailure(answer.refusal, slot->started, now, true)) allowed_ = std::max(1, allowed_ / 2), good_ranges_ = 0;
    const Duration pause = std::min(answer.retry_after.value_or(Pause(failures_)), options_.longest_retry_after);
    not_before_ = std::max(not_before_, now + pause);
    return;
  }
  if (answer.code == 416 && answer.total.has_value() && size_.has_value() && *answer.total != *size_) {
    failure_ = DataLoss("the server gives a file of {} bytes, expected {}", *answer.total, *size_);
    return;
  }
  if (answer.code / 100 == 5 || answer.code == 408 || answer.code == 416) return Failed(slot, answer.refusal, now);
  failure_ = answer.refusal;
}

ByteRange DownloadPolicy::OnBytes(int index, uint64_t count, Deadline now) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  if (!slot.running || !failure_.ok()) return {0, 0};
  const ByteRange range{slot.at, slot.at + std::min(count, slot.end - slot.at)};
  slot.at = range.end;
  slot.active = now;
  if (done_.Add(range) > 0) {
    failures_ = refusals_ = slot.failures = 0;
    any_byte_ = true;
    trouble_ = absl::OkStatus();
  }
  // Another connection has the rest, or the server sends more than it was asked for.
  if (slot.at == slot.end && (slot.end != slot.asked_end || count > range.size())) Stop(&slot);
  return range;
}

void DownloadPolicy::OnEnd(int index, const Status& status, Deadline now) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  if (!slot.running || !failure_.ok()) return;
  slot.running = false;
  if (status.ok() && slot.whole && !size_.has_value()) {
    size_ = slot.at;
    return;
  }
  if (status.ok() && slot.at == slot.end) {
    // A server that was overloaded gets more connections again, one after the other.
    if (++good_ranges_ >= 4 * allowed_ && allowed_ < static_cast<int>(slots_.size())) ++allowed_, good_ranges_ = 0;
    return;
  }
  if (status.ok() && slot.at > slot.begin) return;  // a shorter range than was asked; the rest is asked for anew
  Failed(&slot, status.ok() ? Unavailable("the server's answer ended too early") : status, now);
}

void DownloadPolicy::Stop(Slot* slot) {
  if (!slot->running) return;
  slot->running = false;
  cancels_.push_back({.kind = DownloadAction::kCancel, .slot = static_cast<int>(slot - slots_.data())});
}

void DownloadPolicy::Failed(Slot* slot, const Status& status, Deadline now) {
  ++slot->failures;
  slot->not_before = now + Pause(slot->failures);
  if (!ranges_) not_before_ = std::max(not_before_, slot->not_before);  // no other connection may take its place
  CountFailure(status, slot->started, now);
}

// Connections that fail together count once: only an attempt that began after the last failure counts again. Returns
// whether this one counts.
bool DownloadPolicy::CountFailure(const Status& status, Deadline started, Deadline now, bool busy) {
  if (failures_ > 0 && started <= counted_) return false;
  counted_ = now;
  trouble_ = status;
  const int most = any_byte_ || busy ? options_.attempts : std::min(options_.attempts, options_.first_attempts);
  if (++failures_ >= most) failure_ = status;
  return true;
}

Duration DownloadPolicy::Pause(int failures) const {
  Duration pause = options_.first_pause;
  for (int i = 1; i < failures && pause < options_.longest_pause; ++i) pause *= 2;
  return std::min(pause, options_.longest_pause);
}

}  // namespace gyre
