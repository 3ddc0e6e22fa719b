#include "coordinator/http/metrics_routes.h"

#include <utility>

#include "coordinator/cluster/cluster.h"
#include "coordinator/http/metrics_text.h"

namespace gyre::http {
namespace {

MetricsInput Collect(const ApiContext& context) {
  MetricsInput in{.version = context.version, .model = context.models.front()};
  if (context.engine_stats) in.engine = context.engine_stats();
  if (context.cluster != nullptr) in.cluster = context.cluster->status();
  in.streams = context.service.streams().streams();
  in.queued_bytes = context.service.streams().queued_bytes();
  if (context.server_stats) in.server = context.server_stats();
  if (context.request_counts != nullptr) in.requests = context.request_counts->Read();
  in.process = ReadProcessStats();
  return in;
}

Awaitable<void> ShowMetrics(Exchange& exchange, ApiContext& context) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.headers.emplace_back("cache-control", "no-store");
  response.body = MetricsText(Collect(context));
  co_await exchange.Respond(std::move(response));
}

}  // namespace

void AddMetricsRoutes(Router& router, ApiContext& context) {
  Route route{
      .method = "GET", .path = "/metrics", .role = context.metrics_open ? Role::kAnyone : Role::kUser, .handler = {}};
  route.handler = [&context](Exchange& exchange) { return ShowMetrics(exchange, context); };
  router.Add(std::move(route));
}

}  // namespace gyre::http
