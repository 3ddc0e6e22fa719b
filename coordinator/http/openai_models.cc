// GET /v1/models and /v1/models/{id}, and all routes of this API together.
#include "boost/json/array.hpp"
#include "boost/json/object.hpp"
#include "coordinator/http/answer_parts.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/openai.h"
#include "coordinator/http/openai_routes.h"
#include "coordinator/http/sampling_fields.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

constexpr std::string_view kModelPath = "/v1/models/";

json::object Describe(const ApiContext& context, const std::string& name) {
  json::object out;
  out["id"] = name;
  out["object"] = "model";
  out["created"] = context.created;
  out["owned_by"] = "gyre";
  if (context.AdapterOf(name) != 0) out["parent"] = context.models.front();
  out["max_model_len"] = context.service.context();
  out["hash"] = context.model_hash();
  const ModelSpec& spec = context.service.model().spec();
  out["meta"] = json::object{{"n_vocab", spec.vocab}, {"n_ctx_train", spec.context}};
  const SamplingParams sampling = DefaultSampling(context.service.model());
  json::object& defaults = out["default_sampling"].emplace_object();
  for (const SamplingOption& option : SamplingOptions()) {
    if (option.openai) defaults[option.name] = JsonOf(sampling, option);
  }
  return out;
}

using Handler = Awaitable<void> (*)(const ApiContext&, Exchange&);

Route MakeRoute(const ApiContext& context, const char* method, const std::string& path, Handler handler) {
  return {.method = method, .path = path, .role = Role::kUser, .handler = [&context, handler](Exchange& exchange) {
            return handler(context, exchange);
          }};
}

}  // namespace

Awaitable<void> ListModels(const ApiContext& context, Exchange& exchange) {
  json::array data;
  for (const std::string& name : context.models) data.push_back(Describe(context, name));
  for (const auto& adapter : context.service.model().adapters()) {
    if (!context.Has(adapter->name())) data.push_back(Describe(context, adapter->name()));
  }
  json::object list;
  list["object"] = "list";
  list["data"] = std::move(data);
  HttpResponse response;
  response.body = WriteJson(list);
  co_await exchange.Respond(std::move(response));
}

Awaitable<void> ShowModel(const ApiContext& context, Exchange& exchange) {
  const std::string name = exchange.request().path.substr(kModelPath.size());
  if (std::optional<ApiError> error = CheckModel(context, name)) {
    co_await RespondError(exchange, *std::move(error));
    co_return;
  }
  const json::object model = Describe(context, name);
  HttpResponse response;
  response.body = WriteJson(model);
  co_await exchange.Respond(std::move(response));
}

void AddOpenAiRoutes(Router& router, ApiContext& context) {
  // Clients whose base URL lacks /v1 find the same.
  for (const std::string base : {"/v1", ""}) {
    router.Add(MakeRoute(context, "POST", base + "/chat/completions", ChatCompletions));
    router.Add(MakeRoute(context, "POST", base + "/completions", Completions));
    router.Add(MakeRoute(context, "POST", base + "/responses", Responses));
    router.Add(MakeRoute(context, "POST", base + "/embeddings", Embeddings));
    router.Add(MakeRoute(context, "GET", base + "/models", ListModels));
  }
  router.Add(MakeRoute(context, "GET", "/v1/models/*", ShowModel));
  router.Add(MakeRoute(context, "GET", "/v1/responses/*", ShowResponse));
  router.Add(MakeRoute(context, "DELETE", "/v1/responses/*", DeleteResponse));
}

}  // namespace gyre::http
