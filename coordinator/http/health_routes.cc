#include "coordinator/http/health_routes.h"

#include "boost/json/object.hpp"
#include "boost/json/serialize.hpp"
#include "coordinator/http/json_text.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

HttpResponse HealthAnswer(int status, const json::object& body) {
  HttpResponse response;
  response.status = status;
  response.headers.emplace_back("cache-control", "no-store");
  response.body = json::serialize(body);
  return response;
}

Awaitable<void> RespondHealth(Exchange& exchange) {
  json::object body;
  body["status"] = "ok";
  HttpResponse answer = HealthAnswer(200, body);
  co_await exchange.Respond(std::move(answer));
}

Awaitable<void> RespondReady(Exchange& exchange, ApiContext& context) {
  const Status status = context.ready ? context.ready() : absl::OkStatus();
  json::object body;
  body["status"] = status.ok() ? "ready" : "not ready";
  if (!status.ok()) body["reason"] = ValidUtf8(Message(status));
  HttpResponse answer = HealthAnswer(status.ok() ? 200 : 503, body);
  if (!status.ok()) answer.headers.emplace_back("retry-after", "1");
  co_await exchange.Respond(std::move(answer));
}

}  // namespace

void AddHealthRoutes(Router& router, ApiContext& context) {
  Route health{
      .method = "GET", .path = "/health", .role = Role::kAnyone, .style = ApiStyle::kOpenAi, .handler = RespondHealth};
  router.Add(std::move(health));
  Route ready{.method = "GET", .path = "/ready", .role = Role::kAnyone, .style = ApiStyle::kOpenAi, .handler = {}};
  ready.handler = [&context](Exchange& exchange) { return RespondReady(exchange, context); };
  router.Add(std::move(ready));
}

}  // namespace gyre::http
