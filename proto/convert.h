// Statuses between Gyre and gRPC.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace gyre {

// The first `most` bytes, without half a character at their end; if the text was cut, "..." follows.
inline std::string CutUtf8(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;
  return text.substr(0, end) + "...";
}

// gRPC drops a status text that does not fit into its 8 KiB of metadata; each byte that is not ASCII takes three
// there.
inline constexpr size_t kMaxStatusText = 2000;

inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      CutUtf8(std::string(status.message().data(), status.message().size()), kMaxStatusText));
}

inline absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::string_view(status.error_message().data(), status.error_message().size()));
}

// The last cause in gRPC's chain of causes: "Connection refused".
inline std::string Cause(const grpc::Status& status) {
  const std::string& text = status.error_message();
  const size_t at = text.rfind(": ");
  return at == std::string::npos ? text : text.substr(at + 2);
}

}  // namespace gyre
