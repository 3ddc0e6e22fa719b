#include "proto/control_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "base/host_port.h"
#include "base/ring_address.h"
#include "proto/convert.h"
#include "proto/report_codec.h"

namespace gyre {
namespace {

// These limits are far beyond any cluster, and small enough that a hostile message costs little.
constexpr int kMaxLayers = 1 << 16;
constexpr int kMaxStages = 1 << 12;  // and layer sources
constexpr int kMaxBlocks = 1 << 24;
constexpr uint64_t kMaxStep = uint64_t{1} << 62;
constexpr uint32_t kMaxThreads = 1 << 16;
constexpr size_t kMaxName = 64, kMaxShortText = 256, kMaxPath = 4096, kMaxFault = 1000;
constexpr int kMaxBlockSize = 1 << 16;
constexpr int kLastStatusCode = 16;

void Set(v1::LayerRange* out, LayerRange range) {
  out->set_begin(range.begin);
  out->set_end(range.end);
}

LayerRange Get(const v1::LayerRange& range) { return {range.begin(), range.end()}; }

void Set(v1::Epoch* out, Epoch epoch) {
  out->set_term(epoch.term);
  out->set_number(epoch.number);
}

Epoch Get(const v1::Epoch& epoch) { return {epoch.term(), epoch.number()}; }

// Texts that go to logs and terminals: printable ASCII only.
Status CheckText(const char* what, const std::string& text, size_t most) {
  if (text.size() > most) return InvalidArgument("{}: {} bytes, at most {} fit", what, text.size(), most);
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < '\x7F'; });
  if (!printable) return InvalidArgument("{}: only printable ASCII is expected", what);
  return absl::OkStatus();
}

// "" for a member in the coordinator's process, ":PORT" for the host that the worker joined at.
Status CheckPlanAddress(const std::string& address) {
  return address.empty() ? absl::OkStatus() : ParseRingAddress(address).status();
}

// The number must be 0 to 255, so that no larger one is cut to a known one.
StatusOr<Transport> GetTransport(uint32_t number) {
  const auto transport = static_cast<Transport>(std::min(number, uint32_t{0xFF}));
  if (!IsTransportWish(transport)) return InvalidArgument("links over carrier {}, which is unknown here", number);
  return transport;
}

Status CheckRange(const v1::LayerRange& range) {
  if (range.begin() >= 0 && range.begin() <= range.end() && range.end() <= kMaxLayers) return absl::OkStatus();
  return InvalidArgument("layers [{}, {}): expected 0 <= begin <= end <= {}", range.begin(), range.end(), kMaxLayers);
}

MachineSpeed GetSpeed(const v1::MachineSpeed& speed) {
  return {.memory_bytes_per_second = Rate(speed.memory_bytes_per_second()),
          .operations_per_second = Rate(speed.operations_per_second()),
          .disk_bytes_per_second = Rate(speed.disk_bytes_per_second())};
}

// Used in both Prepare and Probe.
StatusOr<WeightSource> GetSource(const v1::WeightSource& s) {
  GYRE_RETURN_IF_ERROR(CheckMemberName(s.name()));
  GYRE_RETURN_IF_ERROR(CheckPlanAddress(s.address()));
  return WeightSource{s.name(), s.address()};
}

void Set(v1::WeightSource* out, const WeightSource& source) {
  out->set_name(source.name);
  out->set_address(source.address);
}

