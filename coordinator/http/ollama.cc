#include "coordinator/http/ollama.h"

#include <algorithm>

#include "base/unix_time.h"
#include "coordinator/http/answer_parts.h"
#include "coordinator/http/embeddings_job.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/ollama_answer.h"
#include "coordinator/http/openai_sampling.h"
#include "fmt/format.h"
#include "model/tensor_table.h"
#include "model/weights.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

// The version of ollama's API that these routes follow: its clients ask for it before they use a feature.
constexpr char kApiVersion[] = "0.12.6";

// As 8.0B.
std::string ParameterSize(uint64_t n) {
  const auto in = [&](double unit, char letter) {
    return fmt::format("{:.1f}{}", static_cast<double>(n) / unit, letter);
  };
  if (n >= 1000000000) return in(1e9, 'B');
  return n >= 1000000 ? in(1e6, 'M') : in(1e3, 'K');
}

json::object Details(const Model& model) {
  const std::string& family = model.spec().architecture;
  json::object out;
  out["parent_model"] = "";
  out["format"] = model.path().ends_with(".gguf") ? "gguf" : model.path().ends_with(".bin") ? "bin" : "safetensors";
  out["family"] = family;
  out["families"] = json::array({json::value(family)});
  out["parameter_size"] = ParameterSize(model.tensors().Parameters());
  out["quantization_level"] = model.tensors().MainType();
  return out;
}

std::string OpenedAt(const ApiContext& context) {
  return UtcText(std::chrono::system_clock::time_point(std::chrono::seconds(context.created)), 6);
}

// The model as lists have it, with the first of its names.
json::object Listed(const ApiContext& context) {
  const Model& model = context.service.model();
  const std::string name = OllamaName(context.models.front());
  json::object out;
  out["name"] = name;
  out["model"] = name;
  out["modified_at"] = OpenedAt(context);
  out["size"] = model.file_bytes();
  out["digest"] = context.model_hash();
  out["details"] = Details(model);
  return out;
}

Awaitable<void> Tags(const ApiContext& context, Exchange& exchange) {
  json::object model = Listed(context);
  json::array models;
  for (const std::string& name : context.models) {
    model["name"] = OllamaName(name);
    model["model"] = OllamaName(name);
    models.push_back(model);
  }
  for (const auto& adapter : context.service.model().adapters()) {
    model["name"] = OllamaName(adapter->name());
    model["model"] = OllamaName(adapter->name());
    models.push_back(model);
  }
  json::object out{{"models", std::move(models)}};
  co_await RespondJson(exchange, std::move(out));
}

// The one model is always loaded.
Awaitable<void> Running(const ApiContext& context, Exchange& exchange) {
  json::object model = Listed(context);
  model["expires_at"] = "2318-01-01T00:00:00Z";
  model["size_vram"] = 0;
  model["context_length"] = context.service.context();
  json::object out{{"models", json::array({std::move(model)})}};
  co_await RespondJson(exchange, std::move(out));
}

Awaitable<void> Version(const ApiContext& context, Exchange& exchange) {
  json::object out{{"version", kApiVersion}, {"gyre", context.version}};
  co_await RespondJson(exchange, std::move(out));
}

json::object Shown(const ApiContext& context) {
  const Model& model = context.service.model();
  const ModelSpec& spec = model.spec();
  const SamplingParams s = DefaultSampling(model);
  json::object info;
  info["general.architecture"] = spec.architecture;
  info["general.parameter_count"] = model.tensors().Parameters();
  info[spec.architecture + ".context_length"] = spec.context;
  info[spec.architecture + ".embedding_length"] = spec.dim;
  info[spec.architecture + ".block_count"] = spec.layers.size();
  info[spec.architecture + ".vocab_size"] = spec.vocab;
  json::array capabilities{"completion"};
  const ChatAbilities abilities = AbilitiesOf(context);
  if (abilities.tools) capabilities.push_back("tools");
  if (abilities.thinking) capabilities.push_back("thinking");
  json::object out;
  out["license"] = "";
  out["modelfile"] = "";
  std::string parameters;
  for (const SamplingOption& option : SamplingOptions()) {
    parameters += std::visit([&](auto field) { return fmt::format("{} {}\n", option.llama, s.*field); }, option.field);
  }
  out["parameters"] = parameters + fmt::format("num_ctx {}", context.service.context());
  out["template"] = ChatTemplateSource(context);
  out["details"] = Details(model);
  out["model_info"] = std::move(info);
  out["capabilities"] = std::move(capabilities);
  out["modified_at"] = OpenedAt(context);
  return out;
}

Awaitable<void> Show(const ApiContext& context, Exchange& exchange) {
  json::object body;
  std::optional<ApiError> error = ParseBody(exchange.request().body, &body);
  if (!error) {
    // Older clients say `name`.
    const json::value* name = body.if_contains("name");
    if (name != nullptr && body.if_contains("model") == nullptr) body["model"] = json::value(*name);
    JsonFields fields(body);
    ReadOllamaModel(fields, context);
    for (const char* field : {"name", "verbose", "system", "template", "options"}) fields.Ignore(field);
    error = fields.Finish();
  }
  if (error) {
    co_await RespondError(exchange, *std::move(error));
    co_return;
  }
  json::object out = Shown(context);
  co_await RespondJson(exchange, std::move(out));
}

