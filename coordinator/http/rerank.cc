#include "coordinator/http/rerank.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "boost/json/array.hpp"
#include "boost/json/object.hpp"
#include "coordinator/http/generation.h"
#include "coordinator/http/json_fields.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/openai_sampling.h"
#include "fmt/core.h"
#include "model/classifier.h"
#include "model/weights.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

constexpr size_t kMostDocuments = 1024;
constexpr size_t kDocumentsAtOnce = 32;
// The words of Qwen3's rerank models (QwenLM/Qwen3-Embedding, README).
constexpr char kSystem[] =
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    "answer can only be \"yes\" or \"no\".";
constexpr char kInstruction[] = "Given a web search query, retrieve relevant passages that answer the query";

struct RerankJob {
  std::string model, query, instruction;
  std::vector<std::string> documents;
  size_t top = 0;  // results
  bool with_documents = false;
  TokenId yes = -1, no = -1;
  std::optional<Classifier> classifier;  // in place of the words yes and no
  size_t label = 0;                      // yes, of its labels
  std::vector<Request> requests;         // one for each document
  std::vector<double> relevances;        // likewise
  uint64_t tokens = 0;
};

// The first id of a word that an answer begins with.
StatusOr<TokenId> FirstId(const Service& service, const char* word) {
  GYRE_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, service.Tokenize(word, {.add_special = false}));
  if (ids.empty()) return FailedPrecondition("the model has no token for '{}'", word);
  return ids.front();
}

// The conversation up to the answer, and the answer's first id, whose row says how likely yes and no are. What the
// documents share is computed once.
StatusOr<Request> JudgeRequest(const Service& service, const RerankJob& job, const std::string& document,
                               const Question& settings) {
  ChatInput chat;
  const std::string asked =
      fmt::format("<Instruct>: {}\n<Query>: {}\n<Document>: {}", job.instruction, job.query, document);
  chat.conversation.messages.push_back(json::object{{"role", "system"}, {"content", kSystem}});
  chat.conversation.messages.push_back(json::object{{"role", "user"}, {"content", asked}});
  chat.conversation.extra["enable_thinking"] = false;
  GYRE_ASSIGN_OR_RETURN(ChatPrompt prompt, service.Prompt(std::move(chat)));
  Question question = settings;
  if (job.classifier) {
    question.embedding = Pooling::kLast;
    question.input = std::move(prompt.ids);
    return service.MakeRequest(std::move(question));
  }
  ScoreSettings& score = question.score.emplace();
  score.from = static_cast<uint32_t>(prompt.ids.size());
  score.named = {{std::min(job.yes, job.no), std::max(job.yes, job.no)}};
  prompt.ids.push_back(job.yes);
  question.input = std::move(prompt.ids);
  return service.MakeRequest(std::move(question));
}

// Sets what judges a document: the model's classifier, or else the chances of the words yes and no.
std::optional<ApiError> ReadJudge(const Service& service, RerankJob* job) {
  const ModelSpec& spec = service.model().spec();
  if (!spec.labels.empty()) {
    StatusOr<Classifier> classifier = Classifier::Read(service.model().tensors(), spec);
    if (!classifier.ok()) return FromInput(classifier.status());
    job->classifier = *std::move(classifier);
    const auto yes = std::find(spec.labels.begin(), spec.labels.end(), "yes");
    if (spec.labels.size() > 1 && yes == spec.labels.end())
      return Unprocessable("none of the labels of this model's classifier is yes");
    job->label = spec.labels.size() == 1 ? 0 : static_cast<size_t>(yes - spec.labels.begin());
    return std::nullopt;
  }
  for (const auto& [word, id] : {std::pair("yes", &job->yes), {"no", &job->no}}) {
    const StatusOr<TokenId> found = FirstId(service, word);
    if (!found.ok()) return FromInput(found.status());
    *id = *found;
  }
  if (job->yes == job->no) return Unprocessable("in this model yes and no begin with the same token");
  return std::nullopt;
}

