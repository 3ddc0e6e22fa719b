// Bodies of Anthropic's API as questions.
#pragma once

#include <optional>
#include <string>

#include "boost/json/object.hpp"
#include "coordinator/http/api_error.h"
#include "coordinator/http/exchange.h"
#include "coordinator/http/tool_fields.h"
#include "coordinator/service/service.h"

namespace gyre::http {

struct MessagesRequest {
  Question question;
  std::string model;
  bool stream = false;
  ToolRequest tools;
};

// Reads the body of POST /v1/messages. 400.
std::optional<ApiError> ReadMessages(const boost::json::object& body, const Model& model, const Caller& caller,
                                     MessagesRequest* out);
// Reads the body of POST /v1/messages/count_tokens: a conversation alone. 400.
std::optional<ApiError> ReadCountTokens(const boost::json::object& body, MessagesRequest* out);

}  // namespace gyre::http
