// Errors in the form that the clients of each API expect.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "boost/json/object.hpp"
#include "coordinator/http/exchange.h"

namespace gyre::http {

// The API that a path belongs to; it decides the form of errors.
enum class ApiStyle : uint8_t { kOpenAi, kAnthropic, kOllama };

// That of a path, which may be no route.
ApiStyle StyleOf(std::string_view path);

inline constexpr char kTooLong[] = "context_length_exceeded", kQueueFull[] = "queue_full";  // codes

struct ApiError {
  int status = 500;        // of HTTP
  std::string message;     // a sentence
  std::string param = {};  // the field that it is about
  std::string code = {};   // for programs: kTooLong, kQueueFull and others
  int retry_after = 0;     // seconds; 0 = not said
};

// 400: what is wrong with the request itself, whatever model answers it.
ApiError BadRequest(std::string message, std::string param = "");
// 422: the request is right, but this model can't answer it.
ApiError Unprocessable(std::string message, std::string param = "");
// The error for a status of Service, Engine or Cluster: kInvalidArgument 400, kOutOfRange 400 with the code
// context_length_exceeded, kNotFound 404, kFailedPrecondition 409, kUnimplemented 422, kResourceExhausted 503 with
// the code queue_full, kUnavailable and kDeadlineExceeded 503, else 500. All of 503 have Retry-After.
ApiError FromStatus(const Status& status, std::string param = "");
// The error for texts, conversations and ids that become a request or a text. kResourceExhausted is 422: the template
// would exceed the limit again. kFailedPrecondition is 422 too: the model has no tokenizer.
ApiError FromInput(const Status& status, std::string param = "");

// The status is 529 where Anthropic's API says so of a full queue.
HttpResponse Render(const ApiError& error, ApiStyle style);
// 200 with this object.
Awaitable<void> RespondJson(Exchange& exchange, boost::json::object object);
// The error, in the style of the request's path.
Awaitable<void> RespondError(Exchange& exchange, ApiError error);
// Only the JSON, for an event of a stream.
std::string RenderJson(const ApiError& error, ApiStyle style);

}  // namespace gyre::http
