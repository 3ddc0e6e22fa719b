#include "coordinator/http/api_error.h"

#include "boost/json/object.hpp"
#include "coordinator/http/json_text.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

json::value TextOrNull(const std::string& text) {
  if (text.empty()) return nullptr;
  return json::value(ValidUtf8(text));
}

const char* OpenAiType(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    default: return status < 500 ? "invalid_request_error" : "server_error";
  }
}

const char* AnthropicType(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 503: return "overloaded_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
  }
}

int HttpStatus(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange: return 400;
    case absl::StatusCode::kUnimplemented: return 422;
    case absl::StatusCode::kNotFound: return 404;
    case absl::StatusCode::kFailedPrecondition: return 409;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded: return 503;
    default: return 500;
  }
}

}  // namespace

ApiStyle StyleOf(std::string_view path) {
  if (path.substr(0, 12) == "/v1/messages") return ApiStyle::kAnthropic;
  return path.substr(0, 5) == "/api/" ? ApiStyle::kOllama : ApiStyle::kOpenAi;
}

ApiError BadRequest(std::string message, std::string param) {
  return {.status = 400, .message = std::move(message), .param = std::move(param)};
}

ApiError Unprocessable(std::string message, std::string param) {
  return {.status = 422, .message = std::move(message), .param = std::move(param)};
}

ApiError FromStatus(const Status& status, std::string param) {
  const int http = HttpStatus(status.code());
  return {.status = http,
          .message = Message(status),
          .param = std::move(param),
          .code = absl::IsOutOfRange(status)          ? kTooLong
                  : absl::IsResourceExhausted(status) ? kQueueFull
                                                      : "",
          .retry_after = http == 503 ? 1 : 0};
}

ApiError FromInput(const Status& status, std::string param) {
  // The template's output is too long, or the model can't take such an input at all, as it has no tokenizer.
  // Or a grammar that can't be obeyed.
  if (absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status) || absl::IsUnimplemented(status))
    return Unprocessable(Message(status), std::move(param));
  return FromStatus(status, std::move(param));
}

std::string RenderJson(const ApiError& error, ApiStyle style) {
  if (style == ApiStyle::kOllama) return WriteJson(json::object{{"error", ValidUtf8(error.message)}});
  json::object inner;
  if (style == ApiStyle::kAnthropic) {
    inner["type"] = AnthropicType(error.status);
    // Clients of this API shorten a conversation where they read these words.
    inner["message"] = (error.code == kTooLong ? "prompt is too long: " : "") + ValidUtf8(error.message);
    json::object outer;
    outer["type"] = "error";
    outer["error"] = std::move(inner);
    return WriteJson(outer);
  }
  inner["message"] = ValidUtf8(error.message);
  inner["type"] = OpenAiType(error.status);
  inner["param"] = TextOrNull(error.param);
  inner["code"] = TextOrNull(error.code);
  json::object outer;
  outer["error"] = std::move(inner);
  return WriteJson(outer);
}

HttpResponse Render(const ApiError& error, ApiStyle style) {
  HttpResponse response;
  response.status = style == ApiStyle::kAnthropic && error.code == kQueueFull ? 529 : error.status;
  response.body = RenderJson(error, style);
  if (error.retry_after > 0) response.headers.emplace_back("retry-after", std::to_string(error.retry_after));
  if (error.status == 401) response.headers.emplace_back("www-authenticate", "Bearer");
  return response;
}

Awaitable<void> RespondJson(Exchange& exchange, json::object object) {
  HttpResponse response;
  response.body = WriteJson(object);
  co_await exchange.Respond(std::move(response));
}

Awaitable<void> RespondError(Exchange& exchange, ApiError error) {
  HttpResponse response = Render(error, StyleOf(exchange.request().path));
  co_await exchange.Respond(std::move(response));
}

}  // namespace gyre::http
