#include "coordinator/service.h"

#include <pthread.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <deque>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "model/weights.h"

namespace gyre {
namespace {

namespace json = boost::json;

// Bytes of the texts in a value and a few for each value, as far as `limit`.
size_t BytesOf(const json::value& value, size_t limit) {
  size_t bytes = 2;
  if (const auto* text = value.if_string()) bytes += text->size();
  if (const auto* array = value.if_array()) {
    for (const json::value& v : *array) {
      if (bytes > limit) break;
      bytes += BytesOf(v, limit - bytes);
    }
  }
  if (const auto* object = value.if_object()) {
    for (const auto& [key, v] : *object) {
      if (bytes > limit) break;
      bytes += key.size() + BytesOf(v, limit - std::min(limit, bytes));
    }
  }
  return bytes;
}

Status CheckLength(const char* what, size_t bytes, size_t most) {
  if (bytes <= most) return absl::OkStatus();
  return InvalidArgument("{}: {} bytes, at most {} fit", what, bytes, most);
}

}  // namespace

// A few threads and a bounded queue of work for them.
class Service::Pool {
 public:
  explicit Pool(const ServiceLimits& limits) : most_(limits.queued_work), most_bytes_(limits.queued_bytes) {
    for (int i = 0; i < limits.work_threads; ++i) threads_.emplace_back([this] { Loop(); });
  }
  // Waiting work is still done, as somebody waits for its answer.
  ~Pool() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      changed_.SignalAll();
    }
    for (std::thread& t : threads_) t.join();
  }
  Status Post(std::function<void()> work, size_t bytes) {
    MutexLock lock(&mutex_);
    if (queue_.size() >= most_ || bytes > most_bytes_ - bytes_) {
      return ResourceExhausted("{} texts wait to be tokenized, at most {} of {} bytes together may; try again later",
                               queue_.size(), most_, most_bytes_);
    }
    queue_.push_back({std::move(work), bytes});
    bytes_ += bytes;
    changed_.Signal();
    return absl::OkStatus();
  }

 private:
  void Loop() {
    pthread_setname_np(pthread_self(), "texts");
    for (;;) {
      std::function<void()> work;
      {
        MutexLock lock(&mutex_);
        while (queue_.empty() && !stopping_) changed_.Wait(&mutex_);
        if (queue_.empty()) return;
        work = std::move(queue_.front().first);
        bytes_ -= queue_.front().second;
        queue_.pop_front();
      }
      try {
        work();
      } catch (const std::exception& e) {
        Log(LogLevel::kError, "a text: {}", e.what());
      }
    }
  }

  const size_t most_, most_bytes_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::pair<std::function<void()>, size_t>> queue_ GYRE_GUARDED_BY(mutex_);  // with its bytes
  size_t bytes_ GYRE_GUARDED_BY(mutex_) = 0;
  bool stopping_ GYRE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

Service::Service(const Model& model, EngineCalls engine, uint32_t context, const ServiceLimits& limits,
                 StateKeeper* keeper)
    : model_(model),
      context_(context),
      limits_(limits),
      streams_(std::move(engine), limits.streams, keeper),
      pool_(std::make_unique<Pool>(limits)) {}
Service::~Service() = default;

Status Service::Post(std::function<void()> work, size_t bytes) { return pool_->Post(std::move(work), bytes); }

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

StatusOr<ChatPrompt> Service::Prompt(const ChatInput& chat) const {
  const Conversation& c = chat.conversation;
  size_t bytes = BytesOf(c.tools, limits_.prompt_bytes);
  for (const json::value& message : c.messages) bytes += BytesOf(message, limits_.prompt_bytes);
  for (const auto& [key, value] : c.extra) bytes += key.size() + BytesOf(value, limits_.prompt_bytes);
  GYRE_RETURN_IF_ERROR(CheckLength("the conversation", bytes, limits_.prompt_bytes));
  return MakeChatPrompt(model_, chat.format, c);
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

StatusOr<std::vector<TokenId>> Service::PromptIds(Question& question) const {
  if (auto* ids = std::get_if<IdsInput>(&question.input)) {
    if (ids->empty()) return InvalidArgument("the prompt is empty, at least one token is needed");
    return std::move(*ids);
  }
  if (const auto* text = std::get_if<TextInput>(&question.input)) {
    GYRE_ASSIGN_OR_RETURN(auto ids, Tokenize(text->text, {.add_special = true, .parse_special = text->parse_special}));
    if (ids.empty()) return InvalidArgument("the prompt is empty and the model has no begin-of-text token");
    return ids;
  }
  GYRE_ASSIGN_OR_RETURN(ChatPrompt prompt, Prompt(std::get<ChatInput>(question.input)));
  if (prompt.ids.empty()) return InvalidArgument("the conversation is empty");
  question.stop_ids.insert(question.stop_ids.end(), prompt.stop_ids.begin(), prompt.stop_ids.end());
  return std::move(prompt.ids);
}

Status Service::CheckSettings(const Question& q) const {
  if (q.stops.size() > limits_.stops) {
    return InvalidArgument("{} stop strings, at most {} are taken", q.stops.size(), limits_.stops);
  }
  for (const std::string& stop : q.stops)
    GYRE_RETURN_IF_ERROR(CheckLength("a stop string", stop.size(), limits_.stop_bytes));
  if (q.stop_ids.size() > limits_.stop_ids) {
    return InvalidArgument("{} stop ids, at most {} are taken", q.stop_ids.size(), limits_.stop_ids);
  }
  return q.sampling.Validate(model_.spec().vocab);
}

StatusOr<Request> Service::MakeRequest(Question question) const {
  GYRE_RETURN_IF_ERROR(CheckSettings(question));
  const bool chat = std::holds_alternative<ChatInput>(question.input);
  Request request;
  GYRE_ASSIGN_OR_RETURN(request.prompt, PromptIds(question));
  if (request.prompt.size() > context_) {
    return OutOfRange("the {} has {} tokens, the context holds {}", chat ? "conversation" : "prompt",
                      request.prompt.size(), context_);
  }
  // The last token needs no position of its own.
  const auto room = static_cast<uint32_t>(context_ - request.prompt.size() + 1);
  request.sampling = std::move(question.sampling);
  const bool generates = !question.prompt_logits && !question.embedding;
  const uint32_t unasked = limits_.unasked_tokens > 0 ? limits_.unasked_tokens : room;
  request.max_new_tokens = generates ? question.max_new_tokens.value_or(unasked) : 0;
  request.stops = std::move(question.stops);
  request.stop_ids = std::move(question.stop_ids);
  request.ignore_end = question.ignore_end;
  request.prompt_logits = question.prompt_logits;
  request.logprobs = question.logprobs;
  request.prompt_logprobs = question.prompt_logprobs;
  request.embedding = question.embedding;
  request.priority = question.priority;
  request.tenant = question.tenant;
  request.cache_salt = question.cache_salt;
  request.deadline = question.deadline;
  for (const TokenId id : question.generated) request.generated.push_back({.token = id});
  return request;
}

StatusOr<std::unique_ptr<EventStream>> Service::Submit(Request request, StreamOptions options) {
  return streams_.Submit(std::move(request), std::move(options));
}

StatusOr<std::unique_ptr<EventStream>> Service::TakeUp(const std::string& id, uint64_t tenant, StreamOptions options) {
  return streams_.TakeUp(id, tenant, std::move(options));
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
