// Errors in the form that the clients of each API expect.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "coordinator/http/exchange.h"

namespace gyre::http {

// The API of a route; it decides the form of errors.
enum class ApiStyle : uint8_t { kOpenAi, kAnthropic };

struct ApiError {
  int status = 500;        // of HTTP
  std::string message;     // a sentence
  std::string param = {};  // the field that it is about
  std::string code = {};   // for programs, as "context_length_exceeded"
  int retry_after = 0;     // seconds; 0 = not said
};

// 400: the request is not what the API describes: JSON that cannot be read, a field missing or of the wrong type.
ApiError Malformed(std::string message, std::string param = "");
// 422: a value out of range, or a field that is not supported.
ApiError Unprocessable(std::string message, std::string param = "");
// The error for a status of Service, Engine or Cluster: kInvalidArgument 422, kOutOfRange 400 with the code
// context_length_exceeded, kNotFound 404, kFailedPrecondition 409,
// kResourceExhausted 429 with Retry-After, kUnavailable and kDeadlineExceeded 503, kUnimplemented 422, else 500.
ApiError FromStatus(const Status& status, std::string param = "");
// The error for making a request from a body. kResourceExhausted is 422: the template would exceed the limit again.
// kFailedPrecondition is 422 too: the model has no tokenizer.
ApiError FromInput(const Status& status, std::string param = "");

HttpResponse Render(const ApiError& error, ApiStyle style);
Awaitable<void> RespondError(Exchange& exchange, ApiError error, ApiStyle style);
// Only the JSON, for an event of a stream.
std::string RenderJson(const ApiError& error, ApiStyle style);

}  // namespace gyre::http