// Adds the request for one text's vector; a text that is too long is cut, unless the client wants an error.
std::optional<ApiError> AddText(const ApiContext& context, const Question& question, const std::string& text, bool cut,
                                EmbeddingsJob* job) {
  Question one = question;
  if (cut) {
    StatusOr<std::vector<TokenId>> ids = context.service.Tokenize(text, {.add_special = true});
    if (!ids.ok()) return FromInput(ids.status(), "input");
    ids->resize(std::min<size_t>(ids->size(), context.service.context()));
    one.input = *std::move(ids);
  } else {
    one.input = TextInput{.text = text};
  }
  return AddRequests(context.service, std::move(one), 1, "input", &job->requests);
}

// /api/embeddings, which has one text, or /api/embed.
template <bool single>
std::optional<ApiError> ReadEmbed(const ApiContext& context, const HttpRequest& http, EmbeddingsJob* job) {
  json::object object;
  if (std::optional<ApiError> error = ParseBody(http.body, &object)) return error;
  JsonFields fields(object);
  job->model = ReadOllamaModel(fields, context);
  const ModelSpec& spec = context.service.model().spec();
  std::vector<std::string> texts;
  const char* const field = single ? "prompt" : "input";
  const auto add = [&](const json::value& text) {
    if (text.is_string()) {
      texts.emplace_back(View(text.get_string()));
    } else {
      fields.Fail(BadRequest(fmt::format("{} must be a string{}", field, single ? "" : " or strings"), field));
    }
  };
  const json::value* input = fields.Any(field);
  if (const json::array* list = input == nullptr || single ? nullptr : input->if_array()) {
    for (const json::value& text : *list) add(text);
    if (list->size() > kMaxEmbeddings) {
      fields.Fail(BadRequest(fmt::format("input has {} texts; it may have {}", list->size(), kMaxEmbeddings), "input"));
    }
  } else if (input != nullptr) {
    add(*input);
  }
  const bool cut = fields.Bool("truncate").value_or(true);
  job->dimensions = static_cast<size_t>(fields.Integer("dimensions", 0, spec.dim).value_or(0));
  if (job->dimensions == 0) job->dimensions = static_cast<size_t>(spec.dim);
  for (const char* name : {"options", "keep_alive"}) fields.Ignore(name);
  if (std::optional<ApiError> error = fields.Finish()) return error;
  Question question;
  question.embedding = spec.pooling.value_or(Pooling::kMean);
  question.adapter = OllamaAdapter(context, job->model);
  question.tenant = http.caller.tenant;
  for (const std::string& text : texts) {
    if (text.empty() && texts.size() == 1) break;  // the client only loads the model
    if (std::optional<ApiError> error = AddText(context, question, text, cut, job)) return error;
  }
  return std::nullopt;
}

json::array Values(const std::vector<float>& vector) {
  json::array out;
  for (const float value : vector) out.push_back(DecimalOf(value));
  return out;
}

std::string WriteEmbed(const EmbeddingsJob& job) {
  json::array vectors;
  for (const std::vector<float>& vector : job.vectors) vectors.push_back(Values(vector));
  json::object out;
  out["model"] = job.model;
  out["embeddings"] = std::move(vectors);
  out["total_duration"] = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - job.begun).count();
  out["load_duration"] = 0;
  out["prompt_eval_count"] = job.tokens;
  return WriteJson(out);
}

std::string WriteOneEmbedding(const EmbeddingsJob& job) {
  return WriteJson(json::object{{"embedding", job.vectors.empty() ? json::array() : Values(job.vectors.front())}});
}

Awaitable<void> Embed(const ApiContext& context, Exchange& exchange) {
  return RunEmbeddings(context, exchange, ReadEmbed<false>, WriteEmbed);
}
Awaitable<void> EmbedOne(const ApiContext& context, Exchange& exchange) {
  return RunEmbeddings(context, exchange, ReadEmbed<true>, WriteOneEmbedding);
}

}  // namespace

void AddOllamaRoutes(Router& router, ApiContext& context) {
  const auto add = [&](const char* method, const char* path, Awaitable<void> (*handler)(const ApiContext&, Exchange&)) {
    router.Add(
        {.method = method, .path = path, .role = Role::kUser, .handler = [&context, handler](Exchange& exchange) {
           return handler(context, exchange);
         }});
  };
  add("POST", "/api/chat", &OllamaChat);
  add("POST", "/api/generate", &OllamaGenerate);
  add("POST", "/api/show", &Show);
  add("POST", "/api/embed", &Embed);
  add("POST", "/api/embeddings", &EmbedOne);
  add("GET", "/api/tags", &Tags);
  add("GET", "/api/ps", &Running);
  add("GET", "/api/version", &Version);
}

}  // namespace gyre::http
