// The route POST /v1/embeddings.
#include <bit>

#include "absl/strings/escaping.h"
#include "coordinator/http/embeddings_job.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/openai_routes.h"
#include "coordinator/http/openai_sampling.h"
#include "fmt/format.h"
#include "model/weights.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

std::optional<ApiError> Read(const ApiContext& context, const HttpRequest& http, EmbeddingsJob* job) {
  json::object object;
  if (std::optional<ApiError> error = ParseBody(http.body, &object)) return error;
  JsonFields fields(object);
  const ModelSpec& spec = context.service.model().spec();
  job->model = ReadModel(fields, context);
  const std::vector<PromptInput> inputs = ReadPrompts(fields, "input", spec.vocab, kMaxEmbeddings);
  const std::string format = fields.String("encoding_format").value_or("float");
  job->base64 = format == "base64";
  if (!job->base64 && format != "float") {
    fields.Fail(BadRequest(fmt::format("encoding_format is {}; it may be float or base64", format), "encoding_format"));
  }
  job->dimensions = static_cast<size_t>(fields.Integer("dimensions", 1, spec.dim).value_or(spec.dim));
  const std::string pooling = fields.String("pooling").value_or("mean");
  if (pooling != "mean" && pooling != "last" && pooling != "cls") {
    fields.Fail(BadRequest(fmt::format("pooling is {}; it may be mean, last or cls", pooling), "pooling"));
  }
  Question question;
  question.embedding = pooling == "last" ? Pooling::kLast : pooling == "cls" ? Pooling::kFirst : Pooling::kMean;
  job->normalize = fields.Bool("normalize").value_or(true);
  question.tenant = http.caller.tenant;
  question.priority = ReadPriority(fields);
  question.cache_salt = ReadCacheSalt(fields);
  IgnoreAccounting(fields);
  fields.Ignore("keep_alive");
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

std::string Write(const EmbeddingsJob& job) {
  std::string out = "{\"object\":\"list\",\"data\":[";
  for (size_t i = 0; i < job.vectors.size(); ++i) {
    const std::vector<float>& vector = job.vectors[i];
    fmt::format_to(std::back_inserter(out), R"({}{{"object":"embedding","index":{},"embedding":)", i > 0 ? "," : "", i);
    if (job.base64) {
      AppendQuoted(Base64(vector), &out);
    } else {
      fmt::format_to(std::back_inserter(out), "[{}]", fmt::join(vector, ","));
    }
    out += '}';
  }
  out += "],\"model\":";
  AppendQuoted(ValidUtf8(job.model), &out);
  return out + fmt::format(R"(,"usage":{{"prompt_tokens":{0},"total_tokens":{0}}}}})", job.tokens);
}

}  // namespace

Awaitable<void> Embeddings(const ApiContext& context, Exchange& exchange) {
  return RunEmbeddings(context, exchange, Read, Write);
}

}  // namespace gyre::http
