// The route POST /v1/embeddings.
#include <algorithm>
#include <cmath>

#include "absl/strings/escaping.h"
#include "coordinator/http/generation.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/openai_routes.h"
#include "coordinator/http/openai_sampling.h"
#include "fmt/format.h"
#include "model/weights.h"

namespace gyre::http {

// The vectors of one HTTP request, on their way from its body to the answer.
struct EmbeddingsJob {
  std::string model;
  std::vector<Request> requests;
  bool base64 = false;
  size_t dimensions = 0;
  std::vector<std::vector<float>> vectors;  // [input]
  uint64_t tokens = 0;
};

namespace {

namespace json = boost::json;

constexpr int64_t kMaxInputs = 2048;
constexpr size_t kAtOnce = 32;  // requests to the engine

std::optional<ApiError> Read(const ApiContext& context, const HttpRequest& http, EmbeddingsJob* job) {
  json::object object;
  if (std::optional<ApiError> error = ParseBody(http.body, &object)) return error;
  JsonFields fields(object);
  const ModelSpec& spec = context.service.model().spec();
  job->model = ReadModel(fields, context);
  const std::vector<PromptInput> inputs = ReadPrompts(fields, "input", spec.vocab, kMaxInputs);
  const std::string format = fields.String("encoding_format").value_or("float");
  job->base64 = format == "base64";
  if (!job->base64 && format != "float") {
    fields.Fail(
        Unprocessable(fmt::format("encoding_format is {}; it may be float or base64", format), "encoding_format"));
  }
  job->dimensions = static_cast<size_t>(fields.Integer("dimensions", 1, spec.dim).value_or(spec.dim));
  const std::string pooling = fields.String("pooling").value_or("mean");
  if (pooling != "mean" && pooling != "last") {
    fields.Fail(Unprocessable(fmt::format("pooling is {}; it may be mean or last", pooling), "pooling"));
  }
  Question question;
  question.embedding = pooling == "last" ? Pooling::kLast : Pooling::kMean;
  question.tenant = http.caller.tenant;
  question.priority = ReadPriority(fields);
  question.cache_salt = ReadCacheSalt(fields);
  fields.Ignore("user");
  if (std::optional<ApiError> error = fields.Finish()) return error;
  for (const PromptInput& input : inputs) {
    Question one = question;
    if (const auto* ids = std::get_if<std::vector<TokenId>>(&input)) {
      one.input = *ids;
    } else {
      one.input = TextInput{.text = std::get<std::string>(input)};
    }
    if (auto error = AddRequests(context.service, std::move(one), 1, "input", &job->requests)) return error;
  }
  return std::nullopt;
}

// Keeps the first `dimensions` values and gives them the length one. A vector of zeros stays.
void Normalize(size_t dimensions, std::vector<float>* vector) {
  vector->resize(std::min(dimensions, vector->size()));
  double sum = 0;
  for (float v : *vector) sum += double{v} * v;
  const double scale = sum > 0 ? 1 / std::sqrt(sum) : 0;
  for (float& v : *vector) v = static_cast<float>(v * scale);
}

// The floats are little-endian.
std::string Base64(const std::vector<float>& vector) {
  std::string bytes;
  bytes.reserve(vector.size() * 4);
  for (float v : vector) {
    const auto bits = std::bit_cast<uint32_t>(v);
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(bits >> shift);
  }
  return absl::Base64Escape(absl::string_view(bytes.data(), bytes.size()));
}

std::string Write(EmbeddingsJob* job) {
  std::string out = "{\"object\":\"list\",\"data\":[";
  for (size_t i = 0; i < job->vectors.size(); ++i) {
    std::vector<float>& vector = job->vectors[i];
    Normalize(job->dimensions, &vector);
    fmt::format_to(std::back_inserter(out), R"({}{{"object":"embedding","index":{},"embedding":)", i > 0 ? "," : "", i);
    if (job->base64) {
      AppendQuoted(Base64(vector), &out);
    } else {
      fmt::format_to(std::back_inserter(out), "[{}]", fmt::join(vector, ","));
    }
    out += '}';
  }
  out += "],\"model\":";
  AppendQuoted(ValidUtf8(job->model), &out);
  return out + fmt::format(R"(,"usage":{{"prompt_tokens":{0},"total_tokens":{0}}}}})", job->tokens);
}

// Computes the vectors of all requests, several at once.
Awaitable<std::optional<ApiError>> Compute(const ApiContext& context, Exchange& exchange, EmbeddingsJob& job) {
  job.vectors.resize(job.requests.size());
  for (size_t first = 0; first < job.requests.size() && !exchange.gone(); first += kAtOnce) {
    const size_t end = std::min(first + kAtOnce, job.requests.size());
    const auto begin = std::make_move_iterator(job.requests.begin());
    std::vector<Request> some(begin + static_cast<ptrdiff_t>(first), begin + static_cast<ptrdiff_t>(end));
    Generation generation(exchange, context.service);
    std::optional<ApiError> error = generation.Start(std::move(some));
    if (error) co_return error;
    while (std::optional<Generation::Item> item = co_await generation.Next()) {
      if (auto* vector = std::get_if<EmbeddingEvent>(&item->event)) {
        job.vectors[first + item->index] = std::move(vector->values);
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

}  // namespace

Awaitable<void> Embeddings(const ApiContext& context, Exchange& exchange) {
  EmbeddingsJob job;
  std::optional<ApiError> error;
  std::function<void()> read = [&] { error = Read(context, exchange.request(), &job); };
  Status posted = co_await RunOnService(exchange, context.service, std::move(read));
  if (!posted.ok()) error = FromStatus(posted);
  if (!error && !exchange.gone()) error = co_await Compute(context, exchange, job);
  if (exchange.gone()) co_return;
  HttpResponse response;
  if (!error) {
    std::function<void()> write = [&] { response.body = Write(&job); };
    posted = co_await RunOnService(exchange, context.service, std::move(write));
    if (!posted.ok()) error = FromStatus(posted);
  }
  if (error) response = Render(*error, ApiStyle::kOpenAi);
  co_await exchange.Respond(std::move(response));
}

}  // namespace gyre::http
