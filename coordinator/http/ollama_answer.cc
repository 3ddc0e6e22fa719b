#include "coordinator/http/ollama_answer.h"

#include <algorithm>

#include "base/unix_time.h"
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

// A model's name without the tag that ollama gives to names without one.
std::string WithoutLatest(const ApiContext& context, std::string name) {
  constexpr std::string_view kTag = ":latest";
  if (!context.Has(name) && name.ends_with(kTag)) name.resize(name.size() - kTag.size());
  return name;
}

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

json::array ReadOllamaCalls(JsonFields& fields) {
  json::array out;
  const json::array* calls = fields.Array("tool_calls");
  if (calls == nullptr) return out;
  fields.EachObject("tool_calls", *calls, [&out](JsonFields& call) {
    call.Require("function");
    call.Ignore("type");
    const std::string id = call.String("id").value_or("");
    const json::object* function = call.Object("function");
    if (function == nullptr) return;
    JsonFields inner(*function, call.Path("function."));
    inner.Require("name");
    inner.Ignore("index");
    const std::string name = inner.String("name").value_or("");
    const json::object* arguments = inner.Object("arguments");
    if (std::optional<ApiError> error = inner.Finish()) return call.Fail(*std::move(error));
    out.push_back(ToolCall(id, name, arguments == nullptr ? "{}" : WriteJson(*arguments)));
  });
  return out;
}

json::object ReadOllamaMessage(JsonFields& fields) {
  fields.Require("role");
  const std::string role = ReadRole(fields, true);
  const std::string content = fields.String("content").value_or("");
  json::object message = TextMessage(role, content);
  if (role == "tool") {
    message = ToolResult(fields.String("tool_call_id").value_or(""), content);
    const std::string name = fields.String("tool_name").value_or("");
    if (!name.empty()) message["name"] = name;
  } else {
    for (const char* name : {"tool_call_id", "tool_name"}) fields.Refuse(name, "it belongs to a tool's result");
  }
  const std::string thought = fields.String("thinking").value_or("");
  if (!thought.empty()) message["reasoning_content"] = thought;
  if (role == "assistant") {
    json::array calls = ReadOllamaCalls(fields);
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
  } else {
    fields.Refuse("tool_calls", "only an assistant calls tools");
  }
  fields.Refuse("images", "the model reads text only");
  return message;
}

// A result names its tool or its call's id, or neither, and a call need not have an id; templates want all of it. A
// result without an id is that of the first call that has none yet, of its tool if it names one.
void JoinResults(json::array* messages) {
  std::vector<json::object*> open;  // calls without a result
  size_t ids = 0;
  for (json::value& value : *messages) {
    json::object& message = value.as_object();
    if (json::value* calls = message.if_contains("tool_calls")) {
      open.clear();
      for (json::value& call : calls->as_array()) {
        json::value& id = call.as_object()["id"];
        if (id == "") id = fmt::format("call{:05}", ids++);
        open.push_back(&call.as_object());
      }
    }
    if (message.at("role") != "tool") continue;
    const json::value* id = message.if_contains("tool_call_id");
    const json::value* name = message.if_contains("name");
    const auto its = [&](const json::object* call) {
      if (id != nullptr) return call->at("id") == *id;
      return name == nullptr || call->at("function").at("name") == *name;
    };
    const auto call = std::find_if(open.begin(), open.end(), its);
    if (call == open.end()) continue;
    if (id == nullptr) message["tool_call_id"] = (*call)->at("id");
    open.erase(call);
  }
  NameToolResults(messages);
}

// A call in an answer: it comes as a whole.
struct OllamaCall {
  std::string name, arguments;
};

class OllamaAnswer : public OpenAiAnswer {
 public:
  OllamaAnswer(const ApiContext& context, const HttpRequest& request, bool chat)
      : context_(context), id_(AnswerId(request)), tenant_(request.caller.tenant), chat_(chat) {}

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
  // The line with the call that was begun.
  // The call that has begun, whole. REQUIRES: begun_.
  json::object TakeCall();
  json::object CallPart();
  json::object End(const std::string& text, const std::string& thought, const UsageSum& usage) const;

