#include "proto/plan_codec.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/kv_type.h"
#include "base/plan.h"
#include "identity/principal.h"
#include "proto/codec_parts.h"

namespace gyre {
namespace {

constexpr int kMaxStages = 1 << 12;  // and layer sources
constexpr int kMaxBlockSize = 1 << 16;
constexpr int kMaxUnits = 1 << 24;

void EncodePlan(const Plan& plan, v1::Plan* out) {
  out->set_model(plan.model);
  out->set_model_hash(plan.model_hash);
  out->set_num_layers(plan.num_layers);
  out->set_coordinator_address(plan.coordinator_address);
  out->set_key(plan.key.data(), plan.key.size());
  for (const StagePlan& s : plan.stages) {
    v1::Stage* stage = out->add_stages();
    EncodeRange(s.layers, stage->mutable_layers());
    stage->set_worker(s.worker());
    stage->set_address(s.members[0].address);
    stage->set_replicated_by(s.replicated_by);
  }
  out->set_wire(static_cast<uint32_t>(plan.wire));
  out->set_transport(static_cast<uint32_t>(plan.transport));
}

StatusOr<Plan> DecodePlan(const v1::Plan& p, Epoch epoch) {
  Plan plan;
  plan.epoch = epoch;
  plan.model = p.model();
  plan.model_hash = p.model_hash();
  if (p.num_layers() < 0 || p.num_layers() > kMostLayers) {
    return InvalidArgument("a plan of {} layers, expected at most {}", p.num_layers(), kMostLayers);
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
    GYRE_RETURN_IF_ERROR(CheckLayers(s.layers()));
    GYRE_RETURN_IF_ERROR(CheckName(s.worker()));
    GYRE_RETURN_IF_ERROR(CheckPlanAddress(s.address()));
    assignments.push_back({s.worker(), s.address(), RangeOf(s.layers())});
  }
  plan.stages = MakeStages(assignments);
  for (int i = 0; i < p.stages_size(); ++i) {
    const std::string& holder = p.stages(i).replicated_by();
    if (!holder.empty()) GYRE_RETURN_IF_ERROR(CheckName(holder));
    plan.stages[static_cast<size_t>(i)].replicated_by = holder;
  }
  if (p.wire() > 0xFF) return InvalidArgument("a plan with activations of type {}", p.wire());
  if (p.wire() != 0) plan.wire = static_cast<WireType>(p.wire());
  GYRE_ASSIGN_OR_RETURN(plan.transport, DecodeTransport(p.transport()));
  return plan;
}

void EncodeLayerSource(const LayerSource& s, v1::LayerSource* out) {
  EncodeRange(s.layers, out->mutable_layers());
  out->set_worker(s.worker);
  out->set_address(s.address);
  out->set_replica(s.replica);
}

using Units = google::protobuf::RepeatedPtrField<v1::MemoryUnits>;

void EncodeUnits(const MemoryCounts& counts, Units* out) {
  for (int group = 0; group < kKvGroups; ++group) {
    if (counts[group] == 0) continue;
    v1::MemoryUnits* memory = out->Add();
    memory->set_kind(static_cast<uint32_t>(group));
    memory->set_units(counts[group]);
  }
}

Status DecodeUnits(const Units& in, MemoryCounts* counts) {
  for (const v1::MemoryUnits& memory : in) {
    if (memory.kind() >= kKvGroups) return InvalidArgument("memory of kind {} is unknown", memory.kind());
    uint32_t& units = (*counts)[static_cast<int>(memory.kind())];
    if (units != 0 || memory.units() == 0) {
      return InvalidArgument("memory of kind {} has {} units, or comes twice", memory.kind(), memory.units());
    }
    units = memory.units();
  }
  return absl::OkStatus();
}

StatusOr<LayerSource> DecodeLayerSource(const v1::LayerSource& s) {
  GYRE_RETURN_IF_ERROR(CheckLayers(s.layers()));
  GYRE_RETURN_IF_ERROR(CheckName(s.worker()));
  GYRE_RETURN_IF_ERROR(CheckPlanAddress(s.address()));
  return LayerSource{RangeOf(s.layers()), s.worker(), s.address(), s.replica()};
}

void EncodePrepare(const PrepareRequest& request, v1::Prepare* p) {
  EncodePlan(request.plan, p->mutable_plan());
  p->set_stage(request.stage);
  p->set_block_size(request.block_size);
  EncodeUnits(request.memory, p->mutable_memory());
  EncodeUnits(request.in_use, p->mutable_in_use());
  p->set_fresh(request.fresh);
  p->set_mtp(request.mtp);
  p->set_kv_type(static_cast<uint32_t>(request.kv_type));
  for (const LayerSource& s : request.sources) EncodeLayerSource(s, p->add_sources());
  p->set_restores(request.restores);
  for (const WeightSource& s : request.weight_sources) EncodeSource(s, p->add_weight_sources());
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
  GYRE_RETURN_IF_ERROR(DecodeUnits(p.memory(), &r.memory));
  GYRE_RETURN_IF_ERROR(DecodeUnits(p.in_use(), &r.in_use));
  for (int group = 0; group < kKvGroups; ++group) {
    if (r.in_use[group] <= r.memory[group]) continue;
    return InvalidArgument("{} units of kind {} are used, there are {}", r.in_use[group], group, r.memory[group]);
  }
  r.fresh = p.fresh();
  r.mtp = p.mtp();
  if (p.kv_type() >= kKvTypeNames.size()) return InvalidArgument("KV type {} is unknown", p.kv_type());
  r.kv_type = static_cast<KvType>(p.kv_type());
  if (p.sources_size() > kMaxStages) {
    return InvalidArgument("a plan of {} layer sources, at most {}", p.sources_size(), kMaxStages);
  }
  for (const v1::LayerSource& s : p.sources()) {
    GYRE_ASSIGN_OR_RETURN(LayerSource source, DecodeLayerSource(s));
    r.sources.push_back(std::move(source));
  }
  r.restores = p.restores();
  if (p.weight_sources_size() > kMaxStages) {
    return InvalidArgument("a plan of {} sources of weights, at most {}", p.weight_sources_size(), kMaxStages);
  }
  for (const v1::WeightSource& s : p.weight_sources()) {
    GYRE_ASSIGN_OR_RETURN(WeightSource source, DecodeSource(s));
    r.weight_sources.push_back(std::move(source));
  }
  return r;
}

StatusOr<UnitList> DecodeUnits(const v1::UnitList& list) {
  if (list.units_size() > kMaxUnits) {
    return InvalidArgument("a list of {} units of memory, expected at most {}", list.units_size(), kMaxUnits);
  }
  if (list.steps_size() != 0 && list.steps_size() != list.units_size()) {
    return InvalidArgument("a list of {} units has {} steps", list.units_size(), list.steps_size());
  }
  UnitList out;
  out.units = {list.units().begin(), list.units().end()};
  out.needed = list.needed();  // the reader cuts it to the list
  out.steps = {list.steps().begin(), list.steps().end()};
  return out;
}

StatusOr<ChangeVerb> DecodeVerb(uint32_t verb) {
  if (verb == 0 || verb > static_cast<uint32_t>(kLastChangeVerb)) {
    return InvalidArgument("verb {} of a plan's change is unknown, expected 1 to {}", verb,
                           static_cast<uint32_t>(kLastChangeVerb));
  }
  return static_cast<ChangeVerb>(verb);
}

}  // namespace

void EncodeChange(const Change& change, v1::Change* out) {
  out->set_verb(static_cast<uint32_t>(change.verb));
  EncodeEpoch(change.epoch, out->mutable_epoch());
  if (change.verb == ChangeVerb::kPrepare) EncodePrepare(change.prepare, out->mutable_prepare());
  if (change.units != UnitList()) {
    out->mutable_units()->mutable_units()->Add(change.units.units.begin(), change.units.units.end());
    out->mutable_units()->set_needed(change.units.needed);
    out->mutable_units()->mutable_steps()->Add(change.units.steps.begin(), change.units.steps.end());
  }
}

StatusOr<Change> DecodeChange(const v1::Change& change) {
  Change out;
  GYRE_ASSIGN_OR_RETURN(out.verb, DecodeVerb(change.verb()));
  out.epoch = EpochOf(change.epoch());
  if (out.verb == ChangeVerb::kPrepare) {
    GYRE_ASSIGN_OR_RETURN(out.prepare, DecodePrepare(change.prepare(), out.epoch));
  }
  GYRE_ASSIGN_OR_RETURN(out.units, DecodeUnits(change.units()));
  return out;
}

void EncodeDone(const StageDone& done, v1::ChangeDone* out) {
  out->set_verb(static_cast<uint32_t>(done.verb));
  if (done.replicated) out->set_replicated(*done.replicated);
  out->set_pages(done.pages);
  out->set_bytes(done.bytes);
  out->set_last_pages(done.last_pages);
  out->mutable_missing()->Add(done.missing.begin(), done.missing.end());
}

StatusOr<StageDone> DecodeDone(const v1::ChangeDone& done) {
  StageDone out;
  GYRE_ASSIGN_OR_RETURN(out.verb, DecodeVerb(done.verb()));
  if (done.has_replicated()) out.replicated = done.replicated();
  out.pages = done.pages();
  out.bytes = done.bytes();
  out.last_pages = done.last_pages();
  if (done.missing_size() > kMaxUnits) {
    return InvalidArgument("{} units of memory are missing, expected at most {}", done.missing_size(), kMaxUnits);
  }
  out.missing = {done.missing().begin(), done.missing().end()};
  return out;
}

}  // namespace gyre
