// The sequences that the scheduler knows, in their order: who runs, who waits, who goes first, and what each tenant had
// (docs/scheduler.md). Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "coordinator/engine/scheduled_sequence.h"

namespace gyre {

// Not thread-safe: the scheduler owns it. Its callers change `held`, rows and tables of a sequence themselves; stage
// and rank only by these calls.
class SequenceQueue {
 public:
  using Sequence = ScheduledSequence;

  // Takes in a sequence that waits; it gets its age and its tenant. REQUIRES: its id is not known.
  Sequence* Add(std::unique_ptr<Sequence> sequence);
  // Forgets a sequence that was removed.
  void Erase(Sequence* s);
  // Null: there is none with this id, or it was removed.
  Sequence* Find(SeqId id) const;
  bool Knows(SeqId id) const { return all_.count(id) > 0; }
  bool empty() const { return all_.empty(); }

  const std::unordered_map<SeqId, std::unique_ptr<Sequence>>& all() const { return all_; }
  const std::vector<Sequence*>& running() const { return running_; }  // by rank
  const std::set<Sequence*, ByRank>& waiting() const { return waiting_; }
  size_t tenants() const { return tenants_.size(); }
  uint64_t aged() const { return aged_; }  // sequences that were overtaken too often
  uint32_t Decoding() const;               // running ones that decode

  // Moves a waiting sequence to the running ones, and counts that against the oldest one that it overtakes.
  void Run(Sequence* s);
  // Moves a sequence to another stage than kRunning.
  void Leave(Sequence* s, Sequence::Stage stage);
  // The sequence's tenant wants rows: from now on it is served like the others, whatever it missed before. What it took
  // beyond its share stays known.
  void Arrive(Sequence* s);

  // Whether the prompt of `a` gets rows before that of `b`. Among equal ranks those come first that were preempted,
  // then the tenant that got fewer rows.
  static bool GoesFirst(const Sequence& a, const Sequence& b);
  // The running sequence whose prompt gets rows next: none of this step, and none that this try had. Null: none wants
  // any.
  Sequence* NextPrompt(uint64_t step, uint64_t tried) const;
  // The sequence to admit next of those that `may` come; null: none waits.
  template <typename May>
  Sequence* NextWaiting(const May& may) const {
    Sequence* best = nullptr;
    for (Sequence* s : waiting_) {
      if (s->held || !may(*s)) continue;
      if (best != nullptr && (s->aged != best->aged || s->params.priority != best->params.priority)) break;
      if (best == nullptr || GoesFirst(*s, *best)) best = s;
      if (best->aged) break;
    }
    return best;
  }
  // The held sequence to preempt first: the worst-ranked, rather one with nothing in flight. Null: there is none.
  Sequence* HeldVictim() const;
  // The worst-ranked running sequence below `needy` without rows in this step, rather one with nothing in flight, as
  // its blocks come back at once. Null: there is none.
  Sequence* VictimBelow(const Sequence* needy, uint64_t step) const;

  // kInternal with the first contradiction between the lists.
  Status CheckIntegrity() const;

 private:
  Tenant* TenantOf(uint64_t id);
  void Age(const Sequence& admitted);

  std::unordered_map<SeqId, std::unique_ptr<Sequence>> all_;
  std::vector<Sequence*> running_;
  std::set<Sequence*, ByRank> waiting_;
  std::unordered_map<uint64_t, Tenant> tenants_;
  uint64_t next_age_ = 0;
  uint64_t aged_ = 0;
};

}  // namespace gyre
