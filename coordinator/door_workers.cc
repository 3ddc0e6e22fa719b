// Workers at the door: a stream each, events up, commands down.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>

#include "base/log.h"
#include "coordinator/door_services.h"
#include "coordinator/remote_stage.h"
#include "gyre/v1/cluster.grpc.pb.h"
#include "proto/convert.h"
#include "transport/tcp_link.h"

namespace gyre {
namespace {

constexpr uint32_t kControlProtocol = 2;

// "ipv4:127.0.0.1:4711" -> "127.0.0.1".
std::string HostOf(const std::string& peer) {
  const size_t colon = peer.find(':'), port = peer.rfind(':');
  if (colon == std::string::npos || port <= colon) return peer;
  return peer.substr(colon + 1, port - colon - 1);
}

StatusOr<MemberInfo> ReadHello(const v1::WorkerHello& h, const std::string& peer) {
  if (h.protocol() != kControlProtocol) {
    return FailedPrecondition("it speaks control protocol {}, expected {}", h.protocol(), kControlProtocol);
  }
  MemberInfo info{.name = h.name(),
                  .address = h.ring_address(),
                  .host = HostOf(peer),
                  .memory = h.memory_bytes(),
                  .threads = static_cast<int>(std::min(h.threads(), 65536u)),
                  .isa = h.isa().substr(0, 32),
                  .prefill_matches_decode = h.prefill_matches_decode(),
                  .model_hash = h.model_hash(),
                  .wire_types = h.wire_types() == 0 ? Only(WireType::kF32) : h.wire_types()};
  if (info.name.empty() || info.name.size() > 64)
    return InvalidArgument("a name has 1 to 64 characters, not {}", info.name.size());
  for (char c : info.name) {
    const bool fine =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
    if (!fine) return InvalidArgument("a name has letters, digits, '-', '_' and '.' only");
  }
  if (info.name == "local") return InvalidArgument("the name 'local' is the coordinator's own");
  GYRE_RETURN_IF_ERROR(ParseHostPort(info.address).status());
  if (h.threads() == 0 || h.threads() > 65536) return InvalidArgument("{} threads, expected 1 to 65536", h.threads());
  for (const std::string* text : {&h.isa(), &h.version(), &h.host()}) {
    if (text->size() > 256) return InvalidArgument("a text of {} bytes, at most 256 fit", text->size());
  }
  if (h.has_wish()) info.wish = LayerRange{h.wish().begin(), h.wish().end()};
  return info;
}

}  // namespace

// One line for the first, then a line a minute with their number.
class RefusalLog {
 public:
  void Log(const std::string& peer, const Status& why) {
    uint64_t count = 0;
    {
      MutexLock lock(&mutex_);
      ++count_;
      const Deadline now = Clock::now();
      if (count_ > 1 && now < last_ + std::chrono::minutes(1)) return;
      last_ = now;
      count = count_;
    }
    gyre::Log(LogLevel::kWarn, "refused a worker from {}: {} ({} refused since the start)", peer, Message(why), count);
  }

