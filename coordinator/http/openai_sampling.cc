#include "coordinator/http/openai_sampling.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <random>

#include "coordinator/http/answer_parts.h"
#include "fmt/core.h"
#include "model/weights.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

uint64_t RandomBits() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

void ReadLogitBias(JsonFields& fields, int vocab, SamplingParams* sampling) {
  const json::object* biases = fields.Object("logit_bias");
  if (biases == nullptr) return;
  JsonFields inner(*biases, fields.Path("logit_bias."));
  for (const auto& [key, value] : *biases) {
    const std::string_view name = key;
    TokenId id = -1;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), id);
    if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size() || id < 0 || id >= vocab) {
      inner.Fail(Unprocessable(
          fmt::format("{} is not a token id; the vocabulary has 0 to {}", inner.Path(name), vocab - 1), "logit_bias"));
    }
    const std::optional<double> bias = inner.Number(name, -100, 100);
    if (bias) sampling->logit_bias.emplace_back(id, static_cast<float>(*bias));
  }
  if (std::optional<ApiError> error = inner.Finish()) fields.Fail(*std::move(error));
}

// 400: the elements are not whole numbers; 422: they are no ids of the vocabulary.
std::optional<std::vector<TokenId>> ReadIds(JsonFields& fields, const std::string& path, const json::array& array,
                                            int vocab) {
  std::vector<TokenId> ids;
  ids.reserve(array.size());
  for (const json::value& value : array) {
    const int64_t* id = value.if_int64();
    if (id == nullptr) {
      fields.Fail(Malformed(fmt::format("{} must have whole numbers only", path), path));
      return std::nullopt;
    }
    if (*id < 0 || *id >= vocab) {
      fields.Fail(
          Unprocessable(fmt::format("{} has the token id {}; the vocabulary has 0 to {}", path, *id, vocab - 1), path));
      return std::nullopt;
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

}  // namespace

std::string ReadModel(JsonFields& fields, const ApiContext& context) {
  std::string model = fields.String("model").value_or(context.models.front());
  if (std::optional<ApiError> error = CheckModel(context, model)) fields.Fail(*std::move(error));
  return model;
}

int ReadPriority(JsonFields& fields) { return static_cast<int>(fields.Integer("priority", -100, 100).value_or(0)); }

uint64_t ReadCacheSalt(JsonFields& fields) {
  const std::optional<std::string> text = fields.String("cache_salt");
  if (!text) return 0;
  // The key is not known outside, so that nobody can make a text with the same salt as another's.
  static const uint64_t key = RandomBits();
  return XXH3_64bits_withSeed(text->data(), text->size(), key);
}

void ReadSampling(JsonFields& fields, const ApiContext& context, Question* question) {
  SamplingParams& s = question->sampling;
  s.temperature = static_cast<float>(fields.Number("temperature", 0, 100).value_or(1));
  // The token that crosses top_p is kept, so the smallest value keeps only the best token, as OpenAI's 0 does.
  s.top_p = std::max(static_cast<float>(fields.Number("top_p", 0, 1).value_or(1)), 1e-9f);
  s.top_k = static_cast<int>(fields.Integer("top_k", -1, INT32_MAX).value_or(0));
  s.top_k = std::max(s.top_k, 0);  // -1 is how others say "off"
  s.min_p = static_cast<float>(fields.Number("min_p", 0, 1).value_or(0));
  s.frequency_penalty = static_cast<float>(fields.Number("frequency_penalty", -2, 2).value_or(0));
  s.presence_penalty = static_cast<float>(fields.Number("presence_penalty", -2, 2).value_or(0));
  s.repetition_penalty = static_cast<float>(fields.Number("repetition_penalty", 0.01, 100).value_or(1));
  s.penalty_last_n = -1;
  const std::optional<int64_t> seed = fields.Integer("seed", INT64_MIN, INT64_MAX);
  s.seed = seed ? static_cast<uint64_t>(*seed) : RandomBits();
  ReadLogitBias(fields, context.service.model().spec().vocab, &s);
  question->ignore_end = fields.Bool("ignore_eos").value_or(false);
  question->priority = ReadPriority(fields);
  question->cache_salt = ReadCacheSalt(fields);
  fields.Refuse("min_tokens", "give ignore_eos and max_tokens for an answer of a fixed length");
}

std::vector<std::string> ReadStop(JsonFields& fields) {
  constexpr size_t kMost = 16, kBytes = 4096;
  std::vector<std::string> stops;
  const json::value* value = fields.Any("stop");
  if (value == nullptr) return stops;
  const auto add = [&](const json::value& stop) {
    if (!stop.is_string()) return fields.Fail(Malformed("stop must be a string or an array of strings", "stop"));
    stops.emplace_back(stop.get_string());
    if (stops.back().size() <= kBytes) return;
    fields.Fail(Unprocessable(
        fmt::format("a stop string has {} bytes; it may have {} at most", stops.back().size(), kBytes), "stop"));
  };
  if (const json::array* list = value->if_array()) {
    for (const json::value& stop : *list) add(stop);
  } else {
    add(*value);
  }
  if (stops.size() > kMost) {
    fields.Fail(Unprocessable(fmt::format("stop has {} strings; at most {} are taken", stops.size(), kMost), "stop"));
  }
  return stops;
}

void ReadTools(JsonFields& fields) {
  constexpr char kWhy[] = "this server calls no tools";
  for (const char* name : {"tools", "functions"}) {
    const json::value* list = fields.Any(name);
    if (list != nullptr && !(list->is_array() && list->get_array().empty())) fields.Refuse(name, kWhy);
  }
  for (const char* name : {"tool_choice", "function_call"}) {
    const json::value* choice = fields.Any(name);
    if (choice != nullptr && *choice != "none") fields.Refuse(name, kWhy);
  }
  fields.Ignore("parallel_tool_calls");
}

void IgnoreAccounting(JsonFields& fields) {
  if (fields.Bool("store").value_or(false)) fields.Refuse("store", "this server stores no answers");
  for (const char* name : {"user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
                           "prompt_cache_retention", "prediction"}) {
    fields.Ignore(name);
  }
}

StreamFields ReadStreaming(JsonFields& fields) {
  StreamFields out;
  out.stream = fields.Bool("stream").value_or(false);
  const json::object* options = fields.Object("stream_options");
  if (options == nullptr) return out;
  if (!out.stream) fields.Fail(Unprocessable("stream_options needs stream: true", "stream_options"));
  JsonFields inner(*options, "stream_options.");
  out.include_usage = inner.Bool("include_usage").value_or(false);
  inner.Ignore("include_obfuscation");
  if (std::optional<ApiError> error = inner.Finish()) fields.Fail(*std::move(error));
  return out;
}

std::vector<PromptInput> ReadPrompts(JsonFields& fields, std::string_view name, int vocab, int64_t most) {
  std::vector<PromptInput> out;
  const std::string path = fields.Path(name);
  fields.Require(name);
  const json::value* value = fields.Any(name);
  if (value == nullptr) return out;
  if (value->is_string()) {
    out.emplace_back(std::string(value->get_string()));
    return out;
  }
  const json::array* array = value->if_array();
  if (array == nullptr) {
    fields.Fail(Malformed(fmt::format("{} must be a string or an array", path), path));
    return out;
  }
  if (!array->empty() && (*array)[0].is_number()) {
    if (auto ids = ReadIds(fields, path, *array, vocab)) out.emplace_back(*std::move(ids));
    return out;
  }
  if (array->empty() || array->size() > static_cast<size_t>(most)) {
    fields.Fail(Unprocessable(fmt::format("{} has {} texts; it may have 1 to {}", path, array->size(), most), path));
    return out;
  }
  for (size_t i = 0; i < array->size() && !fields.failed(); ++i) {
    const json::value& item = (*array)[i];
    if (item.is_string()) {
      out.emplace_back(std::string(item.get_string()));
    } else if (item.is_array()) {
      if (auto ids = ReadIds(fields, fmt::format("{}[{}]", path, i), item.get_array(), vocab)) {
        out.emplace_back(*std::move(ids));
      }
    } else {
      fields.Fail(Malformed(fmt::format("{}[{}] must be a string or an array of token ids", path, i), path));
    }
  }
  return out;
}

std::optional<ApiError> AddRequests(const Service& service, Question question, int64_t n, std::string param,
                                    std::vector<Request>* requests) {
  StatusOr<Request> request = service.MakeRequest(std::move(question));
  if (!request.ok()) return FromInput(request.status(), std::move(param));
  for (int64_t i = 1; i < n; ++i) {
    requests->push_back(*request);
    ++request->sampling.seed;
  }
  requests->push_back(*std::move(request));
  return std::nullopt;
}

}  // namespace gyre::http