  const ApiContext& context_;
  const std::string id_;
  const uint64_t tenant_;
  const bool chat_;
  std::string model_;
  bool empty_ = false;  // nothing is asked: the client only loads the model
  bool raw_ = false;
  std::vector<TokenId> ids_;  // of prompt and text
  std::optional<OllamaCall> begun_;
  size_t calls_ = 0;
  FinishReason finish_ = FinishReason::kStop;
};

void OllamaAnswer::ReadConversation(JsonFields& fields, ChatInput* chat) {
  const json::array* list = fields.Array("messages");
  empty_ = list == nullptr || list->empty();
  json::array& messages = chat->conversation.messages;
  if (empty_) return;
  fields.EachObject("messages", *list, [&](JsonFields& message) { messages.push_back(ReadOllamaMessage(message)); });
  if (fields.failed()) return;
  JoinResults(&messages);
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
  question->adapter = OllamaAdapter(context_, model_);
  ChatInput chat;
  ReadThink(fields, &chat.conversation.extra);
  if (chat_) {
    ReadConversation(fields, &chat);
    ReadOllamaTools(fields, &tools_);
    tools_.Offer(&chat.conversation);
    question->input = std::move(chat);
  } else {
    ReadPrompt(fields, question, std::move(chat));
  }
  question->tenant = tenant_;
  ReadOptions(fields, context_.service.model(), question);
  streaming_.stream = fields.Bool("stream").value_or(true);
  ReadOllamaFormat(fields, question);
  tools_.Ask(question);
  fields.Refuse("images", "the model reads text only");
  if (!chat_) fields.Refuse("tools", "they belong to a chat");
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

json::object OllamaAnswer::TakeCall() {
  json::object function{{"index", calls_}, {"name", ValidUtf8(begun_->name)}};
  function["arguments"] = CallInput(begun_->arguments.empty() ? "{}" : begun_->arguments);
  begun_.reset();
  return {{"id", CallId("call_", id_, 0, calls_++)}, {"function", std::move(function)}};
}

json::object OllamaAnswer::CallPart() {
  json::object part = Part("", "", false);
  part["message"].as_object()["tool_calls"] = json::array{TakeCall()};
  return part;
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
  json::object end = End(choice.text, choice.reasoning, usage);
  json::array calls;
  const auto take = [&] {
    if (begun_) calls.push_back(TakeCall());
  };
  for (const AnswerDelta& part : choice.parts) {
    if (part.kind == AnswerDelta::Kind::kArguments) begun_->arguments = part.text;
    if (part.kind != AnswerDelta::Kind::kCall) continue;
    take();
    begun_ = OllamaCall{.name = part.text, .arguments = ""};
  }
  take();
  if (!calls.empty()) end["message"].as_object()["tool_calls"] = std::move(calls);
  return WriteJson(end);
}

void OllamaAnswer::AppendDelta(const Delta& delta, std::string* out) {
  using Kind = AnswerDelta::Kind;
  if (delta.id) ids_.push_back(*delta.id);
  if (delta.finish) finish_ = *delta.finish;
  const auto say = [&](const std::string& text, const std::string& thought) {
    if (!text.empty() || !thought.empty()) *out += WriteJson(Part(text, thought, false)) + "\n";
  };
  if (delta.parts.empty()) return say(delta.text, delta.reasoning);
  for (const AnswerDelta& part : delta.parts) {
    switch (part.kind) {
      case Kind::kContent: say(part.text, ""); break;
      case Kind::kReasoning: say("", part.text); break;
      case Kind::kCall: begun_ = OllamaCall{.name = part.text, .arguments = ""}; break;
      case Kind::kArguments: begun_->arguments += part.text; break;
      case Kind::kCallEnd: *out += WriteJson(CallPart()) + "\n"; break;
    }
  }
}

void OllamaAnswer::AppendEnd(const UsageSum& usage, std::string* out) {
  if (begun_) *out += WriteJson(CallPart()) + "\n";
  *out += WriteJson(End("", "", usage)) + "\n";
}

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
  if (std::optional<ApiError> error = CheckModel(context, WithoutLatest(context, asked)))
    fields.Fail(*std::move(error));
  return asked;
}

uint32_t OllamaAdapter(const ApiContext& context, const std::string& name) {
  return context.AdapterOf(WithoutLatest(context, name));
}

std::string OllamaName(const std::string& name) {
  return name.find(':') == std::string::npos ? name + ":latest" : name;
}

}  // namespace gyre::http
