#include "client/openai.h"

#include <algorithm>
#include <boost/json.hpp>

#include "http_client/error_text.h"
#include "http_client/json_fields.h"

namespace gyre {
namespace {

namespace json = boost::json;

uint32_t Tokens(const json::value& v, const char* key) {
  return static_cast<uint32_t>(std::min<uint64_t>(CountOf(v, key), UINT32_MAX));
}

absl::StatusCode CodeOf(int http) {
  switch (http) {
    case 400:
    case 405:
    case 413:
    case 415:
    case 422: return absl::StatusCode::kInvalidArgument;
    case 401:
    case 403: return absl::StatusCode::kPermissionDenied;
    case 404: return absl::StatusCode::kNotFound;
    case 429: return absl::StatusCode::kResourceExhausted;
    default: return absl::StatusCode::kUnavailable;
  }
}

// The error that a server sent in the place of an answer's next part.
Status EndedBy(const json::value& v, std::string_view data) {
  std::string text = ErrorText(v);
  if (text.empty() && v.is_string()) text = std::string(v.get_string());
  if (text.empty() && !v.is_object()) text = data;
  text = Printable(text);
  const json::value* inner = FieldOf(v, "error");
  const double code = NumberOf(inner != nullptr && inner->is_object() ? *inner : v, "code", 500);
  return MakeStatus(CodeOf(code > 0 && code < 1000 ? static_cast<int>(code) : 500), "the server ended its answer: {}",
                    text.empty() ? "it gave no reason" : text);
}

// A content that is a text, or parts of one.
void TakeContent(const json::value& message, ApiChunk* out) {
  const json::value* content = FieldOf(message, "content");
  if (content == nullptr) return;
  if (!content->is_array()) {
    out->text = TextOf(message, "content");
    return;
  }
  for (const json::value& part : content->get_array()) {
    if (part.is_string()) out->text += std::string_view(part.get_string());
    out->text += TextOf(part, "text");
    // Thoughts are a text, or parts again.
    out->reasoning += TextOf(part, "thinking");
    const json::value* thoughts = FieldOf(part, "thinking");
    if (thoughts == nullptr || !thoughts->is_array()) continue;
    for (const json::value& thought : thoughts->get_array()) out->reasoning += TextOf(thought, "text");
  }
}

void TakeCalls(const json::value& message, ApiChunk* out) {
  const json::value* calls = FieldOf(message, "tool_calls");
  if (calls == nullptr || !calls->is_array()) return;
  for (const json::value& call : calls->get_array()) {
    ApiChunk::CallPart& part = out->calls.emplace_back();
    part.id = TextOf(call, "id");
    if (const json::value* index = FieldOf(call, "index"); index != nullptr && index->is_int64()) {
      part.index = index->get_int64();
    }
    const json::value* function = FieldOf(call, "function");
    if (function == nullptr) continue;
    part.name = TextOf(*function, "name");
    const json::value* arguments = FieldOf(*function, "arguments");
    // Some servers give them as an object.
    if (arguments != nullptr && arguments->is_object()) part.arguments = json::serialize(*arguments);
    if (arguments != nullptr && arguments->is_string()) part.arguments = std::string(arguments->get_string());
  }
}

}  // namespace

Status ApiCalls::Take(const std::vector<ApiChunk::CallPart>& parts) {
  constexpr size_t kMostCalls = 128, kMostBytes = size_t{16} << 20;
  for (const ApiChunk::CallPart& part : parts) {
    bytes_ += part.id.size() + part.name.size() + part.arguments.size();
    if (bytes_ > kMostBytes) return DataLoss("the server's calls of tools are longer than {} bytes", kMostBytes);
    // Without a number a name begins a call.
    const bool next = part.index < 0 ? !part.name.empty() : part.index == static_cast<int64_t>(calls_.size());
    if (next && calls_.size() == kMostCalls) return DataLoss("the server sent more than {} calls of tools", kMostCalls);
    if (next) calls_.emplace_back();
    const size_t at = part.index < 0 ? calls_.size() - 1 : static_cast<size_t>(part.index);
    if (calls_.empty() || at >= calls_.size()) return DataLoss("the server sent a part of a call that never began");
    ApiCall& call = calls_[at];
    if (call.id.empty()) call.id = part.id;
    if (call.name.empty()) call.name = part.name;
    call.arguments += part.arguments;
  }
  return absl::OkStatus();
}

std::vector<ApiCall> ApiCalls::Finish(bool cut) {
  std::erase_if(calls_, [cut](const ApiCall& call) {
    json::error_code error;
    return cut && (!json::parse(call.arguments, error).is_object() || error);
  });
  return std::move(calls_);
}

StatusOr<ApiChunk> ParseApiChunk(std::string_view data, std::string_view event) {
  json::error_code error;
  const json::value v = json::parse(json::string_view(data.data(), data.size()), error);
  const bool says_error = event == "error" || TextOf(v, "object") == "error" || TextOf(v, "type") == "error";
  if (says_error && (error || FieldOf(v, "error") == nullptr)) return EndedBy(v, data);
  if (error || !v.is_object()) {
    return DataLoss("the server sent '{}', expected a JSON object", Printable(std::string(data.substr(0, 100))));
  }
  if (FieldOf(v, "error") != nullptr) return EndedBy(v, data);
  ApiChunk out;
  const json::value* choices = FieldOf(v, "choices");
  if (choices != nullptr && choices->is_array() && !choices->get_array().empty()) {
    const json::value& choice = choices->get_array()[0];
    out.answers = true;
    out.finish_reason = TextOf(choice, "finish_reason");
    const json::value* part = FieldOf(choice, "delta");
    if (part == nullptr) part = FieldOf(choice, "message");
    if (part != nullptr) {
      TakeContent(*part, &out);
      TakeCalls(*part, &out);
      if (out.reasoning.empty()) out.reasoning = TextOf(*part, "reasoning_content");
      if (out.reasoning.empty()) out.reasoning = TextOf(*part, "reasoning");
    } else {
      out.text = TextOf(choice, "text");
    }
    if (const json::value* ids = FieldOf(choice, "token_ids"); ids != nullptr && ids->is_array()) {
      for (const json::value& id : ids->get_array())
        out.ids.push_back(id.is_int64() ? static_cast<TokenId>(id.get_int64()) : 0);
    }
  }
  if (const json::value* usage = FieldOf(v, "usage"); usage != nullptr && usage->is_object()) {
    out.usage = ApiUsage{.prompt_tokens = Tokens(*usage, "prompt_tokens"),
                         .completion_tokens = Tokens(*usage, "completion_tokens")};
    if (const json::value* details = FieldOf(*usage, "prompt_tokens_details")) {
      out.usage->cached_tokens = Tokens(*details, "cached_tokens");
    }
  }
  if (const json::value* timings = FieldOf(v, "timings")) {
    const double ms = NumberOf(*timings, "queue_ms", -1);
    out.queue_seconds = ms < 0 ? -1 : ms / 1000;
  }
  return out;
}

Status ApiError(const Url& url, const HttpResponse& response) {
  const std::string text = ErrorText(response, response.body);
  std::string out = fmt::format("{} answers {} {}", FormatUrl(url), response.code, Printable(response.reason));
  if (!text.empty()) out += ": " + text;
  if (response.code == 401) out += " (a key comes from --api-key, GYRE_API_KEY or OPENAI_API_KEY)";
  if (!response.retry_after.empty()) out += fmt::format(" (try again in {} s)", Printable(response.retry_after));
  return MakeStatus(CodeOf(response.code), "{}", out);
}

StatusOr<Url> ParseApiUrl(const std::string& text) {
  GYRE_ASSIGN_OR_RETURN(Url url, ParseUrl(text));
  if (url.path.empty()) url.path = "/v1";
  return url;
}

StatusOr<std::vector<ApiModel>> FetchModels(HttpClient* client, const std::function<bool()>& interrupted) {
  GYRE_ASSIGN_OR_RETURN(const HttpResponse r, client->Fetch({.target = client->url().path + "/models"}, interrupted));
  if (r.code != 200) return ApiError(client->url(), r);
  json::error_code error;
  const json::value v = json::parse(r.body, error);
  const json::value* data = error ? nullptr : FieldOf(v, "data");
  std::vector<ApiModel> out;
  if (data != nullptr && data->is_array()) {
    for (const json::value& m : data->get_array()) {
      ApiModel model{.id = TextOf(m, "id"), .context = Tokens(m, "max_model_len"), .hash = TextOf(m, "hash")};
      if (const json::value* meta = FieldOf(m, "meta")) {
        model.vocab = static_cast<int>(Tokens(*meta, "n_vocab") & 0x7FFFFFFF);
        if (model.context == 0) model.context = Tokens(*meta, "n_ctx_train");
      }
      if (!model.id.empty()) out.push_back(std::move(model));
    }
  }
  if (out.empty())
    return DataLoss("{}/models lists no models, expected an OpenAI-compatible server", FormatUrl(client->url()));
  return out;
}

}  // namespace gyre
