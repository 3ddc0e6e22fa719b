// Between Gyre's types and their messages. What comes in is bounded here.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "gyre/v1/cluster.pb.h"

namespace gyre {

inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      std::string(status.message().data(), status.message().size()));
}

inline absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::string_view(status.error_message().data(), status.error_message().size()));
}

// The end of gRPC's chain of causes: "Connection refused".
inline std::string Cause(const grpc::Status& status) {
  const std::string& text = status.error_message();
  const size_t at = text.rfind(": ");
  return at == std::string::npos ? text : text.substr(at + 2);
}

}  // namespace gyre
