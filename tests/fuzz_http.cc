// Any bytes as what a client sends: the request's head and body, the access rules, the routes over a service whose
// engine answers at once. A route must answer exactly once, and JSON must be JSON.
//
// An input whose first byte is below ' ' is the body alone of a POST: the byte counts through the routes that take one.
#include <boost/json.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/http/origin.h"
#include "coordinator/http/request_parser.h"
#include "coordinator/http/response_head.h"
#include "coordinator/http/routes.h"
#include "model/weights.h"
#include "tests/testing/fake_exchange.h"

namespace gyre::http {
namespace {

constexpr uint32_t kContext = 256;

// Answers a request within Submit.
EngineCalls CallsThatAnswerAtOnce(int vocab, size_t dim) {
  const auto submit = [vocab, dim](Request request, EventSink sink) -> StatusOr<SeqId> {
    static uint64_t last = 0;
    const SeqId id{++last};
    const auto n = static_cast<uint32_t>(request.prompt.size());
    if (request.prompt_logprobs) {
      for (uint32_t i = 1; i < n; ++i)
        sink(id, PromptTokenEvent{.position = i, .token = request.prompt[i], .logprob = -1});
    }
    if (request.prompt_logits) {
      for (uint32_t i = 0; i < n; ++i) sink(id, LogitsEvent{i, std::vector<float>(static_cast<size_t>(vocab))});
    }
    if (request.embedding) sink(id, EmbeddingEvent{std::vector<float>(dim, 0.5f)});
    uint32_t generated = 0;
    for (; generated < std::min(request.max_new_tokens, 3u); ++generated) {
      TokenEvent event{.token = static_cast<TokenId>(generated % static_cast<uint32_t>(vocab)), .text = "a\xC3\xA9"};
      if (request.logprobs) event.top.assign(*request.logprobs, {});
      sink(id, event);
    }
    sink(id, Finished{.usage = {.prompt_tokens = n, .generated_tokens = generated}});
    return id;
  };
  return {.submit = submit, .cancel = [](SeqId) {}, .hold = [](SeqId) {}, .unhold = [](SeqId) {}};
}

struct World {
  World() {
    AddAllRoutes(router, context);
    for (const Route& route : router.routes()) {
      if (route.method == "POST" && route.path.back() != '*') posts.push_back(route.path);
    }
  }
  const std::shared_ptr<const Model> model = *OpenModel(GYRE_DEMO_MODEL);
  Service service{*model, CallsThatAnswerAtOnce(model->spec().vocab, static_cast<size_t>(model->spec().dim)), kContext};
  ApiContext context{.service = service, .engine_stats = [] { return EngineStats{}; }, .models = {"demo"}};
  Router router;
  std::vector<std::string> posts;
  const OriginRules origins = *MakeOriginRules("127.0.0.1", {}, {"https://friend.example"});
};

[[noreturn]] void Fail(const HttpRequest& request, const char* what) {
  std::fprintf(stderr, "fuzz_http: %s %s: %s\n", request.method.c_str(), request.path.c_str(), what);
  std::abort();
}

void AskRoute(World& world, HttpRequest request) {
  request.caller.role = Role::kAdmin;
  const Router::Match match = world.router.Find(request.method, request.path);
  if (match.route == nullptr) return;
  const auto exchange = Ask(match.route->handler, std::move(request));
  const HttpResponse& answer = exchange->answer;
  if (exchange->answers != 1) Fail(exchange->request(), "it was not answered exactly once");
  if (answer.status < 200 || answer.status > 599) Fail(exchange->request(), "it was answered without a status");
  if (answer.status == 500) Fail(exchange->request(), answer.body.c_str());
  (void)FormatResponseHead(answer, {.length = answer.body.size()});
  boost::system::error_code error;
  if (answer.content_type == "application/json") boost::json::parse(answer.body, error);
  if (error) Fail(exchange->request(), ("it was answered with JSON that is none: " + answer.body).c_str());
}

// One request; false: nothing can follow it.
bool OneRequest(World& world, std::string_view* input) {
  ServerLimits limits;
  limits.body_bytes = 1 << 20;
  const HeadEnd end = FindHeadEnd(*input, 0, limits);
  if (end.error || end.size == 0) return false;
  RequestParser parser(limits);
  const std::optional<ApiError> error = parser.Head(input->substr(0, end.size));
  if (error) (void)Render(*error, ApiStyle::kOpenAi);
  input->remove_prefix(end.size);
  if (const std::string* host = parser.request().Header("host")) (void)CheckHost(world.origins, *host);
  (void)ClassifyOrigin(world.origins, parser.request());
  if (error) return false;
  while (!parser.done()) {
    size_t used = 0;
    if (parser.Body(*input, &used)) return false;
    if (used == 0) return false;
    input->remove_prefix(used);
  }
  parser.TakeBody();
  AskRoute(world, std::move(parser.request()));
  return true;
}

}  // namespace
}  // namespace gyre::http

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gyre::http;
  static World* const world = new World;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  if (!input.empty() && static_cast<unsigned char>(input[0]) < ' ') {
    HttpRequest request;
    request.id = "fuzz";
    request.method = "POST";
    request.path = world->posts[static_cast<size_t>(input[0]) % world->posts.size()];
    request.body = std::string(input.substr(1));
    AskRoute(*world, std::move(request));
    return 0;
  }
  while (OneRequest(*world, &input)) {
  }
  return 0;
}
