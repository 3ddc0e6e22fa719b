#include "coordinator/http/health_routes.h"

#include "boost/json/object.hpp"
#include "coordinator/http/json_text.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

HttpResponse HealthAnswer(int status, const json::object& body) {
  HttpResponse response;
  response.status = status;
  response.headers.emplace_back("cache-control", "no-store");
  response.body = WriteJson(body);
  return response;
}

Awaitable<void> RespondHealth(Exchange& exchange) {
  json::object body;
  body["status"] = "ok";
  HttpResponse answer = HealthAnswer(200, body);
  co_await exchange.Respond(std::move(answer));
}

Awaitable<void> RespondReadiness(Exchange& exchange, Status status) {
  json::object body;
  body["status"] = status.ok() ? "ready" : "not ready";
  if (!status.ok()) body["reason"] = ValidUtf8(Message(status));
  HttpResponse answer = HealthAnswer(status.ok() ? 200 : 503, body);
  if (!status.ok()) answer.headers.emplace_back("retry-after", "1");
  co_await exchange.Respond(std::move(answer));
}

Awaitable<void> RespondLoading(Exchange& exchange, ApiStyle style, std::string why) {
  ApiError error{.status = 503, .message = std::move(why), .retry_after = 1};
  co_await RespondError(exchange, std::move(error), style);
}

void AddHealth(Router& router) {
  Route health{
      .method = "GET", .path = "/health", .role = Role::kAnyone, .style = ApiStyle::kOpenAi, .handler = RespondHealth};
  router.Add(std::move(health));
}

void AddReady(Router& router, std::function<Status()> ready) {
  Route route{.method = "GET", .path = "/ready", .role = Role::kAnyone, .style = ApiStyle::kOpenAi, .handler = {}};
  route.handler = [ready = std::move(ready)](Exchange& exchange) { return RespondReadiness(exchange, ready()); };
  router.Add(std::move(route));
}

}  // namespace

void AddHealthRoutes(Router& router, ApiContext& context) {
  AddHealth(router);
  AddReady(router, [&context] { return context.ready ? context.ready() : absl::OkStatus(); });
}

void AddLoadingRoutes(Router& router, const std::string& reason, const std::string& why) {
  AddHealth(router);
  AddReady(router, [reason] { return Unavailable("{}", reason); });
  for (const char* method : {"GET", "POST"}) {
    for (const bool anthropic : {true, false}) {
      const ApiStyle style = anthropic ? ApiStyle::kAnthropic : ApiStyle::kOpenAi;
      Route route{.method = method, .path = anthropic ? "/v1/messages*" : "/*", .role = Role::kAnyone, .style = style};
      route.handler = [style, why](Exchange& exchange) { return RespondLoading(exchange, style, why); };
      router.Add(std::move(route));
    }
  }
}

}  // namespace gyre::http
