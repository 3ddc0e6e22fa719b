#include "coordinator/http/ollama_answer.h"

#include "base/unix_time.h"
#include "coordinator/http/changing_lines.h"
#include "coordinator/http/grammar_fields.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/openai_answer.h"
#include "coordinator/http/openai_messages.h"
#include "coordinator/http/sampling_fields.h"
#include "fmt/format.h"
#include "model/weights.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

int64_t Nanoseconds(Duration d) { return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count(); }

// The settings that have an effect here.
void ReadOptions(JsonFields& fields, const Model& model, Question* question) {
  SamplingParams& s = question->sampling;
  s = DefaultSampling(model);
  s.seed = RandomSeed();
  const json::object* options = fields.Object("options");
  if (options == nullptr) return;
  JsonFields inner(*options, "options.");
  ReadSamplers(inner, &s);
  if (const auto seed = inner.Integer("seed", INT64_MIN, INT64_MAX); seed && *seed >= 0) {
    s.seed = static_cast<uint64_t>(*seed);
  }
  ReadStops(inner, "stop", question);
  // -1 and -2 mean what the context leaves.
  ReadMostTokens(inner, "num_predict", -2, question);
  ReadOtherServersFields(inner);
  // The model is loaded already, in its own way.
  for (const char* name : {"num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_gqa", "numa",
                           "low_vram", "f16_kv", "vocab_only", "use_mmap", "use_mlock", "logits_all", "embedding_only",
                           "rope_frequency_base", "rope_frequency_scale", "draft_num_predict"}) {
    inner.Ignore(name);
  }
  if (std::optional<ApiError> error = inner.Finish()) fields.Fail(*std::move(error));
}

// Reads `think`: whether the model thinks before it answers, or how much it thinks.
void ReadThink(JsonFields& fields, json::object* extra) {
  const json::value* think = fields.Any("think");
  if (think == nullptr) return;
  if (think->is_bool()) {
    (*extra)["enable_thinking"] = think->get_bool();
  } else if (think->is_string()) {
    if (!think->get_string().empty()) (*extra)["reasoning_effort"] = *think;
  } else {
    fields.Fail(BadRequest("think must be true, false or a text", "think"));
  }
}

json::object ReadOllamaMessage(JsonFields& fields) {
  fields.Require("role");
  const std::string role = ReadRole(fields);
  json::object message = TextMessage(role, fields.String("content").value_or(""));
  const std::string thought = fields.String("thinking").value_or("");
  if (!thought.empty()) message["reasoning_content"] = thought;
  fields.Refuse("images", "the model reads text only");
  for (const char* name : {"tool_calls", "tool_name", "tool_call_id"}) {
    fields.Refuse(name, "this server calls no tools");
  }
  return message;
}

class OllamaAnswer : public OpenAiAnswer {
 public:
  OllamaAnswer(const ApiContext& context, const HttpRequest& request, bool chat)
      : context_(context), tenant_(request.caller.tenant), chat_(chat) {}

  std::string Whole(const std::vector<Choice>& choices, const UsageSum& usage) override;
  void AppendBegin(std::string*) override {}
  void AppendDelta(const Delta& delta, std::string* out) override;
  void AppendEnd(const UsageSum& usage, std::string* out) override;
  void AppendError(const ApiError& error, std::string* out) override {
    *out += RenderJson(error, ApiStyle::kOllama) + "\n";
  }
  // A part without text is the only sign of life that such a stream has.
  void AppendPing(std::string* out) override { *out += WriteJson(Part("", "", false)) + "\n"; }
  bool json_lines() const override { return true; }

 private:
  void ReadFields(JsonFields& fields, Question* question) override;
  std::optional<ApiError> Prepare(Question question) override;
  void ReadConversation(JsonFields& fields, ChatInput* chat);
  void ReadPrompt(JsonFields& fields, Question* question, ChatInput chat);
  json::object Part(const std::string& text, const std::string& thought, bool done) const;
  json::object End(const std::string& text, const std::string& thought, const UsageSum& usage) const;

  const ApiContext& context_;
  const uint64_t tenant_;
  const bool chat_;
  std::string model_;
  bool empty_ = false;  // nothing is asked: the client only loads the model
  bool raw_ = false;
  std::vector<TokenId> ids_;  // of prompt and text
  FinishReason finish_ = FinishReason::kStop;
};

void OllamaAnswer::ReadConversation(JsonFields& fields, ChatInput* chat) {
  const json::array* list = fields.Array("messages");
  empty_ = list == nullptr || list->empty();
  json::array& messages = chat->conversation.messages;
  if (empty_) return;
  fields.EachObject("messages", *list, [&](JsonFields& message) { messages.push_back(ReadOllamaMessage(message)); });
  // The model continues an answer that the conversation ends with.
  chat->conversation.continue_final = !messages.empty() && messages.back().at("role") == "assistant";
}

