#include "coordinator/http/admission.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "coordinator/http/request_log.h"
#include "fmt/core.h"

namespace gyre::http {
namespace {

// Whether a body of this content type can be JSON: the type is application/json, with or without parameters, or it is
// not said.
bool MayBeJson(const std::string* type) {
  if (type == nullptr || type->empty()) return true;
  std::string name = absl::AsciiStrToLower(type->substr(0, type->find(';')));
  while (!name.empty() && (name.back() == ' ' || name.back() == '\t')) name.pop_back();
  return name == "application/json";
}

std::optional<ApiError> CheckRole(const ServerCore& core, const Route& route, const HttpRequest& request) {
  if (route.role <= request.caller.role) return std::nullopt;
  if (core.keys == nullptr) {
    return ApiError{.status = 403, .message = "without --api-keys this is answered to this machine only"};
  }
  if (!request.caller.name.empty()) return ApiError{.status = 403, .message = "this needs a key of the role admin"};
  return ApiError{.status = 401,
                  .message = KeyOf(request) ? "the API key is not known" : "an API key is needed",
                  .code = "invalid_api_key"};
}

std::optional<ApiError> CheckBodyType(const HttpRequest& request) {
  if (request.method != "POST") return std::nullopt;
  // curl -d, as ollama's own examples have it, sends another type. A browser says where its request comes from.
  const bool browser = request.Header("origin") != nullptr || request.Header("sec-fetch-site") != nullptr;
  const bool any_type = StyleOf(request.path) == ApiStyle::kOllama && !browser;
  // A file that is uploaded; a browser may send such a form to any server, so from there it is refused.
  const std::string* type = request.Header("content-type");
  const bool form = request.path == "/v1/files" && !browser && type != nullptr &&
                    absl::StartsWithIgnoreCase(*type, "multipart/form-data");
  if (!any_type && !form && !MayBeJson(type)) {
    return ApiError{.status = 415,
                    .message =
                        "the body must be application/json; say so by the header Content-Type: application/json "
                        "(curl: -H 'Content-Type: application/json')"};
  }
  const std::string* coding = request.Header("content-encoding");
  if (coding != nullptr && !coding->empty() && absl::AsciiStrToLower(*coding) != "identity") {
    return ApiError{.status = 415, .message = "the body must not have a Content-Encoding"};
  }
  return std::nullopt;
}

}  // namespace

Caller Identify(const ApiKeys* keys, const HttpRequest& request, bool loopback) {
  Caller caller;
  caller.loopback = loopback;
  if (keys == nullptr) {
    caller.role = loopback ? Role::kAdmin : Role::kUser;
    return caller;
  }
  const std::optional<std::string_view> key = KeyOf(request);
  const ApiKeys::Entry* entry = key ? keys->Find(*key) : nullptr;
  if (entry == nullptr) return caller;
  caller.name = entry->name;
  caller.role = entry->role;
  caller.tenant = entry->tenant;
  return caller;
}

Admission Admit(const ServerCore& core, const Router& router, const HttpRequest& request) {
  Admission out;
  if (const std::string* host = request.Header("host")) out.error = CheckHost(core.origins, *host);
  if (!out.error && ClassifyOrigin(core.origins, request) == OriginKind::kForeign) {
    out.error = ApiError{.status = 403,
                         .message = "a page of another server may not ask here; the flag --cors ORIGIN lets it",
                         .code = "origin_not_allowed"};
  }
  if (out.error || IsPreflight(request)) return out;
  Router::Match match = router.Find(request.method, request.path);
  out.route = match.route;
  out.allow = std::move(match.allow);
  if (out.route == nullptr) {
    const std::string path = ForLog(request.path);
    out.error = out.allow.empty()
                    ? ApiError{.status = 404, .message = fmt::format("there is no {}", path)}
                    : ApiError{.status = 405, .message = fmt::format("{} does not take {}", path, request.method)};
    return out;
  }
  out.error = CheckRole(core, *out.route, request);
  if (!out.error && core.draining && out.route->role != Role::kAnyone) {
    out.error = ApiError{.status = 503, .message = "the server is about to end", .retry_after = 1};
  }
  if (!out.error) out.error = CheckBodyType(request);
  return out;
}

bool IsPreflight(const HttpRequest& request) {
  return request.method == "OPTIONS" && request.Header("origin") != nullptr &&
         request.Header("access-control-request-method") != nullptr;
}

HttpResponse PreflightAnswer(const HttpRequest& request) {
  HttpResponse answer{.status = 204};
  answer.headers.emplace_back("access-control-allow-methods", "GET, HEAD, POST, PUT, PATCH, DELETE");
  if (const std::string* wanted = request.Header("access-control-request-headers")) {
    answer.headers.emplace_back("access-control-allow-headers", *wanted);
  }
  answer.headers.emplace_back("access-control-max-age", "600");
  return answer;
}

}  // namespace gyre::http
