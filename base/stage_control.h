// The coordinator's control over one worker's stage. The adapter for stages in this process is worker/worker.h.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/kv_type.h"
#include "base/measured.h"
#include "base/memory_counts.h"
#include "base/plan.h"
#include "base/status.h"
#include "base/trace.h"

namespace gyre {

// Layers whose KV pages another member holds in the running plan, or has a replica of.
struct LayerSource {
  LayerRange layers;
  std::string worker;
  std::string address;   // of its ring port
  uint64_t replica = 0;  // not 0: the number of the plan whose replica they are taken from
  bool operator==(const LayerSource&) const = default;
};

// A process that may have weights which the worker does not have (docs/weights.md).
struct WeightSource {
  std::string name;
  std::string address;  // of its ring port
  bool operator==(const WeightSource&) const = default;
};

// The stage that a worker prepares: its stage of `plan`, and the page pool, which has the same size on every stage.
struct PrepareRequest {
  Plan plan;
  int stage = 0;  // -1: it has layers in the running plan but none in this one
  int block_size = 16;
  // The largest size of the cache: pools have room for all of it, as unused pages take no memory. The scheduler decides
  // how many of the units are in use, and what one sequence needs: `least` is not sent.
  MemoryCounts memory;
  // The part of `memory` that this plan uses, as the cache may be cut. Pools in the memory of a device that only it has
  // are so large, and the cache does not grow while such a pool serves. Without pages: all of `memory`.
  MemoryCounts in_use;
  bool fresh = false;  // what is in the cache is forgotten: pools begin anew, and their memory is given back
  KvType kv_type = KvType::kF16;
  bool mtp = false;                  // the last stage has the model's layer for drafts (docs/speculation.md)
  std::vector<LayerSource> sources;  // layers of this stage that the worker does not run now
  // Not 0: the plan with this number is lost and its pages are restored, so that its replicas are final and its stages
  // compute no more. Nothing is copied before the Move (docs/faults.md).
  uint64_t restores = 0;
  std::vector<WeightSource> weight_sources;
};

// Progress of loading and packing, in bytes of weights. done = total once all weights are there, so that a member that
// only waits for others can be told from one that delays them.
struct StageProgress {
  uint64_t done = 0;
  uint64_t total = 0;
  uint64_t fetched = 0, to_fetch = 0;  // bytes from other machines, before they are packed
};
// The units of memory that a Move is about, numbered as MemoryCounts says.
struct UnitList {
  UnitList() = default;
  UnitList(std::vector<BlockId> all) : units(std::move(all)) {}  // NOLINT: as the list alone
  UnitList(std::initializer_list<BlockId> all) : units(all) {}
  // In use or cached: rising, or for a restore in the order of their use.
  std::vector<BlockId> units;
  // For a restore: the first `needed` units belong to the beginnings of waiting sequences.
  uint32_t needed = 0;
  // Empty, or for each unit the last step that may have written it. A unit with a later stamp has other contents and
  // counts as missing.
  std::vector<uint64_t> steps;
  bool operator==(const UnitList&) const = default;
};

// What a member is told to do in a change from one plan to the next. The numbers cross the wire. A new verb has its
// name here, PlanChange sends it, and Worker::Impl::Apply does it (docs/resize.md, "Adding a verb").
enum class ChangeVerb : uint8_t {
  // Loads weights, allocates pages, connects the plan's links and starts to copy KV pages, all beside the running
  // stage. A new Prepare replaces a prepared stage.
  kPrepare = 1,
  // After the drain, copies the pages that were written since the last round; each of `units` must have its last value
  // here afterwards. Where the plan restores, copies those of the list, as many as come in a short time.
  kMove,
  // Makes the prepared stage the running one, between two steps; keeps the previous one until Release.
  kCommit,
  // Frees the previous stage, its pages and its links, as every participant has committed. It has no answer.
  kRelease,
  // Drops a prepared stage. Idempotent. Its only answer is StageDone.
  kAbort,
};
inline constexpr ChangeVerb kLastChangeVerb = ChangeVerb::kAbort;

// A command of a plan's change. It is answered with StageDone or StageFault, but for those whose verb says otherwise.
struct Change {
  ChangeVerb verb = ChangeVerb::kAbort;
  Epoch epoch;             // of the plan
  PrepareRequest prepare;  // kPrepare: its plan has the same epoch
  UnitList units;          // kMove
};
inline Change PrepareChange(PrepareRequest request) {
  const Epoch epoch = request.plan.epoch;
  return {.verb = ChangeVerb::kPrepare, .epoch = epoch, .prepare = std::move(request), .units = {}};
}

// A member has done what it was told.
struct StageDone {
  ChangeVerb verb = ChangeVerb::kAbort;
  // kPrepare: the step up to which its replica of PrepareRequest::restores is whole, 0 where the plan has had none;
  // nullopt: it is not whole.
  std::optional<uint64_t> replicated;
  // kMove:
  uint64_t pages = 0;  // of all layers, in all rounds
  uint64_t bytes = 0;
  uint64_t last_pages = 0;       // those in the round after the drain
  std::vector<BlockId> missing;  // of a restore: the units of the list that are not here as a whole
};
// A stage that could not make one of its links begins its message with one of these, so that the cluster can tell which
// neighbor is at fault.
inline constexpr char kLinkToNextStage[] = "the link to the next stage";
inline constexpr char kLinkFromStageBefore[] = "the link from the stage before";
struct StageFault {
  Status status;
};

// The answer to StageControl::Trace. Times are by the clock of the stage's machine, unless clock_error says otherwise.
struct StageTrace {
  Deadline asked{};     // as it was asked
  Deadline answered{};  // when the stage answered
  std::vector<StageSpan> spans;
  Duration clock_error{};  // set by who translated the times into those of its own clock
};
inline constexpr size_t kMaxTraceSpans = 4096;  // of an answer; what is more is not recorded

// The answer to StageControl::Probe: a link for each peer that was asked for, in their order.
struct StageProbed {
  std::vector<LinkSpeed> links;
};

struct StageEvent {
  std::string worker;
  Epoch epoch;
  std::variant<StageProgress, StageDone, StageFault, StageTrace, StageProbed> what;
  // The answer to a command with this verb; null: the event is something else.
  const StageDone* AnswerTo(ChangeVerb verb) const {
    const auto* done = std::get_if<StageDone>(&what);
    return done != nullptr && done->verb == verb ? done : nullptr;
  }
};

// Calls return at once; their results arrive as events on a thread of the implementation. Thread-safe.
class StageControl {
 public:
  using EventSink = std::function<void(StageEvent)>;
  virtual ~StageControl() = default;
  virtual const std::string& name() const = 0;
  // Replaces the sink. Call it before any other function. The sink must not block and must not call back.
  virtual void SetEventSink(EventSink sink) = 0;
  // The next command of a change. Commands of a member are done in their order.
  virtual void Apply(const Change& change) = 0;
  // Asks for the spans since the last call, which arrive as StageTrace. Recording goes on for some seconds. `asked` is
  // a time of the caller's clock, which comes back with the answer.
  virtual void Trace(Deadline asked) { static_cast<void>(asked); }
  // Measures the links to these members, one after the other, with few bytes and for a short time. Ends with
  // StageProbed; a member that can't do that does not answer.
  virtual void Probe(const std::vector<WeightSource>& peers) { static_cast<void>(peers); }
  // Tells the member that it is no longer needed: a worker's process ends.
  virtual void Dismiss() {}
};

}  // namespace gyre
