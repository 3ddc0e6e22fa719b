// Requests as gRPC's messages: on the wire, and in the coordinator's state. Pure functions, thread-safe.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "coordinator/engine/request.h"
#include "gyre/v1/inference.pb.h"

namespace gyre {

// All but the deadline and the id. Of what was generated the ids only.
v1::GenerateRequest EncodeRequest(const Request& request);
// The other way; a field that is not set has its default. The grammar is not compiled.
Request DecodeRequest(const v1::GenerateRequest& message);
// The part of it that a question has, too. prompt_logits and deadline are not in the message.
RequestSettings DecodeSettings(const v1::GenerateRequest& message);

v1::AnswerFormat EncodeFormat(const AnswerFormat& format);
AnswerFormat DecodeFormat(const v1::AnswerFormat& format);

// Tokens as the state has them: everything but their texts.
std::string EncodeTokens(std::span<const TokenEvent> tokens);
// Appends them. kDataLoss: these are none.
Status DecodeTokens(std::string_view bytes, std::vector<TokenEvent>* tokens);

}  // namespace gyre