StatusOr<WorkerHello> DecodeHello(const v1::WorkerHello& h) {
  if (h.protocol() != kControlProtocol) {
    return FailedPrecondition("it speaks control protocol {}, expected {}", h.protocol(), kControlProtocol);
  }
  GYRE_RETURN_IF_ERROR(CheckMemberName(h.name()));
  if (h.name() == "local") return InvalidArgument("the name 'local' is the coordinator's own");
  GYRE_ASSIGN_OR_RETURN(const RingAddress ring, ParseRingAddress(h.ring_address()));
  GYRE_RETURN_IF_ERROR(ParseHostPort(ring.tcp).status());
  GYRE_ASSIGN_OR_RETURN(const Transport transport, GetTransport(h.transport()));
  if (h.threads() == 0 || h.threads() > kMaxThreads) {
    return InvalidArgument("{} threads, expected 1 to {}", h.threads(), kMaxThreads);
  }
  GYRE_RETURN_IF_ERROR(CheckText("instruction set", h.isa(), kMaxName));
  GYRE_RETURN_IF_ERROR(CheckText("version", h.version(), kMaxShortText));
  if (h.has_holds()) GYRE_RETURN_IF_ERROR(Annotate(CheckRange(h.holds()), "what it holds"));
  if (h.last_step() > kMaxStep) return InvalidArgument("step {}, at most {}", h.last_step(), kMaxStep);
  return WorkerHello{.protocol = h.protocol(),
                     .name = h.name(),
                     .ring_address = h.ring_address(),
                     .model_hash = h.model_hash(),
                     .isa = h.isa(),
                     .threads = h.threads(),
                     .memory = h.memory_bytes(),
                     .wish = h.has_wish() ? std::optional(Get(h.wish())) : std::nullopt,
                     .version = h.version(),
                     .wire_types = h.wire_types() == 0 ? Only(WireType::kF32) : h.wire_types(),
                     .prefill_matches_decode = h.prefill_matches_decode(),
                     .instance = h.instance(),
                     .transport = transport,
                     .resumes_term = h.resumes_term(),
                     .received = h.received(),
                     .fetches = h.fetches(),
                     .disk = h.disk_bytes(),
                     .holds = h.has_holds() ? std::optional(Get(h.holds())) : std::nullopt,
                     .speed = GetSpeed(h.speed()),
                     .last_step = h.last_step()};
}

StatusOr<MoveCommand> DecodeMove(const v1::Move& m) {
  if (m.steps_size() != 0 && m.steps_size() != m.blocks_size()) {
    return InvalidArgument("a move of {} blocks has {} steps", m.blocks_size(), m.steps_size());
  }
  MoveCommand out;
  out.list.units = {m.blocks().begin(), m.blocks().end()};
  out.list.needed = m.needed();  // the reader cuts it to the list
  out.list.steps = {m.steps().begin(), m.steps().end()};
  return out;
}

StatusOr<Welcome> DecodeWelcome(const v1::Welcome& w) {
  Welcome welcome{
      .name = w.name(), .term = w.term(), .resumed = w.resumed(), .received = w.received(), .weights_key = {}};
  if (w.weights_key().empty()) return welcome;
  RingKey key{};
  if (w.weights_key().size() != key.size()) {
    return InvalidArgument("a welcome's key has {} bytes, expected {}", w.weights_key().size(), key.size());
  }
  std::copy(w.weights_key().begin(), w.weights_key().end(), key.begin());
  welcome.weights_key = key;
  return welcome;
}

StageFault DecodeFault(const v1::Fault& fault) {
  const int code = fault.code();
  const std::string text = CutUtf8(fault.message(), kMaxFault);
  return {Status(code > 0 && code <= kLastStatusCode ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                 absl::string_view(text.data(), text.size()))};
}

StatusOr<Plan> DecodePlan(const v1::Plan& p, Epoch epoch) {
  Plan plan;
  plan.epoch = epoch;
  plan.model = p.model();
  plan.model_hash = p.model_hash();
  if (p.num_layers() < 0 || p.num_layers() > kMaxLayers) {
    return InvalidArgument("a plan of {} layers, expected at most {}", p.num_layers(), kMaxLayers);
  }
  plan.num_layers = p.num_layers();
  GYRE_RETURN_IF_ERROR(CheckPlanAddress(p.coordinator_address()));
  plan.coordinator_address = p.coordinator_address();
  if (p.key().size() != plan.key.size()) {
    return InvalidArgument("a plan's key has {} bytes, expected {}", p.key().size(), plan.key.size());
  }
  std::copy(p.key().begin(), p.key().end(), plan.key.begin());
  if (p.stages_size() > kMaxStages)
    return InvalidArgument("a plan of {} stages, at most {}", p.stages_size(), kMaxStages);
  std::vector<Assignment> assignments;
  for (const v1::Stage& s : p.stages()) {
    GYRE_RETURN_IF_ERROR(CheckRange(s.layers()));
    GYRE_RETURN_IF_ERROR(CheckMemberName(s.worker()));
    GYRE_RETURN_IF_ERROR(CheckPlanAddress(s.address()));
    assignments.push_back({s.worker(), s.address(), Get(s.layers())});
  }
  plan.stages = MakeStages(assignments);
  for (int i = 0; i < p.stages_size(); ++i) {
    const std::string& holder = p.stages(i).mirrored_by();
    if (!holder.empty()) GYRE_RETURN_IF_ERROR(CheckMemberName(holder));
    plan.stages[static_cast<size_t>(i)].mirrored_by = holder;
  }
  if (p.wire() > 0xFF) return InvalidArgument("a plan with activations of type {}", p.wire());
  if (p.wire() != 0) plan.wire = static_cast<WireType>(p.wire());
  GYRE_ASSIGN_OR_RETURN(plan.transport, GetTransport(p.transport()));
  return plan;
}