 private:
  Mutex mutex_;
  uint64_t count_ GYRE_GUARDED_BY(mutex_) = 0;
  Deadline last_ GYRE_GUARDED_BY(mutex_){};
};

class AttachReactor : public grpc::ServerBidiReactor<v1::WorkerEvent, v1::Command> {
 public:
  AttachReactor(grpc::CallbackServerContext* context, Cluster& cluster, Attached& attached, RefusalLog& refusals,
                uint64_t term)
      : context_(context), cluster_(cluster), attached_(attached), refusals_(refusals), term_(term) {
    attached_.Add(this);
    StartRead(&event_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(Unavailable("its connection ended"));
    heard_ = Now();
    if (stage_ == nullptr) {
      const gyre::Status status = OnHello();
      if (!status.ok()) {
        refusals_.Log(context_->peer(), status);
        return End(status);
      }
    } else if (event_.what_case() == v1::WorkerEvent::kHeartbeat) {
      const v1::Heartbeat& h = event_.heartbeat();
      cluster_.Report(member_.name, {.busy = std::clamp(h.busy(), 0.0, 1.0),
                                     .steps = h.steps(),
                                     .resident_bytes = h.resident_bytes(),
                                     .busy_us = h.busy_us(),
                                     .rows_sent = h.rows_sent(),
                                     .row_bytes_sent = h.row_bytes_sent()});
    } else {
      stage_->OnEvent(event_);
    }
    StartRead(&event_);
  }
  void OnWriteDone(bool ok) override {
    if (ok && stage_ != nullptr) stage_->Written();
  }
  void OnCancel() override {}
  void OnDone() override {
    attached_.Remove(this);
    if (stage_ != nullptr) stage_->Close();
    Leave(Unavailable("its connection ended"));
    delete this;
  }

  bool SilentSince(Duration timeout) const { return Now() - heard_ > timeout.count(); }
  // That long nothing could be heard.
  void Forgive(Duration held) {
    auto heard = heard_.load();
    while (!heard_.compare_exchange_weak(heard, std::min(heard + held.count(), Now()))) {
    }
  }
  // The read fails then, and the call ends.
  void Cancel(const gyre::Status& why) {
    {
      MutexLock lock(&mutex_);
      if (why_.ok()) why_ = why;
    }
    context_->TryCancel();
  }

 private:
  static int64_t Now() { return Clock::now().time_since_epoch().count(); }

  gyre::Status OnHello() {
    if (event_.what_case() != v1::WorkerEvent::kHello) return InvalidArgument("its first event is no hello");
    GYRE_ASSIGN_OR_RETURN(MemberInfo info, ReadHello(event_.hello(), context_->peer()));
    auto stage = std::make_shared<RemoteStage>(info.name);
    GYRE_ASSIGN_OR_RETURN(member_, cluster_.Join(std::move(info), stage));
    stage_ = std::move(stage);
    v1::Command welcome;
    welcome.mutable_welcome()->set_name(member_.name);
    welcome.mutable_welcome()->set_term(term_);
    stage_->Open([this](const v1::Command* command) { StartWrite(command); }, std::move(welcome));
    return absl::OkStatus();
  }
  void Leave(const gyre::Status& otherwise) {
    if (member_.id == 0 || left_.exchange(true)) return;
    gyre::Status why;
    {
      MutexLock lock(&mutex_);
      why = why_.ok() ? otherwise : why_;
    }
    cluster_.Leave(member_, why);
  }
  void End(const gyre::Status& why) {
    if (stage_ != nullptr) stage_->Close();
    Leave(why);
    Finish(ToGrpc(why));
  }

  grpc::CallbackServerContext* const context_;
  Cluster& cluster_;
  Attached& attached_;
  RefusalLog& refusals_;
  const uint64_t term_;
  v1::WorkerEvent event_;
  Membership member_;
  std::shared_ptr<RemoteStage> stage_;
  std::atomic<int64_t> heard_{Now()};
  std::atomic<bool> left_{false};
  Mutex mutex_;
  gyre::Status why_ GYRE_GUARDED_BY(mutex_);
};

void Attached::Check(Duration timeout, Duration held) {
  MutexLock lock(&mutex_);
  for (AttachReactor* r : all_) {
    r->Forgive(held);
    if (r->SilentSince(timeout)) {
      r->Cancel(Unavailable("nothing was heard of it for {:.1f} s", std::chrono::duration<double>(timeout).count()));
    }
  }
}

void Attached::CancelAll() {
  MutexLock lock(&mutex_);
  for (AttachReactor* r : all_) r->Cancel(Unavailable("the coordinator stops"));
}

namespace {

class ClusterService : public v1::Cluster::CallbackService {
 public:
  ClusterService(const DoorOptions& options, const Model& model, Cluster& cluster, Attached& attached)
      : options_(options), model_(model), cluster_(cluster), attached_(attached) {}

  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context, const v1::InfoRequest*,
                                 v1::ClusterInfo* reply) override {
    reply->set_protocol(kControlProtocol);
    reply->set_term(options_.term);
    reply->set_version(options_.version);
    reply->set_model_path(model_.path());
    reply->set_model_hash(model_.content_hash());
    reply->set_layers(static_cast<int>(model_.spec().layers.size()));
    reply->set_rope_base(options_.open.rope_base);
    reply->set_norm_eps(options_.open.norm_eps);
    reply->set_context(options_.open.context);
    reply->set_exact(options_.exact);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerBidiReactor<v1::WorkerEvent, v1::Command>* Attach(grpc::CallbackServerContext* context) override {
    return new AttachReactor(context, cluster_, attached_, refusals_, options_.term);
  }

 private:
  const DoorOptions& options_;
  const gyre::Model& model_;
  Cluster& cluster_;
  Attached& attached_;
  RefusalLog refusals_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeClusterService(const DoorOptions& options, const Model& model, Cluster& cluster,
                                                  Attached& attached) {
  return std::make_unique<ClusterService>(options, model, cluster, attached);
}

}  // namespace gyre
