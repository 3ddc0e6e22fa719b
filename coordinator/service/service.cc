#include "coordinator/service/service.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <utility>

#include "base/log.h"
#include "coordinator/service/changing_lines.h"
#include "model/weights.h"

namespace gyre {
namespace {

namespace json = boost::json;

// Bytes of the texts in a value and a few for each value.
size_t BytesOf(const json::value& value) {
  size_t bytes = 2;
  if (const auto* text = value.if_string()) bytes += text->size();
  if (const auto* array = value.if_array()) {
    for (const json::value& v : *array) bytes += BytesOf(v);
  }
  if (const auto* object = value.if_object()) {
    for (const auto& [key, v] : *object) bytes += key.size() + BytesOf(v);
  }
  return bytes;
}

// To a client a prompt of too many bytes is what one of too many tokens is.
Status CheckLength(const char* what, size_t bytes, size_t most) {
  if (bytes <= most) return absl::OkStatus();
  return OutOfRange("{} has {} bytes, a prompt may have {}", what, bytes, most);
}

}  // namespace

SamplingParams DefaultSampling(const Model& model) {
  SamplingParams s;
  for (const SamplingOption& option : SamplingOptions()) {
    const auto advice = model.recommended_sampling().find(option.name);
    if (advice != model.recommended_sampling().end()) SetValue(&s, option, advice->second);
  }
  return s;
}

namespace {

// A request that a process before kept has only the source of its grammar.
EngineCalls WithGrammars(EngineCalls engine, Grammars* grammars) {
  engine.submit = [submit = std::move(engine.submit), grammars](Request r, EventSink sink) -> StatusOr<SeqId> {
    if (r.grammar_source && r.grammar == nullptr) {
      GYRE_ASSIGN_OR_RETURN(r.grammar, grammars->Get(r));
    }
    return submit(std::move(r), std::move(sink));
  };
  return engine;
}

}  // namespace

Service::Service(const Model& model, EngineCalls engine, uint32_t context, const ServiceLimits& limits,
                 StateKeeper* keeper)
    : model_(model),
      context_(context),
      limits_(limits),
      chats_(model),
      grammars_(std::make_unique<Grammars>(model)),
      streams_(WithGrammars(std::move(engine), grammars_.get()), limits.streams, keeper),
      pool_("texts", "texts wait to be tokenized",
            {.threads = limits.work_threads, .queued = limits.queued_work, .bytes = limits.queued_bytes}) {}
Service::~Service() = default;

Status Service::Post(std::function<void()> work, size_t bytes) { return pool_.Post(std::move(work), bytes); }

StatusOr<std::vector<TokenId>> Service::Tokenize(std::string_view text, const EncodeOptions& options) const {
  const Tokenizer* t = model_.tokenizer();
  if (t == nullptr) return FailedPrecondition("{}", model_.tokenizer_note());
  GYRE_RETURN_IF_ERROR(CheckLength("the text", text.size(), limits_.prompt_bytes));
  return t->Encode(text, options);
}

Status Service::CheckIds(std::span<const TokenId> ids) const {
  if (model_.tokenizer() == nullptr) return FailedPrecondition("{}", model_.tokenizer_note());
  const int vocab = model_.spec().vocab;
  for (TokenId id : ids) {
    if (id < 0 || id >= vocab)
      return InvalidArgument("token id {} is out of range, the vocabulary has 0-{}", id, vocab - 1);
  }
  return absl::OkStatus();
}

StatusOr<std::string> Service::Detokenize(const std::vector<TokenId>& ids, bool control_texts) const {
  GYRE_RETURN_IF_ERROR(CheckIds(ids));
  std::string text = model_.tokenizer()->Decode(ids, control_texts, limits_.prompt_bytes);
  if (text.size() <= limits_.prompt_bytes) return text;
  return InvalidArgument("the text of {} ids has more than {} bytes", ids.size(), limits_.prompt_bytes);
}

StatusOr<std::string> Service::TokenBytes(TokenId id, bool control_texts) const {
  GYRE_RETURN_IF_ERROR(CheckIds(std::span(&id, 1)));
  return model_.tokenizer()->Bytes(id, control_texts);
}

Status Service::Prepare(Conversation* conversation) const {
  size_t bytes = BytesOf(conversation->tools);
  for (const json::value& message : conversation->messages) bytes += BytesOf(message);
  for (const auto& [key, value] : conversation->extra) bytes += key.size() + BytesOf(value);
  GYRE_RETURN_IF_ERROR(CheckLength("the conversation", bytes, limits_.prompt_bytes));
  if (!limits_.keep_changing_lines) HoldChangingLines(conversation);
  return absl::OkStatus();
}

StatusOr<ChatPrompt> Service::Prompt(ChatInput chat) const {
  GYRE_RETURN_IF_ERROR(Prepare(&chat.conversation));
  return chats_.Make(chat.format, chat.conversation);
}

StatusOr<std::string> Service::PromptText(ChatInput chat) const {
  GYRE_RETURN_IF_ERROR(Prepare(&chat.conversation));
  return chats_.Text(chat.format, chat.conversation);
}

StatusOr<Conversation> Service::ParseConversation(std::string_view messages, std::string_view tools) const {
  GYRE_RETURN_IF_ERROR(CheckLength("the conversation", messages.size() + tools.size(), limits_.prompt_bytes));
  boost::system::error_code error;
  json::value parsed = json::parse({messages.data(), messages.size()}, error);
  if (error) return InvalidArgument("messages: not JSON ({})", error.message());
  if (!parsed.is_array()) return InvalidArgument("messages: not a JSON array");
  Conversation conversation;
  conversation.messages = std::move(parsed.get_array());
  if (!tools.empty()) conversation.tools = json::parse({tools.data(), tools.size()}, error);
  if (error) return InvalidArgument("tools: not JSON ({})", error.message());
  return conversation;
}

Status Service::ReadPrompt(Question& question, Request* request) const {
  std::vector<TokenId>& ids = request->prompt;
  const char* nothing = "the prompt is empty, at least one token is needed";
  if (auto* given = std::get_if<IdsInput>(&question.input)) {
    ids = std::move(*given);
  } else if (const auto* text = std::get_if<TextInput>(&question.input)) {
    const bool begins = question.before.empty();
    GYRE_ASSIGN_OR_RETURN(ids, Tokenize(text->text, {.add_special = begins, .parse_special = text->parse_special}));
    nothing = "the prompt is empty and the model has no begin-of-text token";
  } else {
    GYRE_ASSIGN_OR_RETURN(ChatPrompt prompt, Prompt(std::move(std::get<ChatInput>(question.input))));
    question.stop_ids.insert(question.stop_ids.end(), prompt.stop_ids.begin(), prompt.stop_ids.end());
    ids = std::move(prompt.ids);
    question.boundaries = question.before.empty() ? std::move(prompt.boundaries) : std::vector<uint32_t>();
    question.answer_format = std::move(prompt.answer);
    nothing = "the conversation is empty";
  }
  if (const Tokenizer* t = model_.tokenizer(); t != nullptr && !question.before.empty()) {
    // A template may begin the text again.
    if (!ids.empty() && ids.front() == t->bos()) ids.erase(ids.begin());
  }
  ids.insert(ids.begin(), question.before.begin(), question.before.end());
  if (ids.empty()) return InvalidArgument("{}", nothing);
  return absl::OkStatus();
}

Status Service::CompileGrammar(Question& question) const {
  const std::optional<grammar::Source>& answer = question.grammar_source;
  // The answer's form holds behind the header of its last message.
  if (question.answer_format.channels && answer && IsJson(*answer) && !question.tool_calls) {
    question.tool_calls.emplace(grammar::ToolCalls{.tools = {}, .required = false, .parallel = false, .answer = {}});
  }
  if (question.tool_calls) {
    question.tool_calls->answer = std::exchange(question.grammar_source, std::nullopt);
    GYRE_ASSIGN_OR_RETURN(question.grammar_source, ToolCallSource(*question.tool_calls, question.answer_format));
    // Its grammar has the messages of an answer, reasoning too.
    if (question.answer_format.channels) question.answer_format = {};
  }
  if (question.answer_format.tools == nullptr) question.one_call.reset();
  if (!question.grammar_source) return absl::OkStatus();
  GYRE_ASSIGN_OR_RETURN(question.grammar, grammars_->Get(question));
  return absl::OkStatus();
}

StatusOr<Request> Service::MakeRequest(Question question) const {
  GYRE_RETURN_IF_ERROR(CheckSettings(question, limits_.requests, model_.spec().vocab));
  if (model_.spec().encoder && !question.embedding) return InvalidArgument("{}", kEncoderMakesNoText);
  const bool chat = std::holds_alternative<ChatInput>(question.input);
  Request request;
  GYRE_RETURN_IF_ERROR(ReadPrompt(question, &request));
  GYRE_RETURN_IF_ERROR(CompileGrammar(question));
  if (request.prompt.size() > context_) {
    return OutOfRange("the {} has {} tokens, the context holds {}", chat ? "conversation" : "prompt",
                      request.prompt.size(), context_);
  }
  const auto room = static_cast<uint32_t>(context_ - request.prompt.size());
  const bool generates = !question.prompt_logits && !question.embedding && !question.score;
  const uint32_t unasked = limits_.unasked_tokens > 0 ? limits_.unasked_tokens : room;
  request.max_new_tokens = generates ? question.max_new_tokens.value_or(unasked) : 0;
  for (const TokenId id : question.generated) request.generated.push_back({.token = id});
  if (generates && !question.prediction.empty()) {
    GYRE_ASSIGN_OR_RETURN(request.prediction, Tokenize(question.prediction, {.add_special = false}));
  } else if (generates) {
    request.prediction = std::move(question.predicted);
  }
  // No answer is longer than the context, and each choice keeps a table of the tokens.
  if (request.prediction.size() > context_) request.prediction.resize(context_);
  static_cast<RequestSettings&>(request) = std::move(question);
  return request;
}

StatusOr<std::unique_ptr<EventStream>> Service::Submit(Request request, StreamOptions options) {
  return streams_.Submit(std::move(request), std::move(options));
}

StatusOr<std::unique_ptr<EventStream>> Service::Reattach(const std::string& id, uint64_t tenant,
                                                         StreamOptions options) {
  return streams_.Reattach(id, tenant, std::move(options));
}

Status Service::Run(Request request, const std::function<void(const Event&)>& on_event,
                    const std::function<bool()>& cancelled) {
  GYRE_ASSIGN_OR_RETURN(const auto stream, Submit(std::move(request), {.may_stall = true}));
  bool asked = false;
  for (;;) {
    const std::optional<Event> event = stream->Next(After(std::chrono::milliseconds(50)));
    if (event) {
      on_event(*event);
      if (const auto* failed = std::get_if<Failed>(&*event)) return failed->status;
      if (std::holds_alternative<Finished>(*event) || std::holds_alternative<Cancelled>(*event)) {
        return absl::OkStatus();
      }
    }
    if (!asked && cancelled && cancelled()) {
      stream->Cancel();
      asked = true;
    }
  }
}

}  // namespace gyre