StatusOr<LayerSource> GetLayerSource(const v1::LayerSource& s) {
  GYRE_RETURN_IF_ERROR(CheckRange(s.layers()));
  GYRE_RETURN_IF_ERROR(CheckMemberName(s.worker()));
  GYRE_RETURN_IF_ERROR(CheckPlanAddress(s.address()));
  return LayerSource{Get(s.layers()), s.worker(), s.address(), s.mirror()};
}

void Set(v1::LayerSource* out, const LayerSource& s) {
  Set(out->mutable_layers(), s.layers);
  out->set_worker(s.worker);
  out->set_address(s.address);
  out->set_mirror(s.mirror);
}

StatusOr<PrepareRequest> DecodePrepare(const v1::Prepare& p, Epoch epoch) {
  PrepareRequest r;
  GYRE_ASSIGN_OR_RETURN(r.plan, DecodePlan(p.plan(), epoch));
  if (p.stage() < -1 || p.stage() >= kMaxStages) return InvalidArgument("stage {} of a plan", p.stage());
  r.stage = p.stage();
  if (p.block_size() < 0 || p.block_size() > kMaxBlockSize) {
    return InvalidArgument("KV blocks of {} positions, expected at most {}", p.block_size(), kMaxBlockSize);
  }
  r.block_size = p.block_size();
  r.num_blocks = p.num_blocks();
  r.num_slots = p.num_slots();
  r.window_blocks = p.window_blocks();
  r.fresh = p.fresh();
  if (p.kv_type() >= kKvTypeNames.size()) return InvalidArgument("KV type {} is unknown", p.kv_type());
  r.kv_type = static_cast<KvType>(p.kv_type());
  if (p.sources_size() > kMaxStages) {
    return InvalidArgument("a plan of {} layer sources, at most {}", p.sources_size(), kMaxStages);
  }
  for (const v1::LayerSource& s : p.sources()) {
    GYRE_ASSIGN_OR_RETURN(LayerSource source, GetLayerSource(s));
    r.sources.push_back(std::move(source));
  }
  r.recalls = p.recalls();
  if (p.weight_sources_size() > kMaxStages) {
    return InvalidArgument("a plan of {} sources of weights, at most {}", p.weight_sources_size(), kMaxStages);
  }
  for (const v1::WeightSource& s : p.weight_sources()) {
    GYRE_ASSIGN_OR_RETURN(WeightSource source, GetSource(s));
    r.weight_sources.push_back(std::move(source));
  }
  return r;
}

StatusOr<ProbeCommand> DecodeProbe(const v1::Probe& p) {
  if (p.peers_size() > static_cast<int>(kMaxLinkSpeeds)) {
    return InvalidArgument("links to {} members are to be measured, at most {}", p.peers_size(), kMaxLinkSpeeds);
  }
  ProbeCommand out;
  for (const v1::WeightSource& peer : p.peers()) {
    GYRE_ASSIGN_OR_RETURN(WeightSource source, GetSource(peer));
    out.peers.push_back(std::move(source));
  }
  return out;
}

void EncodePrepare(const PrepareRequest& request, v1::Prepare* p) {
  const Plan& plan = request.plan;
  v1::Plan* out = p->mutable_plan();
  out->set_model(plan.model);
  out->set_model_hash(plan.model_hash);
  out->set_num_layers(plan.num_layers);
  out->set_coordinator_address(plan.coordinator_address);
  out->set_key(plan.key.data(), plan.key.size());
  for (const StagePlan& s : plan.stages) {
    v1::Stage* stage = out->add_stages();
    Set(stage->mutable_layers(), s.layers);
    stage->set_worker(s.worker());
    stage->set_address(s.members[0].address);
    stage->set_mirrored_by(s.mirrored_by);
  }
  out->set_wire(static_cast<uint32_t>(plan.wire));
  out->set_transport(static_cast<uint32_t>(plan.transport));
  p->set_stage(request.stage);
  p->set_block_size(request.block_size);
  p->set_num_blocks(request.num_blocks);
  p->set_num_slots(request.num_slots);
  p->set_window_blocks(request.window_blocks);
  p->set_fresh(request.fresh);
  p->set_kv_type(static_cast<uint32_t>(request.kv_type));
  for (const LayerSource& s : request.sources) Set(p->add_sources(), s);
  p->set_recalls(request.recalls);
  for (const WeightSource& s : request.weight_sources) Set(p->add_weight_sources(), s);
}

