// The control plane's messages as Gyre's types, in both directions. Every Decode limits its input: counts,
// sizes, lengths and characters of texts, and numbers that Gyre's types cannot hold. Pure functions, thread-safe.
//
// The code is in control_codec.cc (events and commands), attach_codec.cc (ClusterInfo, WeightsReply, hello, welcome),
// plan_codec.cc (changes and their answers) and report_codec.cc (heartbeat, trace, probed); codec_parts.h has what they
// share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/member_load.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "base/weights_part.h"
#include "base/wire_type.h"
#include "gyre/v1/cluster.pb.h"

namespace gyre {

// Both ends must have exactly this version.
inline constexpr uint32_t kControlProtocol = 8;
// The words with which a coordinator ends a worker's stream when its process ends.
inline constexpr char kCoordinatorStops[] = "the coordinator stops";

// The facts that a worker needs before it attaches: the answer to Cluster.Info.
struct ClusterFacts {
  uint32_t protocol = kControlProtocol;
  uint64_t term = 0;
  uint64_t cluster_id = 0;  // of a coordinator whose state outlives it; 0 = it has none
  std::string version;
  std::string model_path;  // on the coordinator's machine
  uint64_t model_hash = 0;
  int layers = 0;
  double rope_base = 0, norm_eps = 0;  // settings of .bin models, which the file does not have; 0 = none
  bool exact = false;                  // quantized weights with f32 activations
  uint32_t context = 0;                // positions that were asked for; 0 = the file's
  bool weights = false;                // it gives the model to workers without the file
  std::vector<std::string> adapters;   // paths of the model's adapters there, in their order
};

// A worker's first event.
struct WorkerHello {
  uint32_t protocol = kControlProtocol;
  std::string name;          // wanted; Welcome has the one that it gets
  std::string ring_address;  // base/ring_address.h
  uint64_t model_hash = 0;
  std::string isa;
  uint32_t threads = 0;
  uint64_t memory = 0;  // bytes for weights and pages; 0 = unknown
  std::optional<LayerRange> preference;
  std::string version;
  WireTypes wire_types = Only(WireType::kF32);
  bool prefill_matches_decode = false;
  uint64_t instance = 0;                   // random for each process, kept when it connects again; 0 = unknown
  Transport transport = Transport::kAuto;  // its preference for links
  uint64_t resumes_term = 0;               // of the membership that it would reattach to; 0 = none
  uint64_t received = 0;                   // the number of the last command that came in it
  bool fetches = false;                    // it has no model file
  uint64_t disk = 0;                       // bytes that fetched weights may take; 0 = unknown
  std::optional<LayerRange> holds;         // layers that it keeps from the coordinator before this one
  MachineSpeed speed;
  uint64_t last_step = 0;   // the highest number of a step that it has had, from any coordinator
  bool own_memory = false;  // of a device, which has no room for units that are not used
};

struct Welcome {
  std::string name;
  uint64_t term = 0;
  bool resumed = false;                // the membership goes on as it was
  uint64_t received = 0;               // the number of the last event that came in it
  std::optional<RingKey> weights_key;  // of links for weights
};
struct TraceCommand {
  Deadline asked{};
};
struct RevokedCommand {
  std::string crl;  // PEM
};
struct DismissCommand {};
struct ProbeCommand {
  std::vector<WeightSource> peers;
};
// A command that this version does not know: if it must be answered, it times out at the coordinator.
struct UnknownCommand {};

struct WorkerCommand {
  std::variant<UnknownCommand, Welcome, Change, TraceCommand, RevokedCommand, DismissCommand, ProbeCommand> what;
  uint64_t number = 0;  // of the command in its membership; 0: a welcome
};

// `StageEvent::worker` is not sent: the receiver knows the stream's worker. monostate: an event that this version
// does not know.
struct LeavingEvent {};
using WorkerMessage = std::variant<std::monostate, WorkerHello, MemberLoad, StageEvent, LeavingEvent>;

v1::ClusterInfo Encode(const ClusterFacts& facts);
v1::WorkerEvent Encode(const WorkerHello& hello);
v1::WorkerEvent Encode(const MemberLoad& load);
v1::WorkerEvent Encode(const StageEvent& event);
v1::WorkerEvent Encode(const LeavingEvent& event);
v1::Command Encode(const WorkerCommand& command);

v1::WeightsReply Encode(const WeightsPart& part);

// kFailedPrecondition: another protocol. kInvalidArgument: the message says which field is wrong, and why.
StatusOr<ClusterFacts> Decode(const v1::ClusterInfo& info);
StatusOr<WorkerMessage> Decode(const v1::WorkerEvent& event);
StatusOr<WorkerCommand> Decode(const v1::Command& command);
StatusOr<WeightsPart> Decode(const v1::WeightsReply& reply);

}  // namespace gyre
