#include "coordinator/grpc/server.h"
#include "coordinator/engine/remote_drafter.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <thread>

#include "base/thread.h"
#include "coordinator/engine/remote_drafter.h"
#include "coordinator/grpc/port.h"
#include "coordinator/grpc/services.h"
#include "coordinator/service/status_reply.h"
#include "gyre/v1/admin.grpc.pb.h"
#include "model/quoted.h"
#include "model/utf8.h"
#include "proto/convert.h"

namespace gyre {
namespace {

constexpr size_t kMaxRanges = 100'000, kMaxWorker = 256;  // bytes

// Checks an operator's text: the answer repeats parts of it, so it must be printable.
Status CheckText(const char* what, const std::string& text, size_t most) {
  if (text.size() > most) return InvalidArgument("{}: {} bytes, at most {} fit", what, text.size(), most);
  for (size_t at = 0; at < text.size();) {
    const size_t n = ValidUtf8Length(text, at);
    if (n == 0) return InvalidArgument("{}: byte {} is not UTF-8", what, at + 1);
    at += n;
  }
  return absl::OkStatus();
}

// Finishes a call once, and in any case.
class Finisher {
 public:
  explicit Finisher(grpc::ServerUnaryReactor* reactor) : reactor_(reactor) {}
  ~Finisher() { Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the coordinator stops")); }
  void Finish(const grpc::Status& status) {
    if (!done_.exchange(true)) reactor_->Finish(status);
  }

 private:
  grpc::ServerUnaryReactor* const reactor_;
  std::atomic<bool> done_{false};
};

class AdminService : public v1::Admin::CallbackService {
 public:
  AdminService(const GrpcServerOptions& options, const Model& model, Engine& engine, Cluster& cluster)
      : options_(options), model_(model), engine_(engine), cluster_(cluster) {}

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context, const v1::StatusRequest*,
                                   v1::StatusReply* reply) override {
    Fill(reply);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerUnaryReactor* Resize(grpc::CallbackServerContext* context, const v1::ResizeRequest* request,
                                   v1::ChangeReply* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const Cluster::Done done = Answer(reactor, reply);
    const int given = int{request->proposed()} + int{!request->ranges().empty()} + int{request->kv_tokens() != 0};
    if (given > 1) {
      done(InvalidArgument("ranges, the proposed plan, or kv_tokens: expected one of them"));
    } else if (request->proposed()) {
      cluster_.TakeProposed(done, request->dry_run());
    } else if (request->kv_tokens() != 0) {
      cluster_.ResizeCache(request->kv_tokens(), done, request->dry_run());
    } else if (const gyre::Status status = CheckText("the ranges", request->ranges(), kMaxRanges); !status.ok()) {
      done(status);
    } else {
      cluster_.Resize(request->ranges(), done, request->dry_run());
    }
    return reactor;
  }
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                  v1::ChangeReply* reply) override {
    return OfWorker(context, *request, reply, [&](Cluster::Done done) {
      cluster_.Drain(request->worker(), std::move(done), request->dry_run());
    });
  }
  grpc::ServerUnaryReactor* Undrain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                    v1::ChangeReply* reply) override {
    return OfWorker(context, *request, reply,
                    [&](Cluster::Done done) { cluster_.Undrain(request->worker(), std::move(done)); });
  }

  grpc::ServerUnaryReactor* Remove(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                   v1::ChangeReply* reply) override {
    return OfWorker(context, *request, reply,
                    [&](Cluster::Done done) { cluster_.Remove(request->worker(), std::move(done)); });
  }

