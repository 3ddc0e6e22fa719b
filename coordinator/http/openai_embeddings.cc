// The route POST /v1/embeddings.
#include <algorithm>
#include <bit>

#include "absl/strings/escaping.h"
#include "coordinator/http/embeddings_job.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/openai_routes.h"
#include "coordinator/http/openai_sampling.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "model/weights.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

// A choice of a few names. "" asks for none of them, as null does.
std::string ReadChoice(JsonFields& fields, const char* name, std::initializer_list<const char*> choices) {
  const std::string value = fields.String(name).value_or("");
  if (!value.empty() && std::find(choices.begin(), choices.end(), value) == choices.end()) {
    fields.Fail(BadRequest(fmt::format("{} is {}; it may be {}", name, value, fmt::join(choices, ", ")), name));
  }
  return value;
}

// A text without a token has no vector, and the begin token alone says nothing.
void RefuseEmpty(JsonFields& fields, const std::vector<PromptInput>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool empty = std::visit([](const auto& input) { return input.empty(); }, inputs[i]);
    if (!empty) continue;
    const json::value* value = fields.Any("input");
    const bool list = value != nullptr && value->is_array();
    return fields.Fail(BadRequest(
        fmt::format("input{} is empty; expected a text or token ids", list ? fmt::format("[{}]", i) : ""), "input"));
  }
}

// What other servers are told about how they make a vector: what is done here anyway is accepted.
void ReadMethods(JsonFields& fields) {
  if (!fields.Bool("add_special_tokens").value_or(true))
    fields.RefuseAny("add_special_tokens", "they are always added");
  constexpr int64_t kEuclidean = 2;  // llama.cpp's number
  if (fields.Integer("embd_normalize", INT64_MIN, INT64_MAX).value_or(kEuclidean) != kEuclidean) {
    fields.RefuseAny("embd_normalize",
                     "vectors have the length 1, which is 2 there, or with \"normalize\": false their own");
  }
  for (const char* name : {"truncate", "truncate_prompt_tokens"}) {
    fields.Refuse(name, "a text that is longer than the context is an error");
  }
  for (const char* name : {"input_type", "task", "instruction"}) {
    fields.Refuse(name, "write what the model is to be told into the input");
  }
  fields.Refuse("stream", "vectors come whole");
}

std::optional<ApiError> Read(const ApiContext& context, const HttpRequest& http, EmbeddingsJob* job) {
  json::object object;
  if (std::optional<ApiError> error = ParseBody(http.body, &object)) return error;
  JsonFields fields(object);
  const ModelSpec& spec = context.service.model().spec();
  job->model = ReadModel(fields, context);
  const std::vector<PromptInput> inputs = ReadPrompts(fields, "input", spec.vocab, kMaxEmbeddings);
  RefuseEmpty(fields, inputs);
  job->base64 = ReadChoice(fields, "encoding_format", {"float", "base64"}) == "base64";
  job->dimensions = static_cast<size_t>(fields.Integer("dimensions", 1, spec.dim).value_or(spec.dim));
  const std::string pooling = ReadChoice(fields, "pooling", {"mean", "last", "cls"});
  Question question;
  question.adapter = ReadAdapter(fields, context, job->model);
  question.embedding = pooling == "mean"   ? Pooling::kMean
                       : pooling == "last" ? Pooling::kLast
                       : pooling == "cls"  ? Pooling::kFirst
                                           : spec.pooling.value_or(Pooling::kMean);
  job->normalize = fields.Bool("normalize").value_or(true);
  ReadMethods(fields);
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
