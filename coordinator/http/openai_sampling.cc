#include "coordinator/http/openai_sampling.h"

#include <xxhash.h>

#include <algorithm>

#include "coordinator/http/answer_parts.h"
#include "coordinator/http/grammar_fields.h"
#include "coordinator/http/sampling_fields.h"
#include "coordinator/http/speculation_fields.h"
#include "fmt/core.h"
#include "model/weights.h"

namespace gyre::http {
namespace json = boost::json;

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
  static const uint64_t key = RandomSeed();
  return XXH3_64bits_withSeed(text->data(), text->size(), key);
}

void ReadSampling(JsonFields& fields, const ApiContext& context, Question* question) {
  const Model& model = context.service.model();
  ReadSamplersAndSeed(fields, model, &question->sampling);
  ReadLogitBias(fields, model.spec().vocab, 100, &question->sampling);
  ReadEnds(fields, model.spec().vocab, question);
  question->priority = ReadPriority(fields);
  question->cache_salt = ReadCacheSalt(fields);
  ReadOtherServersFields(fields);
  ReadGrammars(fields, question);
  ReadSpeculation(fields, question);
  ReadPrediction(fields, question);
}

void IgnoreAccounting(JsonFields& fields, bool stores) {
  if (!stores && fields.Bool("store").value_or(false)) fields.RefuseAny("store", "this server stores no answers");
  for (const char* name :
       {"user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}) {
    fields.Ignore(name);
  }
}

StreamFields ReadStreaming(JsonFields& fields) {
  StreamFields out;
  out.stream = fields.Bool("stream").value_or(false);
  out.progress = fields.Bool("return_progress").value_or(false) && out.stream;
  const json::object* options = fields.Object("stream_options");
  if (options == nullptr) return out;
  JsonFields inner(*options, "stream_options.");
  out.include_usage = inner.Bool("include_usage").value_or(false);
  if (out.include_usage && !out.stream) fields.Fail(BadRequest("stream_options needs stream: true", "stream_options"));
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
    fields.Fail(BadRequest(fmt::format("{} must be a string or an array", path), path));
    return out;
  }
  if (!array->empty() && (*array)[0].is_number()) {
    out.emplace_back(ReadIds(fields, path, *array, vocab));
    return out;
  }
  if (array->empty() || array->size() > static_cast<size_t>(most)) {
    fields.Fail(BadRequest(fmt::format("{} has {} texts; it may have 1 to {}", path, array->size(), most), path));
    return out;
  }
  for (size_t i = 0; i < array->size() && !fields.failed(); ++i) {
    const json::value& item = (*array)[i];
    if (item.is_string()) {
      out.emplace_back(std::string(item.get_string()));
    } else if (item.is_array()) {
      out.emplace_back(ReadIds(fields, fmt::format("{}[{}]", path, i), item.get_array(), vocab));
    } else {
      fields.Fail(BadRequest(fmt::format("{}[{}] must be a string or an array of token ids", path, i), path));
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
