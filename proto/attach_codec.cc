#include "proto/attach_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "base/host_port.h"
#include "base/ring_address.h"
#include "base/step.h"
#include "identity/principal.h"
#include "proto/codec_parts.h"

namespace gyre {
namespace {

constexpr uint64_t kMaxStep = uint64_t{1} << 62;
constexpr uint32_t kMaxThreads = 1 << 16;
constexpr size_t kMaxShortText = 256, kMaxPath = 4096;

MachineSpeed DecodeSpeed(const v1::MachineSpeed& speed) {
  return {.memory_bytes_per_second = Rate(speed.memory_bytes_per_second()),
          .operations_per_second = Rate(speed.operations_per_second()),
          .disk_bytes_per_second = Rate(speed.disk_bytes_per_second())};
}

}  // namespace

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
  for (const std::string& path : facts.adapters) out.add_adapters(path);
  return out;
}

static Status CheckPath(const char* what, const std::string& path) {
  if (path.size() <= kMaxPath && path.find('\0') == std::string::npos) return absl::OkStatus();
  return InvalidArgument("{} has a path of {} bytes, expected at most {} and no zero among them", what, path.size(),
                         kMaxPath);
}

StatusOr<ClusterFacts> Decode(const v1::ClusterInfo& info) {
  GYRE_RETURN_IF_ERROR(CheckPrintable("the coordinator's version", info.version(), kMaxShortText));
  if (info.protocol() != kControlProtocol) {
    return FailedPrecondition(
        "the coordinator (Gyre {}) speaks control protocol {}, this worker {}: update one of them", info.version(),
        info.protocol(), kControlProtocol);
  }
  GYRE_RETURN_IF_ERROR(CheckPath("the coordinator's model", info.model_path()));
  if (static_cast<uint32_t>(info.adapters_size()) > kMaxAdapters)
    return InvalidArgument("the coordinator's model has {} adapters, at most {}", info.adapters_size(), kMaxAdapters);
  for (const std::string& path : info.adapters()) GYRE_RETURN_IF_ERROR(CheckPath("an adapter", path));
  if (info.layers() < 0 || info.layers() > kMostLayers || info.context() < 0) {
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
                      .weights = info.weights(),
                      .adapters = {info.adapters().begin(), info.adapters().end()}};
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

void EncodeHello(const WorkerHello& hello, v1::WorkerHello* h) {
  h->set_protocol(hello.protocol);
  h->set_name(hello.name);
  h->set_ring_address(hello.ring_address);
  h->set_model_hash(hello.model_hash);
  h->set_isa(hello.isa);
  h->set_threads(hello.threads);
  h->set_memory_bytes(hello.memory);
  if (hello.preference) EncodeRange(*hello.preference, h->mutable_preference());
  h->set_version(hello.version);
  h->set_wire_types(hello.wire_types);
  h->set_prefill_matches_decode(hello.prefill_matches_decode);
  h->set_instance(hello.instance);
  h->set_transport(static_cast<uint32_t>(hello.transport));
  h->set_resumes_term(hello.resumes_term);
  h->set_received(hello.received);
  h->set_fetches(hello.fetches);
  h->set_disk_bytes(hello.disk);
  if (hello.holds) EncodeRange(*hello.holds, h->mutable_holds());
  h->mutable_speed()->set_memory_bytes_per_second(hello.speed.memory_bytes_per_second);
  h->mutable_speed()->set_operations_per_second(hello.speed.operations_per_second);
  h->mutable_speed()->set_disk_bytes_per_second(hello.speed.disk_bytes_per_second);
  h->set_last_step(hello.last_step);
  h->set_own_memory(hello.own_memory);
}

StatusOr<WorkerHello> DecodeHello(const v1::WorkerHello& h) {
  if (h.protocol() != kControlProtocol) {
    return FailedPrecondition("it speaks control protocol {}, expected {}", h.protocol(), kControlProtocol);
  }
  GYRE_RETURN_IF_ERROR(CheckPrincipalName(h.name()));
  GYRE_ASSIGN_OR_RETURN(const RingAddress ring, ParseRingAddress(h.ring_address()));
  GYRE_RETURN_IF_ERROR(ParseHostPort(ring.tcp).status());
  GYRE_ASSIGN_OR_RETURN(const Transport transport, DecodeTransport(h.transport()));
  if (h.threads() == 0 || h.threads() > kMaxThreads) {
    return InvalidArgument("{} threads, expected 1 to {}", h.threads(), kMaxThreads);
  }
  GYRE_RETURN_IF_ERROR(CheckPrintable("instruction set", h.isa(), kLongestName));
  GYRE_RETURN_IF_ERROR(CheckPrintable("version", h.version(), kMaxShortText));
  if (h.has_holds()) GYRE_RETURN_IF_ERROR(Annotate(CheckLayers(h.holds()), "what it holds"));
  if (h.last_step() > kMaxStep) return InvalidArgument("step {}, at most {}", h.last_step(), kMaxStep);
  return WorkerHello{.protocol = h.protocol(),
                     .name = h.name(),
                     .ring_address = h.ring_address(),
                     .model_hash = h.model_hash(),
                     .isa = h.isa(),
                     .threads = h.threads(),
                     .memory = h.memory_bytes(),
                     .preference = h.has_preference() ? std::optional(RangeOf(h.preference())) : std::nullopt,
                     .version = h.version(),
                     .wire_types = h.wire_types() == 0 ? Only(WireType::kF32) : h.wire_types(),
                     .prefill_matches_decode = h.prefill_matches_decode(),
                     .instance = h.instance(),
                     .transport = transport,
                     .resumes_term = h.resumes_term(),
                     .received = h.received(),
                     .fetches = h.fetches(),
                     .disk = h.disk_bytes(),
                     .holds = h.has_holds() ? std::optional(RangeOf(h.holds())) : std::nullopt,
                     .speed = DecodeSpeed(h.speed()),
                     .last_step = h.last_step(),
                     .own_memory = h.own_memory()};
}

void EncodeWelcome(const Welcome& w, v1::Welcome* out) {
  out->set_name(w.name);
  out->set_term(w.term);
  out->set_resumed(w.resumed);
  out->set_received(w.received);
  if (w.weights_key) out->set_weights_key(w.weights_key->data(), w.weights_key->size());
}

StatusOr<Welcome> DecodeWelcome(const v1::Welcome& w) {
  GYRE_RETURN_IF_ERROR(CheckName(w.name()));
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

}  // namespace gyre