struct EncodeCommand {
  v1::Command* out;
  void operator()(const UnknownCommand&) const {}
  void operator()(const Welcome& w) const {
    out->mutable_welcome()->set_name(w.name);
    out->mutable_welcome()->set_term(w.term);
    out->mutable_welcome()->set_resumed(w.resumed);
    out->mutable_welcome()->set_received(w.received);
    if (w.weights_key) out->mutable_welcome()->set_weights_key(w.weights_key->data(), w.weights_key->size());
  }
  void operator()(const PrepareRequest& r) const { EncodePrepare(r, out->mutable_prepare()); }
  void operator()(const MoveCommand& m) const {
    out->mutable_move()->mutable_blocks()->Add(m.list.units.begin(), m.list.units.end());
    out->mutable_move()->set_needed(m.list.needed);
    out->mutable_move()->mutable_steps()->Add(m.list.steps.begin(), m.list.steps.end());
  }
  void operator()(const CommitCommand&) const { out->mutable_commit(); }
  void operator()(const ReleaseCommand&) const { out->mutable_release(); }
  void operator()(const AbortCommand&) const { out->mutable_abort(); }
  void operator()(const TraceCommand& t) const { out->mutable_trace()->set_asked_ns(NanosOf(t.asked)); }
  void operator()(const RevokedCommand& r) const { out->mutable_revoked()->set_crl(r.crl); }
  void operator()(const DismissCommand&) const { out->mutable_dismiss(); }
  void operator()(const ProbeCommand& p) const {
    for (const WeightSource& peer : p.peers) Set(out->mutable_probe()->add_peers(), peer);
    out->mutable_probe();
  }
};

struct EncodeStageEvent {
  v1::WorkerEvent* out;
  void operator()(const StageProgress& p) const {
    out->mutable_progress()->set_done(p.done);
    out->mutable_progress()->set_total(p.total);
    out->mutable_progress()->set_fetched(p.fetched);
    out->mutable_progress()->set_to_fetch(p.to_fetch);
  }
  void operator()(const StageReady& r) const {
    out->mutable_ready();
    if (r.mirrored) out->mutable_ready()->set_mirrored(*r.mirrored);
  }
  void operator()(const StageMoved& m) const {
    out->mutable_moved()->set_pages(m.pages);
    out->mutable_moved()->set_bytes(m.bytes);
    out->mutable_moved()->set_last_pages(m.last_pages);
    out->mutable_moved()->mutable_missing()->Add(m.missing.begin(), m.missing.end());
  }
  void operator()(const StageCommitted&) const { out->mutable_committed(); }
  void operator()(const StageAborted&) const { out->mutable_aborted(); }
  void operator()(const StageFault& f) const {
    out->mutable_fault()->set_code(f.status.raw_code());
    out->mutable_fault()->set_message(CutUtf8(Message(f.status), kMaxFault - 3));
  }
  void operator()(const StageTrace& t) const { EncodeTrace(t, out->mutable_traced()); }
  void operator()(const StageProbed& p) const { EncodeProbed(p, out->mutable_probed()); }
};

}  // namespace

Status CheckMemberName(const std::string& name) {
  if (name.empty() || name.size() > kMaxName) {
    return InvalidArgument("a name has 1 to {} characters, not {}", kMaxName, name.size());
  }
  const bool fine = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
  if (!fine) return InvalidArgument("a name has letters, digits, '-', '_' and '.' only");
  return absl::OkStatus();
}

v1::ClusterInfo Encode(const ClusterFacts& facts) {
  v1::ClusterInfo out;
  out.set_protocol(facts.protocol);
  out.set_term(facts.term);
  out.set_cluster_id(facts.cluster_id);
  out.set_version(facts.version);
  out.set_model_path(facts.model_path);
  out.set_model_hash(facts.model_hash);
  out.set_layers(facts.layers);
  out.set_rope_base(facts.rope_base);
  out.set_norm_eps(facts.norm_eps);
  out.set_exact(facts.exact);
  out.set_context(static_cast<int>(facts.context));
  out.set_weights(facts.weights);
  return out;
}

