#include "tests/testing/tracked_sequence.h"

#include <algorithm>

namespace gyre::testing {

TrackedSequence TrackedSequence::Anew() const {
  TrackedSequence out;
  out.tokens = tokens, out.prompt = prompt, out.salt = salt;
  out.max_positions = max_positions, out.answers = answers;
  return out;
}

void TrackedSequence::Launch(const StepItem& item, uint32_t cached, uint64_t ring_namespace) {
  if (!started) {
    landed = arrived = cached;
    ring_namespaces.assign(cached, admitted_namespace);
    started = true;
  }
  launched = item.first_position + item.count;
  ring_namespaces.resize(item.first_position);
  ring_namespaces.resize(launched, ring_namespace);
  drafts.insert(drafts.end(), item.drafts.begin(), item.drafts.end());
  ++in_flight;
}

uint32_t TrackedSequence::KnownEnd(const StepItem& item) const {
  return std::min(static_cast<uint32_t>(tokens.size()), item.first_position + item.count);
}

bool TrackedSequence::Land(const StepItem& item, bool is_void, bool recurrent) {
  const bool counts = !poisoned && !is_void;
  if (counts) {
    arrived = item.first_position + item.count;
    landed = KnownEnd(item);
    Prove(recurrent);
    owed = landed == tokens.size();
  }
  EndFlight();
  return counts;
}

void TrackedSequence::Prove(bool recurrent) {
  proven = std::max(proven, landed);
  if (landed >= lost_end) losses = 0;
  // With recurrent state a replay also sends rows again that were not at fault.
  if (recurrent && landed < failed_end) return;
  errors = failed_from = failed_end = 0;
  suspect = false;
}

void TrackedSequence::Append(TokenId token) {
  tokens.push_back(token);
  if (drafts.empty() || drafts.front() != token) return DropDrafts();
  drafts.pop_front();
  landed = std::min(arrived, static_cast<uint32_t>(tokens.size()));
  Prove(false);
  owed = landed == tokens.size();
}

void TrackedSequence::DropDrafts() {
  drafts.clear();
  launched = arrived = landed;
  ++drops;
}

bool TrackedSequence::LandFailed(const StepItem& item, bool is_void, bool alone) {
  bool fails = false;
  takes_no_drafts |= !item.drafts.empty();
  if (!poisoned && !is_void && item.first_position >= tokens.size()) {
    DropDrafts();
  } else if (!poisoned && !is_void) {
    poisoned = suspect = true;
    failed_from = failed_end == 0 ? item.first_position : std::min(failed_from, item.first_position);
    failed_end = std::max(failed_end, KnownEnd(item));
    fails = alone && ++errors == 2;
  }
  EndFlight();
  return fails;
}

void TrackedSequence::EndFlight() {
  --in_flight;
  if (!poisoned || in_flight > 0) return;
  poisoned = false;
  DropDrafts();
}

void TrackedSequence::Repeat() {
  --landed;
  DropDrafts();
}

void TrackedSequence::Shift(int keep, int drop, TokenId token) {
  tokens.push_back(token);
  tokens.erase(tokens.begin() + keep, tokens.begin() + keep + drop);
  prompt = tokens.size();
  answers = {};
  lost_end = static_cast<uint32_t>(tokens.size()) + 1;
  proven = failed_from = failed_end = 0;
}

void TrackedSequence::Preempt(uint32_t new_incarnation) {
  incarnation = new_incarnation;
  launched = landed = arrived = in_flight = 0;
  drafts.clear();
  admitted = started = poisoned = owed = troubled = false;
}

void TrackedSequence::LoseFlights() {
  in_flight = 0;
  poisoned = false;
  DropDrafts();
}

bool TrackedSequence::LoseRing(uint32_t end, bool alone) {
  lost_end = losses == 0 ? end : std::max(lost_end, end);
  if (losses < 2 || alone) ++losses;
  return losses == 3;
}

}  // namespace gyre::testing
