#include "proto/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <atomic>

#include "base/host_port.h"
#include "base/thread.h"
#include "identity/tls_context.h"
#include "proto/convert.h"
#include "proto/credentials.h"

namespace gyre {

Status CheckGrpcRoom() {
  // Once its threads run, gRPC needs little more.
  static std::atomic<bool> begun{false};
  if (begun) return absl::OkStatus();
  constexpr size_t kThreads = 12, kBytes = size_t{64} << 20;
  GYRE_RETURN_IF_ERROR(CheckRoom("the connection to other processes (gRPC)", kThreads, kBytes));
  // With a channel, which nobody calls and which connects to nothing, they start now, while there is room. It is kept
  // for ever: when the last channel goes, gRPC waits for its threads to end, also for those that it did not get.
  static const auto* const kept = new auto(grpc::CreateChannel("127.0.0.1:1", grpc::InsecureChannelCredentials()));
  begun = kept != nullptr;
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& address, const ChannelOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(address));
  if (at.port == 0) return InvalidArgument("'{}': the port is 0, expected 1 to 65535", address);
  GYRE_RETURN_IF_ERROR(CheckGrpcRoom());
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  if (options.own_connection) arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // This also limits the time of an attempt to connect, 20 s by default.
  if (options.impatient) arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  if (options.keepalive) {
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // a stream may have nothing to say for long
  }
  // A machine that lost its power ends no connection. If another one may take its place, this must be noticed soon.
  if (options.impatient) {
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kShortestPing);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }
  arguments.SetMaxReceiveMessageSize(64 << 20);
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (options.identity != nullptr) {
    GYRE_ASSIGN_OR_RETURN(credentials, ClientCredentials(options.identity));
  }
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

namespace {

constexpr char kNoGrpc[] = "it speaks another protocol; expected the address of `gyre serve --cluster`";
constexpr char kHttpPort[] = "it is an HTTP server's port; expected the address of `gyre serve --cluster`";

// The end of the sentence for causes that concern TLS, or another protocol than gRPC; "" for others.
std::string TlsCause(const std::string& cause) {
  const auto has = [&cause](const char* words) { return cause.find(words) != std::string::npos; };
  if (has("certificate verify failed")) return kOfAnotherCa;
  if (has("wrong version number") || has("packet length too long") || has("record overflow")) {
    return "it speaks without TLS, and this side has an --identity";
  }
  if (has("http1.x")) return kHttpPort;
  if (has("Failed parsing HTTP/2")) return kNoGrpc;
  if (has("Connection reset by peer") || has("Socket closed")) {
    return "it ends the connection; if it uses TLS, this side needs an --identity of its CA that is not revoked";
  }
  return "";
}

}  // namespace

std::string WhyNotReached(const grpc::Status& status) {
  const std::string cause = Cause(status), tls = TlsCause(cause);
  return tls.empty() ? cause : tls;
}

bool SpeaksNoGrpc(const grpc::Status& status) {
  const std::string why = TlsCause(Cause(status));
  return why == kHttpPort || why == kNoGrpc;
}

Status FromGrpcAt(const grpc::Status& status, const std::string& address) {
  const Status out = FromGrpc(status);
  if (absl::IsCancelled(out)) {
    return absl::CancelledError(
        fmt::format("the coordinator at {} ended the call, as this side was silent or read too slowly", address));
  }
  if (!absl::IsUnavailable(out)) return out;
  const std::string& text = status.error_message();
  if (text.rfind("failed to connect", 0) == 0 || text.rfind("DNS resolution failed", 0) == 0) {
    const std::string cause = Cause(status);
    const std::string tls = TlsCause(cause);
    if (!tls.empty()) return Unavailable("the coordinator at {}: {}", address, tls);
    return Unavailable("no coordinator answers at {}: {}", address, cause);
  }
  for (const char* gone : {"Socket closed", "Connection reset by peer", "Broken pipe", "GOAWAY"}) {
    if (text.find(gone) != std::string::npos) return Unavailable("the coordinator at {} is gone", address);
  }
  return out;
}

}  // namespace gyre
