#include "identity/join_message.h"

#include "base/coding.h"

namespace gyre {
namespace {

constexpr uint16_t kVersion = 1;

std::vector<std::byte> WithLength(const Encoder& message) {
  Encoder out;
  out.Put(static_cast<uint32_t>(message.bytes().size()));
  std::vector<std::byte> bytes(out.bytes().begin(), out.bytes().end());
  bytes.insert(bytes.end(), message.bytes().begin(), message.bytes().end());
  return bytes;
}

Status CheckVersion(uint16_t version) {
  return version == kVersion ? absl::OkStatus()
                             : DataLoss("a message of version {} of the join protocol, expected {}", version, kVersion);
}

}  // namespace

StatusOr<size_t> JoinLength(std::span<const std::byte> bytes, size_t most) {
  Decoder in(bytes.first(kJoinLengthBytes));
  const size_t length = in.Get<uint32_t>();
  if (length > most) return DataLoss("a message of {} bytes, at most {} fit", length, most);
  return length;
}

std::vector<std::byte> EncodeJoinRequest(const JoinRequest& r) {
  Encoder out;
  out.Put(kVersion);
  for (const std::string* text : {&r.id, &r.secret, &r.name, &r.request}) out.PutString(*text);
  return WithLength(out);
}

StatusOr<JoinRequest> DecodeJoinRequest(std::span<const std::byte> message) {
  Decoder in(message);
  GYRE_RETURN_IF_ERROR(CheckVersion(in.Get<uint16_t>()));
  JoinRequest r;
  for (std::string* text : {&r.id, &r.secret, &r.name, &r.request}) *text = in.GetString();
  if (!in.ok()) return DataLoss("a request to join is cut");
  return r;
}

std::vector<std::byte> EncodeJoinReply(const JoinReply& r) {
  Encoder out;
  out.Put(kVersion);
  const std::string revoked = r.files.revoked.empty() ? "" : r.files.revoked.back();
  for (const std::string* text : {&r.refusal, &r.files.identity, &r.files.authorities, &revoked}) out.PutString(*text);
  return WithLength(out);
}

StatusOr<JoinReply> DecodeJoinReply(std::span<const std::byte> message) {
  Decoder in(message);
  GYRE_RETURN_IF_ERROR(CheckVersion(in.Get<uint16_t>()));
  JoinReply r;
  std::string revoked;
  for (std::string* text : {&r.refusal, &r.files.identity, &r.files.authorities, &revoked}) *text = in.GetString();
  if (!in.ok()) return DataLoss("an answer of the coordinator is cut");
  if (!revoked.empty()) r.files.revoked.push_back(std::move(revoked));
  return r;
}

}  // namespace gyre
