#include "cli/api_request.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdlib>

#include "cli/exit_code.h"

namespace gyre {
namespace {

namespace json = boost::json;

// The number as a person wrote it: 0.7, not the nearest float's digits.
double Decimal(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

}  // namespace

StatusOr<HttpClientOptions> HttpClientOptionsOf(const std::string& api_key, const std::string& ca_file,
                                                double timeout) {
  HttpClientOptions http{.ca_file = ca_file, .bearer = api_key};
  if (const char* key = std::getenv("OPENAI_API_KEY"); http.bearer.empty() && key != nullptr) http.bearer = key;
  // Other characters could end the header's line.
  if (!std::all_of(http.bearer.begin(), http.bearer.end(), [](char c) { return c > ' ' && c < '\x7F'; })) {
    return UsageError("the API key has a space or a character beyond ASCII");
  }
  http.idle_timeout = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(timeout));
  return http;
}

StatusOr<std::unique_ptr<ApiClient>> OpenApi(const TargetOptions& o) {
  constexpr double kSeconds = 600;  // a long prompt on a slow machine
  ApiOptions api{.url = o.url, .model_id = o.model_id};
  if (const auto url = ParseApiUrl(o.url); !url.ok()) return AsUsage(Annotate(url.status(), "--url"));
  GYRE_ASSIGN_OR_RETURN(api.http, HttpClientOptionsOf(o.api_key, o.ca_file, kSeconds));
  return ApiClient::Open(api, &InterruptGuard::Interrupted);
}

namespace {

// Schemas as OpenAI's API has them, the other forms as vLLM's servers do.
void AddGrammar(const grammar::Source& source, bool compact, json::object* out) {
  using grammar::SourceKind;
  const auto structured = [out](const char* name, json::value value) {
    (*out)["structured_outputs"] = json::object{{name, std::move(value)}};
  };
  boost::system::error_code error;
  json::value parsed = json::parse(source.text, error);
  switch (source.kind) {
    case SourceKind::kJsonObject: (*out)["response_format"] = json::object{{"type", "json_object"}}; break;
    case SourceKind::kJsonSchema:
      if (error) parsed = source.text;  // the server says what is wrong with it
      if (compact) {
        (*out)["structured_outputs"] = json::object{{"json", std::move(parsed)}, {"disable_any_whitespace", true}};
        break;
      }
      (*out)["response_format"] = json::object{
          {"type", "json_schema"}, {"json_schema", json::object{{"name", "answer"}, {"schema", std::move(parsed)}}}};
      break;
    case SourceKind::kRegex: structured("regex", json::string(source.text)); break;
    case SourceKind::kGbnf: structured("grammar", json::string(source.text)); break;
    case SourceKind::kChoices: structured("choice", std::move(parsed)); break;
    case SourceKind::kToolCalls: break;  // the server makes these; no flag names one
  }
}

}  // namespace

StatusOr<json::object> ApiFields(const GenerateOptions& o) {
  const SamplingParams& s = o.sampling;
  auto given = [&o](std::string_view flag) { return std::count(o.given.begin(), o.given.end(), flag) > 0; };
  json::object out;
  if (o.n >= 0) out["max_tokens"] = o.n;
  for (const SamplingOption& option : SamplingOptions()) {
    if (!given(option.flag)) continue;
    if (!option.openai) return UsageError("--{} can't go with --url: the API has no such field", option.flag);
    if (const auto* real = std::get_if<float SamplingParams::*>(&option.field)) {
      out[option.name] = Decimal(s.**real);
    } else {
      out[option.name] = s.*std::get<int SamplingParams::*>(option.field);
    }
  }
  if (o.seed >= 0) out["seed"] = o.seed;
  if (o.ignore_eos) out["ignore_eos"] = true;
  if (!o.stops.empty()) out["stop"] = json::array(o.stops.begin(), o.stops.end());
  if (o.grammar) AddGrammar(*o.grammar, o.compact_json, &out);
  if (o.no_jump_ahead) out["jump_ahead"] = false;
  if (!s.logit_bias.empty()) {
    json::object bias;
    // JSON has no infinity; -100 forbids a token.
    for (const auto& [id, value] : s.logit_bias) bias[std::to_string(id)] = Decimal(std::clamp(value, -100.0f, 100.0f));
    out["logit_bias"] = std::move(bias);
  }
  return out;
}

std::optional<Usage> UsageOf(const ApiEnd& end) {
  if (end.usage.completion_tokens == 0) return std::nullopt;
  return Usage{.prompt_tokens = end.usage.prompt_tokens,
               .cached_tokens = std::min(end.usage.cached_tokens, end.usage.prompt_tokens),
               .generated_tokens = end.usage.completion_tokens,
               .to_first_token = end.to_first_token,
               .total = end.total};
}

}  // namespace gyre
