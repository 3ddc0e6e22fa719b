#include "coordinator/grpc/standby_server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <utility>

#include "base/mutex.h"
#include "proto/coordinators.h"

namespace gyre {
namespace {

// Ends a call of any method at once.
class Refusal : public grpc::ServerGenericBidiReactor {
 public:
  explicit Refusal(const std::string& text) { Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, text)); }
  void OnDone() override { delete this; }
};

class RefusingServer : public StandbyServer, private grpc::CallbackGenericService {
 public:
  ~RefusingServer() override {
    if (port_ != nullptr) port_->Stop();
  }
  Status Listen(const GrpcPortOptions& options) {
    GYRE_ASSIGN_OR_RETURN(port_, GrpcPort::Open(options, [this](grpc::ServerBuilder& builder) {
                            builder.RegisterCallbackGenericService(this);
                          }));
    return absl::OkStatus();
  }
  const std::string& address() const override { return port_->address(); }
  void SetLeader(const std::string& address) override {
    MutexLock lock(&mutex_);
    leader_ = address;
  }
  void UpdateIdentity() override { port_->UpdateIdentity(); }

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    std::string leader;
    {
      MutexLock lock(&mutex_);
      leader = leader_;
    }
    context->AddTrailingMetadata(kLeaderTrailer, leader);
    return new Refusal(StandbyText(leader));
  }

  Mutex mutex_;
  std::string leader_ GYRE_GUARDED_BY(mutex_);
  std::unique_ptr<GrpcPort> port_;  // goes before what it serves
};

}  // namespace

std::string StandbyText(const std::string& leader) {
  return leader.empty() ? "this coordinator stands by, and none leads yet"
                        : fmt::format("this coordinator stands by, the leader is {}", leader);
}

StatusOr<std::unique_ptr<StandbyServer>> StandbyServer::Open(const GrpcPortOptions& options) {
  auto server = std::make_unique<RefusingServer>();
  GYRE_RETURN_IF_ERROR(server->Listen(options));
  return std::unique_ptr<StandbyServer>(std::move(server));
}

}  // namespace gyre
