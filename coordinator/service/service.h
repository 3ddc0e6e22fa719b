// The one place where a question - a conversation, a text, or token ids, with its settings - becomes a request, for
// every interface: command line, gRPC, HTTP, C. What comes from outside is limited here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/work_pool.h"
#include "coordinator/engine/engine.h"
#include "coordinator/grammar/tool_calls.h"
#include "coordinator/service/event_stream.h"
#include "coordinator/service/grammars.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"

namespace gyre {

class Model;

struct TextInput {
  std::string text;            // any bytes
  bool parse_special = false;  // recognise control tokens in the text
};
struct ChatInput {
  Conversation conversation;
  std::string format;  // name of a built-in template; "" = the model's own
};
using IdsInput = std::vector<TokenId>;

struct Question : RequestSettings {
  std::variant<IdsInput, TextInput, ChatInput> input;
  // nullopt: until the context is full, or ServiceLimits::unasked_tokens. Without meaning where no text is generated.
  std::optional<uint32_t> max_new_tokens;
  // The tokens of an earlier answer and its prompt. The input goes on behind them, without a begin-of-text token.
  std::vector<TokenId> before;
  std::vector<TokenId> generated;  // the text goes on behind these, which were drawn before
  std::string prediction;          // what the text may be, for the most part (Request::prediction)
  std::vector<TokenId> predicted;  // the same as ids, where there is no text
  // Calls by a grammar, in the form of the model. A grammar_source beside them is the answer's without a call, if none
  // is required.
  std::optional<grammar::ToolCalls> tool_calls;
};

// What the model's maker recommends; the rest is as SamplingParams says.
SamplingParams DefaultSampling(const Model& model);

struct ServiceLimits {
  size_t prompt_bytes = size_t{4} << 20;    // of a text, or of a conversation with its tools
  RequestLimits requests;                   // the engine's own, so that both refuse the same
  size_t queued_work = 1024;                // calls that wait in Post: as many as requests may run
  size_t queued_bytes = size_t{256} << 20;  // what these hold
  int work_threads = 2;
  // The most tokens of a request without a limit of its own; 0: the rest of the context. If contexts are shifted,
  // it must be set, as such a request would never end.
  uint32_t unasked_tokens = 0;
  bool keep_changing_lines = false;  // conversations are taken as they are (changing_lines.h)
  StreamLimits streams;
};

// Thread-safe. Model and engine outlive it; it outlives the streams that it gives out and the work that is posted.
class Service {
 public:
  // `context`: positions of a sequence at most. keeper: null = requests end with their readers; it outlives the
  // service.
  Service(const Model& model, EngineCalls engine, uint32_t context, const ServiceLimits& limits = {},
          StateKeeper* keeper = nullptr);
  ~Service();

  const Model& model() const { return model_; }
  uint32_t context() const { return context_; }

  // Templates and tokenizes on the calling thread. A conversation's stop ids are added to the question's.
  // kInvalidArgument: nothing in it, too much in a field, a conversation that the template refuses. kOutOfRange:
  // longer than the context, or than ServiceLimits::prompt_bytes. kResourceExhausted: the template makes too much.
  // kFailedPrecondition: the model has no tokenizer.
  // Errors of Grammars::Get and ToolCallSource.
  StatusOr<Request> MakeRequest(Question question) const;
  // The two halves of it, for interfaces that show ids. The same errors; `ids` may be empty and longer than the
  // context.
  StatusOr<std::vector<TokenId>> Tokenize(std::string_view text, const EncodeOptions& options) const;
  StatusOr<ChatPrompt> Prompt(ChatInput chat) const;
  StatusOr<std::string> PromptText(ChatInput chat) const;  // as ChatPrompts::Text
  // The other way: the bytes of a text of these ids, as the model's output has them, possibly no whole UTF-8; and the
  // bytes of one id in the middle of a text. Control tokens have none, unless `control_texts`: then they have the text
  // that the vocabulary stores. kInvalidArgument: an id is out of range, or more bytes than a prompt may have.
  // kFailedPrecondition: the model has no tokenizer.
  StatusOr<std::string> Detokenize(const std::vector<TokenId>& ids, bool control_texts = false) const;
  StatusOr<std::string> TokenBytes(TokenId id, bool control_texts = false) const;
  // JSON texts as a conversation: `messages` an array, `tools` "" or any value. kInvalidArgument.
  StatusOr<Conversation> ParseConversation(std::string_view messages, std::string_view tools) const;

  // Starts a request. The stream is the caller's; dropping it cancels the request. Engine::Submit's errors and
  // kResourceExhausted.
  StatusOr<std::unique_ptr<EventStream>> Submit(Request request, StreamOptions options = {});
  // EventStreams::Reattach.
  StatusOr<std::unique_ptr<EventStream>> Reattach(const std::string& id, uint64_t tenant, StreamOptions options);
  // Starts a request and hands its events over on the calling thread, the terminal one last. `cancelled` is asked every
  // 50 ms and after every event. The error of Submit or of a Failed event; OK after Finished and Cancelled.
  Status Run(Request request, const std::function<void(const Event&)>& on_event,
             const std::function<bool()>& cancelled);
  const EventStreams& streams() const { return streams_; }

  // Runs `work` soon on one of a few threads of its own: templates and tokenizers must not hold up threads that have
  // others to hear. `bytes`: memory that waits with it, unless somebody else bounds that. kResourceExhausted: too much
  // waits; then `work` is not called.
  Status Post(std::function<void()> work, size_t bytes = 0);

 private:
  // Checks the conversation, and holds its changing lines.
  Status Prepare(Conversation* conversation) const;
  Status ReadPrompt(Question& question, Request* request) const;
  // REQUIRES: ReadPrompt, which finds the form of the answer.
  Status CompileGrammar(Question& question) const;
  // REQUIRES: a model with a tokenizer.
  Status CheckIds(std::span<const TokenId> ids) const;

  const Model& model_;
  const uint32_t context_;
  const ServiceLimits limits_;
  const ChatPrompts chats_;
  const std::unique_ptr<Grammars> grammars_;
  EventStreams streams_;
  WorkPool pool_;
};

}  // namespace gyre