 private:
  static Cluster::Done Answer(grpc::ServerUnaryReactor* reactor, v1::ChangeReply* reply) {
    return [finisher = std::make_shared<Finisher>(reactor), reply](StatusOr<ChangeReport> report) {
      if (report.ok()) FillChangeReply(*report, reply);
      finisher->Finish(ToGrpc(report.status()));
    };
  }
  // Does what is asked about a worker, if its name is text.
  static grpc::ServerUnaryReactor* OfWorker(grpc::CallbackServerContext* context, const v1::DrainRequest& request,
                                            v1::ChangeReply* reply, const std::function<void(Cluster::Done)>& ask) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const Cluster::Done done = Answer(reactor, reply);
    const gyre::Status status = CheckText("the worker's name", request.worker(), kMaxWorker);
    status.ok() ? ask(done) : done(status);
    return reactor;
  }
  void Fill(v1::StatusReply* reply) const;

  const GrpcServerOptions& options_;
  const gyre::Model& model_;
  Engine& engine_;
  Cluster& cluster_;
};

void AdminService::Fill(v1::StatusReply* reply) const {
  FillStatusReply({.version = options_.version, .model = model_, .context = options_.context}, cluster_.status(),
                  engine_.stats(), reply);
}

class CallbackServer : public GrpcServer {
 public:
  CallbackServer(const GrpcServerOptions& options, const Model& model, Engine& engine, Cluster& cluster,
                 Service& service)
      : options_(options),
        inference_(MakeInferenceService(options_, model, cluster, service)),
        admin_(options_, model, engine, cluster),
        cluster_(MakeClusterService(options_, model, cluster, attached_)),
        drafts_(MakeDraftsService(options_, model)) {}
  ~CallbackServer() override { CallbackServer::Stop(); }

  Status Listen() {
    GYRE_ASSIGN_OR_RETURN(port_, GrpcPort::Open({.address = options_.address,
                                                 .hello_timeout = options_.hello_timeout,
                                                 .idle_timeout = options_.idle_timeout,
                                                 .identity = options_.identity,
                                                 .cluster_ca = options_.cluster_ca},
                                                [this](grpc::ServerBuilder& builder) {
                                                  builder.RegisterService(inference_.get());
                                                  builder.RegisterService(&admin_);
                                                  builder.RegisterService(cluster_.get());
                                                  builder.RegisterService(drafts_.get());
                                                }));
    GYRE_ASSIGN_OR_RETURN(watch_, StartThread("watch", [this] { Watch(); }));
    return absl::OkStatus();
  }
  const std::string& address() const override { return port_->address(); }
  void Stop() override {
    if (port_ == nullptr || stopping_.exchange(true)) return;
    port_->Stop([this] { attached_.CancelAll(); });
    if (watch_.joinable()) watch_.join();
  }

 private:
  // Finds workers that fell silent.
  void Watch() {
    constexpr Duration kTick = std::chrono::milliseconds(100);
    while (!stopping_) {
      const Deadline wake = After(kTick);
      std::this_thread::sleep_for(kTick);
      // Woken late, the process itself was held up, by a suspended or crowded machine: others' silence means nothing
      // then.
      const Duration late = Clock::now() - wake;
      if (port_->UpdateIdentity()) {
        attached_.CheckCallers(*options_.identity->current());
        if (options_.drafter != nullptr) options_.drafter->CheckStream();
      }
      attached_.Check(options_.heartbeat_timeout, late > kTick / 2 ? late : Duration::zero());
    }
  }

  const GrpcServerOptions options_;
  const std::unique_ptr<grpc::Service> inference_;
  AdminService admin_;
  AttachedWorkers attached_;
  const std::unique_ptr<grpc::Service> cluster_, drafts_;
  std::unique_ptr<GrpcPort> port_;
  std::atomic<bool> stopping_{false};
  std::thread watch_;
};

}  // namespace

StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Open(const GrpcServerOptions& options, const Model& model,
                                                       Engine& engine, Cluster& cluster, Service& service) {
  auto server = std::make_unique<CallbackServer>(options, model, engine, cluster, service);
  GYRE_RETURN_IF_ERROR(server->Listen());
  return std::unique_ptr<GrpcServer>(std::move(server));
}

}  // namespace gyre
