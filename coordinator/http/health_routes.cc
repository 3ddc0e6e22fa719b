#include "coordinator/http/health_routes.h"

#include "boost/json/object.hpp"
#include "coordinator/http/api_error.h"
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

Awaitable<void> RespondLoading(Exchange& exchange, std::string why) {
  ApiError error{.status = 503, .message = std::move(why), .retry_after = 1};
  co_await RespondError(exchange, std::move(error));
}

void AddHealth(Router& router) {
  Route health{.method = "GET", .path = "/health", .role = Role::kAnyone, .handler = RespondHealth};
  router.Add(std::move(health));
}

void AddReady(Router& router, std::function<Status()> ready) {
  Route route{.method = "GET", .path = "/ready", .role = Role::kAnyone, .handler = {}};
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
    for (const char* path : {"/v1/messages*", "/api/*", "/*"}) {
      Route route{.method = method, .path = path, .role = Role::kAnyone};
      route.handler = [why](Exchange& exchange) { return RespondLoading(exchange, why); };
      router.Add(std::move(route));
    }
  }
}

}  // namespace gyre::http
