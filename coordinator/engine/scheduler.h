// Decides what runs in each step (docs/scheduler.md). Pure: no clock of its own, no I/O, no text, no sampling. A test
// is a list of events.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "coordinator/engine/cache_index.h"
#include "coordinator/engine/draft_depth.h"
#include "coordinator/engine/scheduler_types.h"
#include "coordinator/engine/steps_in_flight.h"

namespace gyre {

// Not thread-safe: the engine owns it. `now` is a time of any one clock: only waits and the times of steps are measured
// with it.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  ~Scheduler();
  Scheduler(Scheduler&&) noexcept;
  Scheduler& operator=(Scheduler&&) noexcept;

  // kInvalidArgument: no tokens, or the id is known. kOutOfRange: the prompt and one more position can never
  // fit (with the numbers).
  Status Add(SeqId seq, SequenceParams params, Deadline now = {});
  // The next step, counted as in flight, or nullopt: nothing to run, or max_in_flight reached.
  std::optional<StepPlan> Next(Deadline now = {});
  // A step came back, in any state. Steps land in the order they were launched. ok = false: a stage failed it; its
  // sequences' later steps in flight are worthless too and all their rows are scheduled again, once these landed: each
  // sequence in a step of its own until a row of it lands, so that one bad sequence does not fail those beside it.
  // `times`: what the stages say of it.
  LandedStep Land(StepId step, bool ok, Deadline now = {}, const StepTimes& times = {});
  // The token drawn after the sequence's last landed row. REQUIRES: a sample is owed (see LandedStep). If it is not the
  // next draft, the drafts that were launched are dropped.
  // kResourceExhausted: max_positions is reached, the sequence must be removed (finish reason "length").
  Status Append(SeqId seq, TokenId token);
  // A further token that is known without an answer of the row before it. REQUIRES: Append was the last call for this
  // sequence. kResourceExhausted as above.
  Status AppendForced(SeqId seq, TokenId token);
  // Drafts for the tokens behind the sequence's last known one, or behind Undecided, in place of those proposed before.
  // The next step with the last token's row takes as many as pay and fit; what is left may follow in further steps,
  // while those before are in flight. Append of a token that was not in flight and a preemption drop them. Ignored for
  // an unknown sequence, and where drafts may have harmed before.
  void Propose(SeqId seq, Drafts drafts);
  // The drafts behind the known tokens whose rows are launched.
  std::vector<TokenId> Undecided(SeqId seq) const;
  // Whether the rows of all known tokens are launched, so that what is proposed goes behind them.
  bool AllLaunched(SeqId seq) const;
  // Whether more drafts may follow in a further step, as far as that does not depend on their chances, and none are
  // proposed.
  bool MayGoOn(SeqId seq) const;
  // Drafts are looked for: the sequence gets no rows until DraftsCame. Unknown ids are ignored.
  void AwaitDrafts(SeqId seq);
  void DraftsCame(SeqId seq);
  // How many drafts to look for, at most `most`, where each is drawn by this chance after those before it, and takes so
  // long to find; for all sequences that decode. `may_go_on`: more may follow while they are in flight.
  DraftsWanted DraftsAhead(double chance, size_t most, Duration each, bool may_go_on = true) const;
  // The pages that the sequence holds behind its first `held` ones. Rows of drafts will be written there.
  std::vector<BlockId> BlocksBehind(SeqId seq, size_t held) const;
  // Whether a step would take drafts of this sequence now, as far as that does not depend on their chances.
  bool MayDraft(SeqId seq) const;
  // Whether the token is the one whose row was launched behind the row that is owed a token.
  bool IsNextDraft(SeqId seq, TokenId token) const;
  // Whether a token may be appended: its last row has landed. After Append this says that the token was the next draft,
  // whose row has landed too.
  bool SampleOwed(SeqId seq) const;
  // Rows behind the one whose token is owed count for nothing, those in flight too.
  void DropDrafts(SeqId seq);
  // The sequence goes on from position 0 with other tokens, as a new prompt; it keeps its place in the order of
  // arrival. Nothing of the KV cache is used again but what the prefix cache has of these tokens. REQUIRES: a sample is
  // owed; 1 to max_positions tokens.
  Status Restart(SeqId seq, std::vector<TokenId> tokens);
  // The last landed row is scheduled once more, with sample_last: its answer is gone. With recurrent state the sequence
  // begins again. REQUIRES: a sample is owed.
  void Repeat(SeqId seq);
  // A held sequence keeps its blocks and gets no rows until Unhold; what is in flight still lands. When blocks or
  // places run out it is preempted before any other. Unknown ids are ignored.
  void Hold(SeqId seq);
  void Unhold(SeqId seq);
  // It is not known yet which ids may come next: the sequence gets no rows until MaskReady, and keeps what it has. Not
  // counted as waiting for a row (SchedulerStats::longest_decode_gap). Unknown ids are ignored.
  void AwaitMask(SeqId seq);
  void MaskReady(SeqId seq);
  // No step in flight will ever land: their rows are scheduled again. `ring_lost`: they, or the questions about the
  // last landed rows of `asked`, may be why. Rows that have landed before are not. A sequence that this happened to
  // twice, without getting beyond what it had in flight then, is quarantined: the rows that have not landed yet run
  // with nothing else in flight. Returns the one that it happened to a third time, alone: the caller must Remove it.
  std::vector<SeqId> LoseFlights(bool ring_lost, std::span<const SeqId> asked = {});
  // The ring is another one. What is cached stays: after a change of prefill_matches_decode it was computed the other
  // way. `cache_namespace` names everything of the ring that changes a row's bits: sequences that are admitted from now
  // on find only blocks that were computed wholly in the same one.
  void SetRing(uint32_t max_in_flight, uint32_t decode_groups, bool prefill_matches_decode,
               uint64_t cache_namespace = 0);
  // Keeps only the first `num_blocks` blocks: all sequences are preempted, everything cached is forgotten, and a
  // sequence that wants more positions than there are now ends at them. Returns those whose tokens no longer fit: the
  // caller must Remove them. `whole`: the whole cache has so many from now on, more or fewer than before. REQUIRES:
  // nothing is in flight; 1 <= num_blocks, and without `whole` at most the whole cache's.
  std::vector<SeqId> Shrink(uint32_t num_blocks, bool whole = false);
  // All sequences are preempted; what is cached stays. REQUIRES: nothing is in flight.
  void PutBack();
  // Forgets all that is cached and may have been written after this step. What is left was last written in it or
  // before. REQUIRES: nothing runs.
  void ForgetAfter(uint64_t step);
  // Forgets these units, numbered as for LiveBlocks. REQUIRES: nothing runs.
  void Forget(std::span<const BlockId> units);
  // Lists the cached units for a restore. The prefixes of waiting sequences come first, in the order of admission.
  UnitList RestoreList() const;
  // Takes over what another scheduler had cached, in any order; what does not fit is left out. REQUIRES: nothing has
  // run.
  void Restore(std::vector<CachedUnit> units);
  // For a list of units that another process may have written since: the last steps that may have.
  std::vector<uint64_t> StepsOf(std::span<const BlockId> units) const;
  // The units whose content came or went since the last call; at most so many, the others later.
  std::vector<CacheChange> TakeCacheChanges(size_t most);
  bool cache_changed() const;
  // The next step has a higher number than this.
  void SkipSteps(uint64_t step);
  uint64_t last_step() const;  // that was launched; 0: none was
  // More blocks. REQUIRES: num_blocks >= the present number.
  void Grow(uint32_t num_blocks);

