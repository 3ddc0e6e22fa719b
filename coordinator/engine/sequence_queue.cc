#include "coordinator/engine/sequence_queue.h"

#include <algorithm>
#include <utility>

namespace gyre {
namespace {

// The oldest sequence without its whole prompt goes before all others when so many younger ones were admitted.
constexpr uint32_t kOvertakes = 16;

// Tenants without sequences are remembered up to this number.
constexpr size_t kTenants = 1024;

}  // namespace

Tenant* SequenceQueue::TenantOf(uint64_t id) {
  if (tenants_.size() >= kTenants) {
    for (auto it = tenants_.begin(); it != tenants_.end();) it = it->second.sequences == 0 ? tenants_.erase(it) : ++it;
  }
  return &tenants_[id];
}

SequenceQueue::Sequence* SequenceQueue::Add(std::unique_ptr<Sequence> sequence) {
  Sequence* s = sequence.get();
  s->age = next_age_++;
  s->tenant = TenantOf(s->params.tenant);
  ++s->tenant->sequences;
  Arrive(s);
  waiting_.insert(s);
  all_.emplace(s->id, std::move(sequence));
  return s;
}

void SequenceQueue::Erase(Sequence* s) {
  --s->tenant->sequences;
  all_.erase(s->id);
  // The rows that a tenant took beyond its share count against the other present ones.
  if (all_.empty()) tenants_.clear();
}

SequenceQueue::Sequence* SequenceQueue::Find(SeqId id) const {
  const auto it = all_.find(id);
  return it == all_.end() || it->second->stage == Sequence::Stage::kRemoved ? nullptr : it->second.get();
}

uint32_t SequenceQueue::Decoding() const {
  return static_cast<uint32_t>(
      std::count_if(running_.begin(), running_.end(), [](const Sequence* s) { return s->decoding(); }));
}

void SequenceQueue::Run(Sequence* s) {
  waiting_.erase(s);
  running_.insert(std::upper_bound(running_.begin(), running_.end(), s, ByRank()), s);
  s->stage = Sequence::Stage::kRunning;
  Age(*s);
}

void SequenceQueue::Leave(Sequence* s, Sequence::Stage stage) {
  if (s->running()) {
    running_.erase(std::lower_bound(running_.begin(), running_.end(), s, ByRank()));
  } else if (s->stage == Sequence::Stage::kWaiting) {
    waiting_.erase(s);
  }
  if (stage == Sequence::Stage::kWaiting) waiting_.insert(s);
  s->stage = stage;
}

void SequenceQueue::Arrive(Sequence* s) {
  uint64_t least = UINT64_MAX, most = 0;
  const auto see = [&](const Sequence* other) {
    if (other == s || other->held) return;
    least = std::min(least, other->tenant->rows);
  };
  for (const Sequence* other : waiting_) see(other);
  for (const Sequence* other : running_) {
    most = std::max(most, other->tenant->rows);
    if (!other->decoding()) see(other);
  }
  s->tenant->rows = std::max(s->tenant->rows, least == UINT64_MAX ? most : least);
}

// Counts an admission against the oldest sequence that is older and still without its whole prompt.
void SequenceQueue::Age(const Sequence& admitted) {
  Sequence* oldest = nullptr;
  const auto see = [&oldest](Sequence* s) {
    if (!s->held && (oldest == nullptr || s->age < oldest->age)) oldest = s;
  };
  for (Sequence* s : waiting_) see(s);
  for (Sequence* s : running_) {
    if (!s->decoding()) see(s);
  }
  if (oldest == nullptr || oldest->age >= admitted.age || oldest->aged || ++oldest->overtaken < kOvertakes) return;
  const bool waits = waiting_.erase(oldest) > 0;
  if (!waits) running_.erase(std::lower_bound(running_.begin(), running_.end(), oldest, ByRank()));
  oldest->aged = true;
  ++aged_;
  if (waits) {
    waiting_.insert(oldest);
  } else {
    running_.insert(std::upper_bound(running_.begin(), running_.end(), oldest, ByRank()), oldest);
  }
}

bool SequenceQueue::GoesFirst(const Sequence& a, const Sequence& b) {
  if (a.aged != b.aged) return a.aged;
  if (!a.aged) {
    if (a.params.priority != b.params.priority) return a.params.priority > b.params.priority;
    const bool a_again = a.incarnation > 1, b_again = b.incarnation > 1;
    if (a_again != b_again) return a_again;
    if (!a_again && a.tenant->rows != b.tenant->rows) return a.tenant->rows < b.tenant->rows;
    if (!a_again && a.running() != b.running()) return a.running();
  }
  return a.age < b.age;
}

SequenceQueue::Sequence* SequenceQueue::NextPrompt(uint64_t step, uint64_t tried) const {
  Sequence* best = nullptr;
  for (Sequence* s : running_) {
    if (!s->wants_prompt_rows() || s->planned_in == step || s->tried_in == tried) continue;
    if (best == nullptr || GoesFirst(*s, *best)) best = s;
  }
  return best;
}

SequenceQueue::Sequence* SequenceQueue::HeldVictim() const {
  Sequence* victim = nullptr;
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    if (!(*it)->held) continue;
    if (victim == nullptr) victim = *it;
    if ((*it)->in_flight == 0) return *it;
  }
  return victim;
}

SequenceQueue::Sequence* SequenceQueue::VictimBelow(const Sequence* needy, uint64_t step) const {
  Sequence* victim = nullptr;
  for (size_t i = running_.size(); i > 0 && running_[i - 1] != needy; --i) {
    Sequence* s = running_[i - 1];
    if (s->planned_in == step) continue;
    if (victim == nullptr || s->in_flight == 0) victim = s;
    if (victim->in_flight == 0) break;
  }
  return victim;
}

Status SequenceQueue::CheckIntegrity() const {
  if (!std::is_sorted(running_.begin(), running_.end(), ByRank())) return Internal("the running are not in order");
  size_t runs = 0, waits = 0;
  for (const auto& [id, s] : all_) {
    if (s->id != id)
      return Internal("sequence {} is kept as {}", static_cast<uint64_t>(s->id), static_cast<uint64_t>(id));
    runs += s->running() ? 1 : 0;
    waits += s->stage == Sequence::Stage::kWaiting ? 1 : 0;
    if (s->running() != (std::find(running_.begin(), running_.end(), s.get()) != running_.end()) ||
        (s->stage == Sequence::Stage::kWaiting) != (waiting_.count(s.get()) > 0)) {
      return Internal("sequence {} stands in a wrong list", static_cast<uint64_t>(id));
    }
  }
  if (runs != running_.size() || waits != waiting_.size()) {
    return Internal("{} sequences run, {} listed; {} wait, {} listed", runs, running_.size(), waits, waiting_.size());
  }
  return absl::OkStatus();
}

}  // namespace gyre
