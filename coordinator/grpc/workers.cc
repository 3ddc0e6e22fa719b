// The workers' service: a stream each, events up, commands down.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>

#include "coordinator/grpc/refusal_log.h"
#include "coordinator/grpc/remote_stage.h"
#include "coordinator/grpc/services.h"
#include "gyre/v1/cluster.grpc.pb.h"
#include "identity/authority.h"
#include "proto/control_codec.h"
#include "proto/convert.h"
#include "proto/credentials.h"
#include "weights/weight_offer.h"

namespace gyre {
namespace {

// "ipv4:127.0.0.1:4711" -> "127.0.0.1", "ipv6:%5B::1%5D:4711" -> "::1".
std::string HostOf(const std::string& peer) {
  const size_t colon = peer.find(':'), port = peer.rfind(':');
  if (colon == std::string::npos || port <= colon) return peer;
  std::string host = peer.substr(colon + 1, port - colon - 1);
  if (host.size() > 6 && host.rfind("%5B", 0) == 0) host = host.substr(3, host.size() - 6);
  return host;
}

MemberInfo InfoFrom(const WorkerHello& h, const std::string& peer) {
  return {.name = h.name,
          .address = h.ring_address,
          .host = HostOf(peer),
          .memory = h.memory,
          .threads = static_cast<int>(h.threads),
          .isa = h.isa,
          .version = h.version,
          .prefill_matches_decode = h.prefill_matches_decode,
          .model_hash = h.model_hash,
          .wire_types = h.wire_types,
          .preference = h.preference,
          .instance = h.instance,
          .transport = h.transport,
          .fetches = h.fetches,
          .disk = h.fetches ? h.disk : 0,
          .last_step = h.last_step,
          .holds = h.holds.value_or(LayerRange{}),
          .speed = h.speed,
          .own_memory = h.own_memory};
}

// With TLS a worker is the one that its certificate names.
Status CheckName(const std::optional<Principal>& caller, const std::string& name) {
  if (!caller || caller->name == name) return absl::OkStatus();
  return FailedPrecondition("it calls itself {}, its certificate is that of {}", name, Describe(*caller));
}

}  // namespace

class AttachReactor : public grpc::ServerBidiReactor<v1::WorkerEvent, v1::Command> {
 public:
  AttachReactor(grpc::CallbackServerContext* context, Cluster& cluster, AttachedWorkers& attached, RefusalLog& refusals,
                const GrpcServerOptions& options)
      : context_(context),
        cluster_(cluster),
        attached_(attached),
        refusals_(refusals),
        term_(options.term),
        weights_key_(options.weights != nullptr ? std::optional(options.weights->key()) : std::nullopt),
        identity_(options.identity),
        stream_(attached.Add(this)) {
    StartRead(&event_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(Reason());
    heard_ = Now();
    const gyre::Status status = OnEvent();
    if (!status.ok()) {
      if (!absl::IsNotFound(status)) refusals_.Log(context_->peer(), status);
      return End(status);
    }
    StartRead(&event_);
  }
  void OnWriteDone(bool ok) override {
    if (ok && stage_ != nullptr) stage_->Written(stream_);
  }
  void OnCancel() override {}
  void OnDone() override {
    attached_.Remove(this);
    if (stage_ != nullptr) stage_->Close(stream_);
    Leave(Reason());
    delete this;
  }

  bool SilentSince(Duration timeout) const { return Now() - heard_ > timeout.count(); }
  // Whether its certificate is still accepted. OK without TLS.
  gyre::Status CheckCertificate(const Identity& identity) const {
    return CheckCaller(*context_->auth_context(), identity).status();
  }
  // The worker takes it if it is newer than its own.
  void ShareRevoked(const Identity& identity) {
    if (!identity.revoked_pem().empty()) stage_->SendRevoked(identity.revoked_pem());
  }
  bool joined() const { return joined_; }
  // For `own_stall` this process heard nothing of anybody.
  void ExtendDeadline(Duration own_stall) {
    auto heard = heard_.load();
    while (!heard_.compare_exchange_weak(heard, std::min(heard + own_stall.count(), Now()))) {
    }
  }
  // This process ends: the worker is told why, and waits for another coordinator.
  void Stop(const gyre::Status& why) {
    {
      MutexLock lock(&mutex_);
      if (why_.ok()) why_ = why;
    }
    if (!finished_.exchange(true)) Finish(ToGrpc(why));
  }
  // The read fails then, and the call ends. `why` is about `who`.
  void Cancel(const std::function<gyre::Status(const std::string& who)>& why) {
    {
      MutexLock lock(&mutex_);
      if (why_.ok()) why_ = why(who_);
    }
    context_->TryCancel();
  }

 private:
  static int64_t Now() { return Clock::now().time_since_epoch().count(); }

  gyre::Status OnEvent() {
    GYRE_ASSIGN_OR_RETURN(WorkerMessage message, Decode(event_));
    if (stage_ == nullptr) {
      auto* hello = std::get_if<WorkerHello>(&message);
      return hello != nullptr ? OnHello(*hello) : InvalidArgument("its first event is not a hello");
    }
    if (auto* load = std::get_if<MemberLoad>(&message)) cluster_.Report(member_.name, *load);
    if (auto* event = std::get_if<StageEvent>(&message)) stage_->OnEvent(std::move(*event), event_.number());
    if (std::holds_alternative<LeavingEvent>(message)) cluster_.WantsToLeave(member_);
    return absl::OkStatus();
  }
  gyre::Status OnHello(const WorkerHello& hello) {
    const std::optional<Principal> caller = CallerOf(*context_->auth_context());
    GYRE_RETURN_IF_ERROR(CheckName(caller, hello.name));
    instance_ = hello.instance;
    if (hello.resumes_term != 0) {
      return Resume(hello, caller) ? absl::OkStatus() : NotFound("this worker's membership has ended");
    }
    MemberInfo info = InfoFrom(hello, context_->peer());
    info.certified = caller.has_value();
    auto stage = std::make_shared<RemoteStage>(info.name);
    GYRE_ASSIGN_OR_RETURN(member_, cluster_.Join(std::move(info), stage));
    Know(member_.name);
    stage_ = std::move(stage);
    if (identity_ != nullptr) ShareRevoked(*identity_->current());
    attached_.Remember(instance_, {member_, stage_});
    stage_->Open(stream_, Calls(), Greeting());
    joined_ = true;
    return absl::OkStatus();
  }
  // Reattaches to the membership of a stream before. False: it is not there any more, so the worker begins anew.
  bool Resume(const WorkerHello& hello, const std::optional<Principal>& caller) {
    if (hello.instance == 0 || hello.resumes_term != term_) return false;
    const auto known = attached_.Find(hello.instance);
    if (!known || !CheckName(caller, known->member.name).ok()) return false;
    // From here on what the stream before says counts no more. It may not have ended on this side yet.
    member_ = known->member;
    stage_ = known->stage;
    Know(member_.name);
    if (!stage_->Reopen(stream_, Calls(), Greeting(), hello.received)) {
      member_ = {};
      stage_ = nullptr;
      return false;
    }
    if (identity_ != nullptr) ShareRevoked(*identity_->current());
    joined_ = true;
    cluster_.Reattach(member_, stream_);
    return true;
  }
  Welcome Greeting() const { return {.name = member_.name, .term = term_, .weights_key = weights_key_}; }
  void Know(const std::string& name) {
    MutexLock lock(&mutex_);
    who_ = name;
  }
  RemoteStage::Stream Calls() {
    return {.write =
                [this](std::shared_ptr<const v1::Command> command) {
                  written_ = std::move(command);
                  StartWrite(written_.get());
                },
            .hang_up =
                [this] {
                  context_->TryCancel();  // whoever ended the membership has said why
                }};
  }
  // Why the stream is over, where nobody said it in words.
  gyre::Status Reason() {
    MutexLock lock(&mutex_);
    return why_.ok() ? Unavailable("the connection of {} ended", who_) : why_;
  }
  void Leave(const gyre::Status& why) {
    if (left_.exchange(true)) return;
    if (stage_ != nullptr && !stage_->Serves(stream_)) return;  // another stream goes on with the membership
    if (member_.id != 0) {
      bool silent = false;
      {
        MutexLock lock(&mutex_);
        silent = !why_.ok();
      }
      if (silent) {
        cluster_.Leave(member_, why, false);
      } else {
        cluster_.Detach(member_, stream_, why);
      }
    } else if (!absl::IsInvalidArgument(why) && !absl::IsFailedPrecondition(why) && !absl::IsNotFound(why)) {
      refusals_.Log(context_->peer(), why);  // it never said who it is; a refused hello has its line already
    }
  }
  void End(const gyre::Status& why) {
    if (stage_ != nullptr) stage_->Close(stream_);
    Leave(why);
    if (!finished_.exchange(true)) Finish(ToGrpc(why));
  }

  grpc::CallbackServerContext* const context_;
  Cluster& cluster_;
  AttachedWorkers& attached_;
  RefusalLog& refusals_;
  const uint64_t term_;
  uint64_t instance_ = 0;
  const std::optional<RingKey> weights_key_;
  const std::shared_ptr<IdentityFolder> identity_;
  v1::WorkerEvent event_;
  std::shared_ptr<const v1::Command> written_;  // the last one
  Membership member_;
  std::shared_ptr<RemoteStage> stage_;
  std::atomic<int64_t> heard_{Now()};
  std::atomic<bool> left_{false}, finished_{false};
  std::atomic<bool> joined_{false};  // stage_ is there for good
  Mutex mutex_;
  std::string who_ GYRE_GUARDED_BY(mutex_) = "a worker that has not said its name";
  gyre::Status why_ GYRE_GUARDED_BY(mutex_);
  const uint64_t stream_;  // the last one: others see this object from then on
};

void AttachedWorkers::Check(Duration timeout, Duration own_stall) {
  MutexLock lock(&mutex_);
  for (AttachReactor* r : all_) {
    r->ExtendDeadline(own_stall);
    if (!r->SilentSince(timeout)) continue;
    r->Cancel([timeout](const std::string& who) {
      return Unavailable("nothing was heard of {} for {:.1f} s", who, std::chrono::duration<double>(timeout).count());
    });
  }
}

void AttachedWorkers::CancelAll() {
  MutexLock lock(&mutex_);
  for (AttachReactor* r : all_) r->Stop(Unavailable("{}", kCoordinatorStops));
}

void AttachedWorkers::CheckCallers(const Identity& identity) {
  MutexLock lock(&mutex_);
  for (AttachReactor* r : all_) {
    const Status status = r->CheckCertificate(identity);
    if (!status.ok()) {
      r->Cancel([&status](const std::string&) { return status; });
    } else if (r->joined()) {
      r->ShareRevoked(identity);
    }
  }
}

namespace {

class ClusterService : public v1::Cluster::CallbackService {
 public:
  ClusterService(const GrpcServerOptions& options, const Model& model, Cluster& cluster, AttachedWorkers& attached)
      : options_(options), model_(model), cluster_(cluster), attached_(attached) {}

  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context, const v1::InfoRequest*,
                                 v1::ClusterInfo* reply) override {
    *reply = Encode(ClusterFacts{.term = options_.term,
                                 .cluster_id = options_.cluster_id,
                                 .version = options_.version,
                                 .model_path = model_.path(),
                                 .model_hash = model_.content_hash(),
                                 .layers = static_cast<int>(model_.spec().layers.size()),
                                 .rope_base = options_.open.rope_base,
                                 .norm_eps = options_.open.norm_eps,
                                 .exact = options_.exact,
                                 .context = static_cast<uint32_t>(std::max(options_.open.context, 0)),
                                 .weights = options_.weights != nullptr,
                                 .adapters = AdapterPaths()});
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerUnaryReactor* Weights(grpc::CallbackServerContext* context, const v1::WeightsRequest* request,
                                    v1::WeightsReply* reply) override {
    StatusOr<WeightsPart> part = Unimplemented("this coordinator does not give its weights to workers");
    if (options_.weights != nullptr) part = options_.weights->Part(request->offset());
    if (part.ok()) *reply = Encode(*part);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpc(part.status()));
    return reactor;
  }
  grpc::ServerBidiReactor<v1::WorkerEvent, v1::Command>* Attach(grpc::CallbackServerContext* context) override {
    return new AttachReactor(context, cluster_, attached_, refusals_, options_);
  }