StatusOr<ClusterFacts> Decode(const v1::ClusterInfo& info) {
  GYRE_RETURN_IF_ERROR(CheckText("the coordinator's version", info.version(), kMaxShortText));
  if (info.protocol() != kControlProtocol) {
    return FailedPrecondition(
        "the coordinator (Gyre {}) speaks control protocol {}, this worker {}: update one of them", info.version(),
        info.protocol(), kControlProtocol);
  }
  if (info.model_path().size() > kMaxPath || info.model_path().find('\0') != std::string::npos) {
    return InvalidArgument("the coordinator's model has a path of {} bytes, expected at most {} and no zero among them",
                           info.model_path().size(), kMaxPath);
  }
  if (info.layers() < 0 || info.layers() > kMaxLayers || info.context() < 0) {
    return InvalidArgument("the coordinator's model has {} layers and a context of {}", info.layers(), info.context());
  }
  if (!(info.rope_base() >= 0 && std::isfinite(info.rope_base())) || !(info.norm_eps() >= 0 && info.norm_eps() < 1)) {
    return InvalidArgument("the coordinator's model has a rope base of {} and an epsilon of {}", info.rope_base(),
                           info.norm_eps());
  }
  return ClusterFacts{.protocol = info.protocol(),
                      .term = info.term(),
                      .cluster_id = info.cluster_id(),
                      .version = info.version(),
                      .model_path = info.model_path(),
                      .model_hash = info.model_hash(),
                      .layers = info.layers(),
                      .rope_base = info.rope_base(),
                      .norm_eps = info.norm_eps(),
                      .exact = info.exact(),
                      .context = static_cast<uint32_t>(info.context()),
                      .weights = info.weights()};
}

v1::WeightsReply Encode(const WeightsPart& part) {
  v1::WeightsReply out;
  out.set_hashed(part.hashed);
  out.set_to_hash(part.to_hash);
  out.set_root(part.root.data(), part.root.size());
  out.set_manifest_bytes(part.manifest_bytes);
  out.set_header_bytes(part.header_bytes);
  out.set_data(part.data.data(), part.data.size());
  return out;
}

StatusOr<WeightsPart> Decode(const v1::WeightsReply& reply) {
  WeightsPart out{.hashed = reply.hashed(),
                  .to_hash = reply.to_hash(),
                  .root = {},
                  .manifest_bytes = reply.manifest_bytes(),
                  .header_bytes = reply.header_bytes(),
                  .data = {}};
  if (reply.root().size() != out.root.size()) {
    return InvalidArgument("a manifest's root has {} bytes, expected {}", reply.root().size(), out.root.size());
  }
  if (reply.data().size() > kWeightsPartBytes) {
    return InvalidArgument("a part of {} bytes, at most {}", reply.data().size(), kWeightsPartBytes);
  }
  std::memcpy(out.root.data(), reply.root().data(), out.root.size());
  const auto data = std::as_bytes(std::span(reply.data()));
  out.data.assign(data.begin(), data.end());
  return out;
}

v1::WorkerEvent Encode(const WorkerHello& hello) {
  v1::WorkerEvent out;
  v1::WorkerHello* h = out.mutable_hello();
  h->set_protocol(hello.protocol);
  h->set_name(hello.name);
  h->set_ring_address(hello.ring_address);
  h->set_model_hash(hello.model_hash);
  h->set_isa(hello.isa);
  h->set_threads(hello.threads);
  h->set_memory_bytes(hello.memory);
  if (hello.wish) Set(h->mutable_wish(), *hello.wish);
  h->set_version(hello.version);
  h->set_wire_types(hello.wire_types);
  h->set_prefill_matches_decode(hello.prefill_matches_decode);
  h->set_instance(hello.instance);
  h->set_transport(static_cast<uint32_t>(hello.transport));
  h->set_resumes_term(hello.resumes_term);
  h->set_received(hello.received);
  h->set_fetches(hello.fetches);
  h->set_disk_bytes(hello.disk);
  if (hello.holds) Set(h->mutable_holds(), *hello.holds);
  h->mutable_speed()->set_memory_bytes_per_second(hello.speed.memory_bytes_per_second);
  h->mutable_speed()->set_operations_per_second(hello.speed.operations_per_second);
  h->mutable_speed()->set_disk_bytes_per_second(hello.speed.disk_bytes_per_second);
  h->set_last_step(hello.last_step);
  return out;
}

v1::WorkerEvent Encode(const MemberLoad& load) {
  v1::WorkerEvent out;
  EncodeLoad(load, out.mutable_heartbeat());
  return out;
}

