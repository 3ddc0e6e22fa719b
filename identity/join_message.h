// Messages between a worker that joins with a token and the coordinator: one message each way, inside
// TLS, after its length (u32, little-endian). docs/security.md.
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

// The first bytes of a connection to the cluster port that uses this protocol. As long as HTTP/2's; TLS follows.
inline constexpr std::string_view kJoinPreface = "GYRE JOIN 1 TLS\r\n\r\n\r\n\r\n\n";

inline constexpr size_t kMaxJoinRequest = 8 << 10, kMaxJoinReply = 2 << 20;  // bytes behind the length
inline constexpr size_t kJoinLengthBytes = 4;

// REQUIRES: the text has at least kJoinLengthBytes. kDataLoss: more than `most`.
StatusOr<size_t> JoinLength(std::span<const std::byte> bytes, size_t most);

// The encoded message begins with its length.
std::vector<std::byte> EncodeJoinRequest(const JoinRequest& request);
// kDataLoss: the message is damaged.
StatusOr<JoinRequest> DecodeJoinRequest(std::span<const std::byte> message);

struct JoinReply {
  std::string refusal;  // empty: the files are there, the identity without its private key
  Identity::Files files;
};
std::vector<std::byte> EncodeJoinReply(const JoinReply& reply);
StatusOr<JoinReply> DecodeJoinReply(std::span<const std::byte> message);

}  // namespace gyre
