#include "coordinator/grpc/port.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <atomic>
#include <utility>

#include "coordinator/grpc/join_server.h"
#include "coordinator/grpc/listener.h"
#include "proto/channel.h"
#include "proto/credentials.h"

namespace gyre {
namespace {

int MillisOf(Duration d) { return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(d).count()); }

class ListeningPort : public GrpcPort {
 public:
  explicit ListeningPort(const GrpcPortOptions& options) : options_(options) {}
  ~ListeningPort() override { ListeningPort::Stop({}); }

  Status Listen(const std::function<void(grpc::ServerBuilder&)>& add) {
    ListenerOptions listener{.address = options_.address, .hello_timeout = options_.hello_timeout};
    std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
    if (options_.identity != nullptr) {
      GYRE_ASSIGN_OR_RETURN(identity_, ServerIdentity::Make(options_.identity));
      credentials = identity_->credentials();
      listener.tls = true;
      if (!options_.cluster_ca.empty()) {
        GYRE_ASSIGN_OR_RETURN(join_,
                              JoinServer::Start({.identity = options_.identity, .authority = options_.cluster_ca}));
        listener.take_join = [this](int fd, const std::string& host, const std::string& peer) {
          join_->Take(fd, host, peer);
        };
      }
    }
    GYRE_ASSIGN_OR_RETURN(listener_, Listener::Open(listener));
    GYRE_RETURN_IF_ERROR(CheckGrpcRoom());
    grpc::ServerBuilder builder;
    auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
    // From the preface to HTTP/2's settings, which every client sends at once.
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, MillisOf(options_.hello_timeout));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, MillisOf(options_.idle_timeout));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kShortestPing / 2);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1000);
    builder.SetMaxReceiveMessageSize(16 << 20);
    grpc::ResourceQuota quota("gyre");
    quota.Resize(size_t{512} << 20);
    builder.SetResourceQuota(quota);
    add(builder);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return Unavailable("cannot serve gRPC at {}", options_.address);
    return listener_->Start([acceptor = std::shared_ptr(std::move(acceptor))](int fd) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      connection.fd = fd;
      acceptor->HandleNewConnection(&connection);
    });
  }
  const std::string& address() const override { return listener_->address(); }
  bool UpdateIdentity() override { return identity_ != nullptr && identity_->Update(); }
  void Stop(const std::function<void()>& end_calls) override {
    if (server_ == nullptr || stopping_.exchange(true)) return;
    listener_->Stop();
    if (end_calls) end_calls();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
    server_->Wait();
  }

 private:
  const GrpcPortOptions options_;
  std::unique_ptr<ServerIdentity> identity_;
  std::unique_ptr<JoinServer> join_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<grpc::Server> server_;
  std::atomic<bool> stopping_{false};
};

}  // namespace

StatusOr<std::unique_ptr<GrpcPort>> GrpcPort::Open(const GrpcPortOptions& options,
                                                   const std::function<void(grpc::ServerBuilder&)>& add) {
  auto port = std::make_unique<ListeningPort>(options);
  GYRE_RETURN_IF_ERROR(port->Listen(add));
  return std::unique_ptr<GrpcPort>(std::move(port));
}

}  // namespace gyre