std::optional<ApiError> ReadRerank(const ApiContext& context, const HttpRequest& http, RerankJob* job) {
  json::object object;
  if (std::optional<ApiError> error = ParseBody(http.body, &object)) return error;
  JsonFields fields(object);
  fields.Require("query");
  fields.Require("documents");
  job->model = ReadModel(fields, context);
  job->query = fields.String("query").value_or("");
  job->instruction = fields.String("instruction").value_or(kInstruction);
  const json::array* documents = fields.Array("documents");
  job->with_documents = fields.Bool("return_documents").value_or(false);
  const std::optional<int64_t> top = fields.Integer("top_n", 1, INT32_MAX);
  Question settings;
  settings.tenant = http.caller.tenant;
  settings.priority = ReadPriority(fields);
  settings.adapter = ReadAdapter(fields, context, job->model);
  settings.cache_salt = ReadCacheSalt(fields);
  IgnoreAccounting(fields);
  if (documents != nullptr && (documents->empty() || documents->size() > kMostDocuments)) {
    fields.Fail(BadRequest(
        fmt::format("documents has {} texts; it may have 1 to {}", documents->size(), kMostDocuments), "documents"));
  }
  for (size_t i = 0; documents != nullptr && !fields.failed() && i < documents->size(); ++i) {
    const json::value& one = (*documents)[i];
    const json::value* text = one.is_object() ? one.get_object().if_contains("text") : &one;
    if (text == nullptr || !text->is_string()) {
      fields.Fail(BadRequest(fmt::format("documents[{}] must be a text, or an object with one", i), "documents"));
      break;
    }
    job->documents.emplace_back(text->get_string());
  }
  if (std::optional<ApiError> error = fields.Finish()) return error;
  job->top = std::min(job->documents.size(), static_cast<size_t>(top.value_or(INT32_MAX)));
  if (std::optional<ApiError> error = ReadJudge(context.service, job)) return error;
  for (size_t i = 0; i < job->documents.size(); ++i) {
    auto request = JudgeRequest(context.service, *job, job->documents[i], settings);
    if (!request.ok()) return FromInput(request.status(), fmt::format("documents[{}]", i));
    job->requests.push_back(*std::move(request));
  }
  return std::nullopt;
}

Awaitable<std::optional<ApiError>> Judge(const ApiContext& context, Exchange& exchange, RerankJob& job) {
  job.relevances.resize(job.requests.size());
  for (size_t first = 0; first < job.requests.size() && !exchange.gone(); first += kDocumentsAtOnce) {
    const size_t end = std::min(first + kDocumentsAtOnce, job.requests.size());
    const auto begin = job.requests.begin();
    std::vector<Request> some(begin + static_cast<ptrdiff_t>(first), begin + static_cast<ptrdiff_t>(end));
    Generation generation(exchange, context);
    std::optional<ApiError> error = generation.Start(std::move(some));
    if (error) co_return error;
    while (std::optional<Generation::Item> item = co_await generation.Next()) {
      if (const auto* score = std::get_if<PromptTokenEvent>(&item->event)) {
        const bool yes_first = job.yes < job.no;
        const double a = static_cast<double>(score->named[0].logprob), b = static_cast<double>(score->named[1].logprob);
        job.relevances[first + item->index] = 1 / (1 + std::exp(yes_first ? b - a : a - b));
      } else if (const auto* vector = std::get_if<EmbeddingEvent>(&item->event)) {
        job.relevances[first + item->index] = job.classifier->Probabilities(vector->values)[job.label];
      } else if (const auto* finished = std::get_if<Finished>(&item->event)) {
        job.tokens += finished->usage.prompt_tokens;
      } else {
        error = ErrorOf(item->event);
        if (error) co_return error;
      }
    }
  }
  co_return std::nullopt;
}

// The best first; equal ones in their order.
json::object RankedList(const RerankJob& job) {
  std::vector<size_t> order(job.documents.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return job.relevances[a] > job.relevances[b]; });
  order.resize(job.top);
  json::object out{{"object", "list"}, {"model", ValidUtf8(job.model)}};
  json::array& results = out["results"].emplace_array();
  for (const size_t i : order) {
    json::object result{{"index", i}, {"relevance_score", job.relevances[i]}};
    if (job.with_documents) result["document"] = json::object{{"text", job.documents[i]}};
    results.push_back(std::move(result));
  }
  out["usage"] = json::object{{"prompt_tokens", job.tokens}, {"total_tokens", job.tokens}};
  return out;
}

Awaitable<void> Rerank(const ApiContext& context, Exchange& exchange) {
  RerankJob job;
  std::optional<ApiError> error;
  std::function<void()> read = [&] { error = ReadRerank(context, exchange.request(), &job); };
  const Status posted = co_await RunOnService(exchange, context.service, std::move(read));
  if (!posted.ok()) error = FromStatus(posted);
  if (!error && !exchange.gone()) error = co_await Judge(context, exchange, job);
  if (exchange.gone()) co_return;
  if (error) {
    co_await RespondError(exchange, *std::move(error));
    co_return;
  }
  json::object list = RankedList(job);
  co_await RespondJson(exchange, std::move(list));
}

}  // namespace

void AddRerankRoutes(Router& router, ApiContext& context) {
  for (const char* path : {"/v1/rerank", "/rerank"}) {
    router.Add({.method = "POST", .path = path, .role = Role::kUser, .handler = [&context](Exchange& exchange) {
                  return Rerank(context, exchange);
                }});
  }
}

}  // namespace gyre::http
