// The data of a cluster: its members, its rules, its status. Plain data.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/kv_type.h"
#include "base/measured.h"
#include "base/member_load.h"
#include "base/memory_counts.h"
#include "base/plan.h"
#include "base/status.h"
#include "base/wire_type.h"
#include "coordinator/cluster/change_timeouts.h"
#include "coordinator/cluster/load_window.h"
#include "coordinator/cluster/plan_moves.h"
#include "coordinator/cluster/planner.h"
#include "coordinator/cluster/rebalance_policy.h"

namespace gyre {

struct MemberInfo {
  std::string name;     // wanted; a number is put behind it where it is taken
  std::string address;  // of its ring port (base/ring_address.h)
  std::string host;     // for people
  bool local = false;   // in the coordinator's process: beside workers, and alone where there are none
  uint64_t memory = 0;  // bytes for weights and pages; 0 = unknown
  int threads = 0;
  std::string isa;
  std::string version;                 // of its Gyre, whose kernels may round otherwise; empty: not known
  bool prefill_matches_decode = true;  // it computes prompt rows as generated ones; all do with --exact
  uint64_t model_hash = 0;
  WireTypes wire_types = kAllActivations;  // of activations that it takes part with
  std::optional<LayerRange> preference;
  uint64_t instance = 0;                   // of the process: it keeps its name when it joins again; 0 = unknown
  Transport transport = Transport::kAuto;  // its preference for links
  bool fetches = false;                    // it has no model file: what it lacks of its layers' weights is fetched
  uint64_t disk = 0;                       // bytes that fetched weights may take there, as last heard; 0 = not limited
  uint64_t last_step = 0;                  // the highest number of a step that it has had
  LayerRange holds;                        // layers that it has from the coordinator's predecessor (docs/restart.md)
  MachineSpeed speed;                      // as it was measured
  bool own_memory = false;                 // of a device, where pools are as large as the plan needs, and don't grow
  bool certified = false;                  // its name stands in its certificate, so it has this one or none
};

// One stay of a member: a process that joins again has the same name and another id.
struct Membership {
  std::string name;
  uint64_t id = 0;  // rises with every Join; 0: whoever has the name
  bool operator==(const Membership&) const = default;
};

// The state of its cluster that a coordinator needs when it is started again (docs/restart.md).
struct ClusterRecord {
  struct Stage {
    std::string worker;
    LayerRange layers;
    std::string address;  // of the worker's ring port
    bool operator==(const Stage&) const = default;
  };
  std::vector<Stage> stages;  // of the plan that serves, or served last; empty: none did
  uint32_t num_blocks = 0;    // of its KV cache
  bool on_workers = false;    // a plan over workers has served
  uint64_t plan = 0;          // its number
  std::set<std::string> drained;
  bool operator==(const ClusterRecord&) const = default;
};

// The settings of a cluster's behaviour.
struct ClusterPolicy {
  uint64_t term = 0;
  std::function<RingKey()> new_key;  // a secret for each plan; empty: all have one of zeros (tests)
  uint32_t model = 0;
  uint64_t model_hash = 0;
  ModelSizes sizes;
  int block_size = 16;
  KvType kv_type = KvType::kF16;
  bool mtp = false;                // the last stage has the model's layer for drafts, in every plan
  int min_workers = 1;             // members that are not local, for the first plan over workers
  std::string isa;                 // not empty: members of another instruction set are refused (--bit-equal)
  std::string version;             // not empty: members of another version of Gyre are refused (--bit-equal)
  bool exact = false;              // every member multiplies in f32, so that all have one class
  WireType wire = WireType::kF32;  // of activations, in every plan; members that don't take part with it are refused
  // The preference for links, in every plan; members that prefer another one are refused.
  Transport transport = Transport::kAuto;
  ChangeTimeouts timeouts;
  Duration repair_grace = std::chrono::milliseconds(500);  // after a broken ring, to learn whether a member is gone
  // The time for which a worker may reattach to its membership after its control connection ended.
  Duration detach_grace = std::chrono::milliseconds(1500);
  // A stage is stuck that is in one layer for longer than this, and than `stuck_factor` times the worker's estimate.
  Duration stuck = std::chrono::seconds(10);
  int stuck_factor = 8;
  // The same where nothing was measured yet, as after the weights were loaded.
  Duration stuck_unmeasured = std::chrono::minutes(10);
  // The time for which a link may owe a step without a byte of it, while neither end computes.
  Duration silent_link = std::chrono::seconds(5);
  // After an automatic plan that failed; doubles with each one more, up to `longest_pause`.
  Duration retry = std::chrono::seconds(2);
  // The time for which automatic plans leave a member out after a plan failed because of it; it doubles each time.
  Duration leave_out = std::chrono::seconds(5);
  Duration longest_pause = std::chrono::seconds(60);
  // The cluster's record from before a restart. Its plan is made again when all its members are back. If one is missing
  // after `adopt_wait`, a plan is made over those that are there.
  std::optional<ClusterRecord> record;
  Duration adopt_wait = std::chrono::seconds(10);
  // Each stage's full pages are copied to another member, so that a recovery restores them (docs/faults.md).
  bool replicate_kv = false;
  bool has_cache = false;  // the coordinator's predecessor stored its cache's index
  // Plans by measured speeds.
  RebalanceRules rebalance;
  double row_bytes = 0;  // of a row's activations between two stages
  double rows = 16;      // of the step that plans are compared by
  // The limit for an answer with the speeds of links; after a longer time a failed link is tried again.
  Duration probe_answer = std::chrono::seconds(20);
  Duration probe_again = std::chrono::seconds(60);
  // The time for which the steps of a plan are observed to find the speeds of its members.
  Duration observe = std::chrono::seconds(10);
};

// A member's replica of another's stage (docs/faults.md).
struct ReplicaStatus {
  std::string of;
  uint64_t pages = 0, bytes = 0;
  // The steps that the other stage has computed since those up to which the replica is whole; nullopt: it is not whole
  // yet.
  std::optional<uint64_t> behind;
};

struct MemberStatus {
  MemberInfo info;
  MemberLoad load;
  MemberRates rates;
  std::optional<LayerRange> layers;
  uint64_t weight_bytes = 0, kv_bytes = 0;
  bool drained = false;                  // it gets no layers before an undrain
  bool leaving = false;                  // its layers go to others, then it leaves
  bool detached = false;                 // its control connection is cut, and may come back
  std::string left_out;                  // why automatic plans do without it; "" if they don't
  std::vector<LinkSpeed> links;          // from it to others, as it measured them
  double slowdown = 0;                   // the factor by which its steps are slower than measured; 0 = not known
  double stage_seconds = 0;              // of its part of a step, by that; 0: it has none
  std::string why;                       // why it has the layers that it has; "" where nothing was measured
  std::optional<ReplicaStatus> replica;  // of the plan that serves; nullopt: it has none
  StageProgress loading;                 // of the stage that it prepares; all 0 if it prepares none
};

// The way in which a change is asked for.
struct AskMode {
  bool dry_run = false;  // say what it would do, or why it is refused, and do nothing
  MemoryCounts live;     // units of memory in use or cached
};

// The effect of a change, or of a dry run.
struct ChangeReport {
  Epoch epoch;               // of the plan that serves now; all 0 in a dry run, and where none serves
  std::string ranges;        // "0-7,8-15"
  std::string named_ranges;  // "a=0-7,b=8-15"
  bool dry_run = false;
  std::vector<LayerMove> moves;
  std::vector<MemberShare> members;
  uint64_t pages_moved = 0, last_pages = 0;
  uint64_t kv_tokens = 0;  // that the KV cache holds
  Duration took{};
};

// The record of a plan that serves, was given up, or was lost.
struct PlanRecord {
  uint64_t number = 0;
  std::string ranges;  // with names
  std::chrono::system_clock::time_point at{};
  Duration took{};  // from its beginning to its end; 0 for a loss of a plan that served
  // The time for which the ring gave no results before the plan served: that of a planned change, or since the fault
  // that made the plan necessary.
  Duration paused{};
  uint64_t pages_moved = 0;
  std::string result;  // "serving", "aborted: why", "lost: why"
};
inline constexpr size_t kPlanHistory = 64;

// Something that happened to the cluster, for people. docs/faults.md#events has the kinds.
enum class EventKind : uint8_t {
  kJoined,
  kLeft,
  kLost,
  kDrained,
  kUndrained,
  kLeftOut,
  kCut,
  kBack,
  kRingBroken,
  kPlan,
  kPlanFailed,
  kRecovered,
  kCache
};
// The name in status and JSON, as "joined" or "left_out".
const char* EventKindName(EventKind kind);

struct ClusterEvent {
  EventKind kind = EventKind::kJoined;
  std::string member;  // that it is about; "" = none
  std::string text;    // a whole sentence, with the cause
  uint64_t plan = 0;   // its number; 0 = none
  Duration took{};     // kRecovered: since the last sign of the ring before. kPlan: the change. Otherwise 0
  // Fields that the board adds.
  uint64_t number = 0;  // rises by one with each event
  std::chrono::system_clock::time_point at{};
};
inline constexpr size_t kClusterEvents = 128;

struct ClusterStatus {
  std::optional<Plan> plan;
  std::string state;                  // "serving", "plan 3: preparing", or why nothing runs; then who is left out
  std::vector<MemberStatus> members;  // those with layers in ring order, then the others in join order
  uint64_t plans = 0, aborted = 0, lost = 0;
  std::string replay_note;      // why texts may change where a member is lost; "" if they don't
  bool rounds_prompts = false;  // a stage computes prompt rows otherwise than generated ones
  std::optional<ChangeReport> last_change;
  Rebalance rebalance = Rebalance::kOff;
  std::optional<Proposal> proposal;
  double step_seconds = 0;  // that a step of the plan is expected to take; 0 = not known
  WireType wire = WireType::kF32;
  Transport transport = Transport::kAuto;  // the preference
  KvType kv_type = KvType::kF16;
  int block_size = 16;          // positions of a KV block
  uint32_t num_blocks = 0;      // of the plan that is being made; where there is none, of the one that runs
  KvBytesByGroup unit_bytes{};  // of a unit of each kind of memory, in all layers
  // Fields that the cluster's thread adds to the state machine's own.
  uint64_t revision = 0;             // rises with every change of plan, state or members; not with loads
  std::vector<PlanRecord> history;   // the last kPlanHistory, the newest last
  std::vector<ClusterEvent> events;  // the last kClusterEvents, the newest last
  double tokens_per_second = 0;      // generated, over the last seconds
  // The link from the coordinator to the first stage: its round trip, where known, and what carries it; kAuto: none.
  std::optional<Duration> first_hop;
  Transport first_hop_transport = Transport::kAuto;
};

// Whether people would see another plan, state or member. Loads don't count.
bool SameCluster(const ClusterStatus& a, const ClusterStatus& b);

}  // namespace gyre