  // The units of memory that are in use or cached, rising, numbered as MemoryCounts says: what a layer's new owner
  // needs.
  std::vector<BlockId> LiveBlocks() const;
  // The sequences that may have cost two rings (LoseFlights).
  std::vector<SeqId> Quarantined() const;
  // Ends a sequence, whatever its state; its blocks come back when its last step in flight has landed.
  void Remove(SeqId seq);

  // 0 for an unknown sequence. A result of another incarnation is to be discarded.
  uint32_t Incarnation(SeqId seq) const;
  std::optional<SeqState> State(SeqId seq) const;
  // Positions in the KV cache that the sequence's current incarnation has, those of the prefix cache included.
  uint32_t Positions(SeqId seq) const;
  // The rows of the sequence that come from the prefix cache in its current incarnation.
  uint32_t CachedPositions(SeqId seq) const;
  uint32_t in_flight() const;  // steps
  bool idle() const;           // no sequence and nothing in flight
  SchedulerStats stats() const;
  // kInternal with the first contradiction: references, tables, counts, in-flight lists.
  Status CheckIntegrity() const;
  // kInternal: what was done wrongly with blocks since the last call, as a second release. The contents of blocks may
  // be of two sequences then.
  Status TakeFault();
  // Gives back the blocks whose references nobody holds, and counts them in SchedulerStats::leaked_blocks. Returns
  // their number.
  uint32_t Reclaim();

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace gyre