  grpc::ServerUnaryReactor* Renew(grpc::CallbackServerContext* context, const v1::RenewRequest* request,
                                  v1::RenewReply* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const StatusOr<std::string> certificate = RenewFor(*context->auth_context(), request->request());
    if (certificate.ok()) reply->set_certificate(*certificate);
    reactor->Finish(ToGrpc(certificate.status()));
    return reactor;
  }

 private:
  std::vector<std::string> AdapterPaths() const {
    std::vector<std::string> paths;
    for (const auto& adapter : model_.adapters()) paths.push_back(adapter->path());
    return paths;
  }
  StatusOr<std::string> RenewFor(const grpc::AuthContext& caller, const std::string& request) {
    if (options_.identity == nullptr || options_.cluster_ca.empty()) {
      return FailedPrecondition("this coordinator signs no certificates: it has no --cluster-ca");
    }
    GYRE_ASSIGN_OR_RETURN(const Principal who, CheckCaller(caller, *options_.identity->current()));
    GYRE_ASSIGN_OR_RETURN(Authority authority, Authority::Open(options_.cluster_ca));
    GYRE_ASSIGN_OR_RETURN(const KeyPtr key, CheckCertificateRequest(request));
    GYRE_ASSIGN_OR_RETURN(const X509Ptr certificate,
                          authority.Sign(key.get(), {.role = who.role, .name = who.name, .renew = true}));
    Log(LogLevel::kInfo, "the certificate of {} is renewed", Describe(who));
    return ToPem(certificate.get());
  }

  const GrpcServerOptions& options_;
  const gyre::Model& model_;
  Cluster& cluster_;
  AttachedWorkers& attached_;
  RefusalLog refusals_{"a worker"};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeClusterService(const GrpcServerOptions& options, const Model& model,
                                                  Cluster& cluster, AttachedWorkers& attached) {
  return std::make_unique<ClusterService>(options, model, cluster, attached);
}

}  // namespace gyre
