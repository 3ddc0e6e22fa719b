// The words of a worker and a coordinator when the worker joins with a token: one message each way, inside
// TLS, behind its length (u32, little-endian). docs/security.md.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "identity/identity.h"
#include "identity/join_token.h"

namespace gyre {

// With what a connection to the cluster port asks for this protocol; a handshake of TLS follows. As long as HTTP/2's.
inline constexpr std::string_view kJoinPreface = "GYRE JOIN 1 TLS\r\n\r\n\r\n\r\n\n";

inline constexpr size_t kMaxJoinRequest = 8 << 10, kMaxJoinReply = 2 << 20;  // bytes behind the length
inline constexpr size_t kJoinLengthBytes = 4;

// REQUIRES: the text has at least kJoinLengthBytes. kDataLoss: more than `most`.
StatusOr<size_t> JoinLength(std::span<const std::byte> bytes, size_t most);

// With its length.
std::vector<std::byte> EncodeJoinRequest(const JoinRequest& request);
// kDataLoss.
StatusOr<JoinRequest> DecodeJoinRequest(std::span<const std::byte> message);

struct JoinReply {
  std::string refusal;  // empty: the files are there, the identity without its private key
  Identity::Files files;
};
std::vector<std::byte> EncodeJoinReply(const JoinReply& reply);
StatusOr<JoinReply> DecodeJoinReply(std::span<const std::byte> message);

}  // namespace gyre