void OllamaAnswer::ReadPrompt(JsonFields& fields, Question* question, ChatInput chat) {
  const std::string prompt = fields.String("prompt").value_or("");
  const std::string system = fields.String("system").value_or("");
  empty_ = prompt.empty();
  raw_ = fields.Bool("raw").value_or(false);
  fields.Refuse("template", "the model's own template is taken; raw takes the prompt as it is");
  fields.Refuse("suffix", "the model continues a text, it fills no gaps");
  if (const json::array* ids = fields.Array("context")) {
    question->before = ReadIds(fields, "context", *ids, context_.service.model().spec().vocab);
  }
  if (raw_) {
    question->input = TextInput{.text = prompt, .parse_special = true};
    return;
  }
  if (!system.empty()) chat.conversation.messages.push_back(TextMessage("system", system));
  chat.conversation.messages.push_back(TextMessage("user", prompt));
  question->input = std::move(chat);
}

void OllamaAnswer::ReadFields(JsonFields& fields, Question* question) {
  model_ = ReadOllamaModel(fields, context_);
  ChatInput chat;
  ReadThink(fields, &chat.conversation.extra);
  if (chat_) {
    ReadConversation(fields, &chat);
    if (context_.hold_lines) HoldChangingLines(&chat.conversation);
    question->input = std::move(chat);
  } else {
    ReadPrompt(fields, question, std::move(chat));
  }
  question->tenant = tenant_;
  ReadOptions(fields, context_.service.model(), question);
  streaming_.stream = fields.Bool("stream").value_or(true);
  ReadOllamaFormat(fields, question);
  fields.Refuse("images", "the model reads text only");
  fields.Refuse("tools", "this server calls no tools");
  fields.Refuse("logprobs", "this API's answers have none here; those of /v1/chat/completions do");
  fields.Ignore("top_logprobs");
  for (const char* name : {"keep_alive", "truncate", "shift"}) fields.Ignore(name);
}

std::optional<ApiError> OllamaAnswer::Prepare(Question question) {
  if (empty_) {
    streaming_.stream = false;
    return std::nullopt;
  }
  if (auto error = AddRequests(context_.service, std::move(question), 1, "prompt", &requests_)) return error;
  ids_ = requests_.front().prompt;
  if (!raw_) PartRequests(context_);
  return std::nullopt;
}

json::object OllamaAnswer::Part(const std::string& text, const std::string& thought, bool done) const {
  json::object out;
  out["model"] = model_;
  out["created_at"] = UtcText(std::chrono::system_clock::now(), 6);
  if (chat_) {
    json::object message = TextMessage("assistant", text);
    if (!thought.empty()) message["thinking"] = thought;
    out["message"] = std::move(message);
  } else {
    out["response"] = text;
    if (!thought.empty()) out["thinking"] = thought;
  }
  out["done"] = done;
  return out;
}

json::object OllamaAnswer::End(const std::string& text, const std::string& thought, const UsageSum& usage) const {
  json::object out = Part(text, thought, true);
  out["done_reason"] = empty_ ? "load" : finish_ == FinishReason::kStop ? "stop" : "length";
  if (empty_) return out;
  if (!chat_ && !raw_) out["context"] = json::array(ids_.begin(), ids_.end());
  out["total_duration"] = Nanoseconds(usage.total);
  out["load_duration"] = 0;
  out["prompt_eval_count"] = usage.prompt;
  out["prompt_eval_duration"] = Nanoseconds(usage.to_first_token);
  out["eval_count"] = usage.completion;
  out["eval_duration"] = Nanoseconds(usage.total - usage.to_first_token);
  return out;
}

std::string OllamaAnswer::Whole(const std::vector<Choice>& choices, const UsageSum& usage) {
  if (choices.empty()) return WriteJson(End("", "", usage));
  const Choice& choice = choices.front();
  finish_ = choice.finish;
  ids_.insert(ids_.end(), choice.ids.begin(), choice.ids.end());
  return WriteJson(End(choice.text, choice.reasoning, usage));
}

void OllamaAnswer::AppendDelta(const Delta& delta, std::string* out) {
  if (delta.id) ids_.push_back(*delta.id);
  if (delta.finish) finish_ = *delta.finish;
  if (delta.text.empty() && delta.reasoning.empty()) return;
  *out += WriteJson(Part(delta.text, delta.reasoning, false)) + "\n";
}

void OllamaAnswer::AppendEnd(const UsageSum& usage, std::string* out) { *out += WriteJson(End("", "", usage)) + "\n"; }

}  // namespace

Awaitable<void> OllamaChat(const ApiContext& context, Exchange& exchange) {
  auto answer = std::make_unique<OllamaAnswer>(context, exchange.request(), true);
  return RunAnswer(context, exchange, std::move(answer));
}

Awaitable<void> OllamaGenerate(const ApiContext& context, Exchange& exchange) {
  auto answer = std::make_unique<OllamaAnswer>(context, exchange.request(), false);
  return RunAnswer(context, exchange, std::move(answer));
}

std::string ReadOllamaModel(JsonFields& fields, const ApiContext& context) {
  fields.Require("model");
  const std::string asked = fields.String("model").value_or("");
  if (fields.failed()) return asked;
  constexpr std::string_view kTag = ":latest";
  std::string name = asked;
  if (!context.Has(name) && name.ends_with(kTag)) name.resize(name.size() - kTag.size());
  if (std::optional<ApiError> error = CheckModel(context, name)) fields.Fail(*std::move(error));
  return asked;
}

std::string OllamaName(const std::string& name) {
  return name.find(':') == std::string::npos ? name + ":latest" : name;
}

}  // namespace gyre::http
