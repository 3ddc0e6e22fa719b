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

uint32_t ReadAdapter(JsonFields& fields, const ApiContext& context, std::string_view model) {
  const json::value* lora = fields.Any("lora");
  if (lora == nullptr || lora->is_null()) return context.AdapterOf(model);
  const std::string path = fields.Path("lora");
  if (const json::string* name = lora->if_string()) {
    const uint32_t adapter = context.AdapterOf({name->data(), name->size()});
    if (adapter == 0) fields.Fail(BadRequest(fmt::format("{}: there is no adapter of this name", path), path));
    return adapter;
  }
  const json::array* list = lora->if_array();
  if (list != nullptr && list->empty()) return context.AdapterOf(model);
  uint32_t chosen = 0;
  bool known = list != nullptr;
  for (const json::value& item : known ? *list : json::array()) {
    const json::object* o = item.if_object();
    const json::value *id = o == nullptr ? nullptr : o->if_contains("id"),
                      *scale = o == nullptr ? nullptr : o->if_contains("scale");
    const int64_t number = id != nullptr && id->is_int64() ? id->get_int64() : -1;
    const double by = scale != nullptr && scale->is_number() ? scale->to_number<double>() : 1;
    const size_t keys = (id != nullptr ? 1 : 0) + (scale != nullptr ? 1 : 0);
    known = known && o != nullptr && o->size() == keys && (scale == nullptr || scale->is_number());
    known = known && number >= 0 && number < static_cast<int64_t>(context.service.model().adapters().size());
    if (by == 0 || !known) continue;
    known = by == 1 && chosen == 0;
    chosen = static_cast<uint32_t>(number + 1);
  }
  if (known) return chosen;
  fields.Fail(
      BadRequest(fmt::format("{} must be the name of an adapter, or a list of {{\"id\", \"scale\"}} of which one "
                             "has scale 1 and the others 0",
                             path),
                 path));
  return 0;
}

int ReadPriority(JsonFields& fields) { return static_cast<int>(fields.Integer("priority", -100, 100).value_or(0)); }

uint64_t ReadCacheSalt(JsonFields& fields) {
  const std::optional<std::string> text = fields.String("cache_salt");
  if (!text) return 0;
  // The key is not known outside, so that nobody can make a text with the same salt as another's.
  static const uint64_t key = RandomSeed();
  return XXH3_64bits_withSeed(text->data(), text->size(), key);
}

void ReadSampling(JsonFields& fields, const ApiContext& context, std::string_view name, Question* question) {
  const Model& model = context.service.model();
  question->adapter = ReadAdapter(fields, context, name);
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