v1::WorkerEvent Encode(const StageEvent& event) {
  v1::WorkerEvent out;
  Set(out.mutable_epoch(), event.epoch);
  std::visit(EncodeStageEvent{&out}, event.what);
  return out;
}

v1::WorkerEvent Encode(const LeavingEvent&) {
  v1::WorkerEvent out;
  out.mutable_leaving();
  return out;
}

StatusOr<WorkerMessage> Decode(const v1::WorkerEvent& event) {
  StageEvent out{.worker = {}, .epoch = Get(event.epoch()), .what = StageAborted{}};
  switch (event.what_case()) {
    case v1::WorkerEvent::kHello: {
      GYRE_ASSIGN_OR_RETURN(WorkerHello hello, DecodeHello(event.hello()));
      return WorkerMessage(std::move(hello));
    }
    case v1::WorkerEvent::kLeaving: return WorkerMessage(LeavingEvent{});
    case v1::WorkerEvent::kHeartbeat: return WorkerMessage(DecodeLoad(event.heartbeat()));
    case v1::WorkerEvent::kProgress:
      out.what = StageProgress{event.progress().done(), event.progress().total(), event.progress().fetched(),
                               event.progress().to_fetch()};
      break;
    case v1::WorkerEvent::kReady:
      out.what = StageReady{event.ready().has_mirrored() ? std::optional(event.ready().mirrored()) : std::nullopt};
      break;
    case v1::WorkerEvent::kMoved:
      if (event.moved().missing_size() > kMaxBlocks) {
        return InvalidArgument("{} blocks are missing, at most {}", event.moved().missing_size(), kMaxBlocks);
      }
      out.what = StageMoved{event.moved().pages(),
                            event.moved().bytes(),
                            event.moved().last_pages(),
                            {event.moved().missing().begin(), event.moved().missing().end()}};
      break;
    case v1::WorkerEvent::kCommitted: out.what = StageCommitted{}; break;
    case v1::WorkerEvent::kAborted: out.what = StageAborted{}; break;
    case v1::WorkerEvent::kFault: out.what = DecodeFault(event.fault()); break;
    case v1::WorkerEvent::kTraced: {
      GYRE_ASSIGN_OR_RETURN(out.what, DecodeTrace(event.traced()));
      break;
    }
    case v1::WorkerEvent::kProbed: {
      GYRE_ASSIGN_OR_RETURN(out.what, DecodeProbed(event.probed()));
      break;
    }
    default: return WorkerMessage();
  }
  return WorkerMessage(std::move(out));
}

v1::Command Encode(const WorkerCommand& command) {
  v1::Command out;
  if (command.epoch != Epoch{}) Set(out.mutable_epoch(), command.epoch);
  out.set_number(command.number);
  std::visit(EncodeCommand{&out}, command.what);
  return out;
}

StatusOr<WorkerCommand> Decode(const v1::Command& command) {
  WorkerCommand out{.epoch = Get(command.epoch()), .what = UnknownCommand{}, .number = command.number()};
  switch (command.what_case()) {
    case v1::Command::kWelcome: {
      GYRE_RETURN_IF_ERROR(CheckMemberName(command.welcome().name()));
      GYRE_ASSIGN_OR_RETURN(out.what, DecodeWelcome(command.welcome()));
      break;
    }
    case v1::Command::kPrepare: {
      GYRE_ASSIGN_OR_RETURN(out.what, DecodePrepare(command.prepare(), out.epoch));
      break;
    }
    case v1::Command::kMove: {
      if (command.move().blocks_size() > kMaxBlocks) {
        return InvalidArgument("a move of {} blocks, at most {}", command.move().blocks_size(), kMaxBlocks);
      }
      GYRE_ASSIGN_OR_RETURN(out.what, DecodeMove(command.move()));
      break;
    }
    case v1::Command::kCommit: out.what = CommitCommand{}; break;
    case v1::Command::kRelease: out.what = ReleaseCommand{}; break;
    case v1::Command::kAbort: out.what = AbortCommand{}; break;
    case v1::Command::kRevoked: out.what = RevokedCommand{command.revoked().crl()}; break;
    case v1::Command::kDismiss: out.what = DismissCommand{}; break;
    case v1::Command::kProbe: {
      GYRE_ASSIGN_OR_RETURN(out.what, DecodeProbe(command.probe()));
      break;
    }
    case v1::Command::kTrace: out.what = TraceCommand{MomentOf(command.trace().asked_ns())}; break;
    default: break;
  }
  return out;
}

}  // namespace gyre
