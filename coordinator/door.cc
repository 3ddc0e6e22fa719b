#include "coordinator/door.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <atomic>
#include <thread>

#include "coordinator/door_services.h"
#include "coordinator/status_reply.h"
#include "gyre/v1/admin.grpc.pb.h"
#include "proto/convert.h"
#include "transport/tcp_link.h"

namespace gyre {
namespace {

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
  AdminService(const DoorOptions& options, const Model& model, Engine& engine, Cluster& cluster)
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
    cluster_.Resize(request->ranges().substr(0, 100000), Answer(reactor, reply));
    return reactor;
  }
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                  v1::ChangeReply* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    cluster_.Drain(request->worker(), Answer(reactor, reply));
    return reactor;
  }

 private:
  static Cluster::Done Answer(grpc::ServerUnaryReactor* reactor, v1::ChangeReply* reply) {
    return [finisher = std::make_shared<Finisher>(reactor), reply](StatusOr<ChangeReport> report) {
      if (report.ok()) FillChangeReply(*report, reply);
      finisher->Finish(ToGrpc(report.status()));
    };
  }
  void Fill(v1::StatusReply* reply) const;

  const DoorOptions& options_;
  const gyre::Model& model_;
  Engine& engine_;
  Cluster& cluster_;
};

void AdminService::Fill(v1::StatusReply* reply) const {
  FillStatusReply({.version = options_.version, .model = model_, .context = options_.context}, cluster_.status(),
                  engine_.stats(), reply);
}

class GrpcDoor : public Door {
 public:
  GrpcDoor(const DoorOptions& options, const Model& model, Engine& engine, Cluster& cluster)
      : options_(options),
        inference_(MakeInferenceService(options_, model, engine)),
        admin_(options_, model, engine, cluster),
        cluster_(MakeClusterService(options_, model, cluster, attached_)) {}
  ~GrpcDoor() override { GrpcDoor::Stop(); }

  Status Listen() {
    GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(options_.address));
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(options_.address, grpc::InsecureServerCredentials(), &port);
    // Two servers must not share a port unnoticed.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1000);
    builder.SetMaxReceiveMessageSize(16 << 20);
    grpc::ResourceQuota quota("door");
    quota.Resize(size_t{512} << 20);
    builder.SetResourceQuota(quota);
    builder.RegisterService(inference_.get());
    builder.RegisterService(&admin_);
    builder.RegisterService(cluster_.get());
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0)
      return Unavailable("cannot listen at {}: is the port in use?", options_.address);
    address_ = FormatHostPort(at.host, static_cast<uint16_t>(port));
    watch_ = std::thread([this] {
      constexpr Duration kTick = std::chrono::milliseconds(100);
      while (!stopping_) {
        const Deadline wake = After(kTick);
        std::this_thread::sleep_for(kTick);
        // Woken late, the process was held up itself, by a suspended or crowded machine: others' silence means nothing
        // then.
        const Duration late = Clock::now() - wake;
        attached_.Check(options_.heartbeat_timeout, late > kTick / 2 ? late : Duration::zero());
      }
    });
    return absl::OkStatus();
  }
  const std::string& address() const override { return address_; }
  void Stop() override {
    if (server_ == nullptr || stopping_.exchange(true)) return;
    attached_.CancelAll();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
    server_->Wait();
    watch_.join();
  }

 private:
  const DoorOptions options_;
  const std::unique_ptr<grpc::Service> inference_;
  AdminService admin_;
  Attached attached_;
  const std::unique_ptr<grpc::Service> cluster_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  std::atomic<bool> stopping_{false};
  std::thread watch_;
};

}  // namespace

StatusOr<std::unique_ptr<Door>> Door::Open(const DoorOptions& options, const Model& model, Engine& engine,
                                           Cluster& cluster) {
  auto door = std::make_unique<GrpcDoor>(options, model, engine, cluster);
  GYRE_RETURN_IF_ERROR(door->Listen());
  return std::unique_ptr<Door>(std::move(door));
}

}  // namespace gyre
