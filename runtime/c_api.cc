// include/gyre.h over Runtime. No exception leaves these functions.
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "gyre.h"
#include "model/utf8.h"
#include "runtime/runtime.h"

struct gyre_model {
  std::shared_ptr<gyre::Runtime> runtime;
};

struct gyre_session {
  std::shared_ptr<gyre::Runtime> runtime;  // outlives the stream
  std::unique_ptr<gyre::EventStream> stream;
  std::string text;  // of token `index`: what was not handed out yet
  int index = -1;
  bool ended = false, handed_out = true;  // handed_out: something of token `index`, were it only ""
  std::atomic<bool> cancelled{false};
  int error = GYRE_OK;  // how it ended
  std::string message;
};

namespace gyre {
namespace {

std::string& LastMessage() {
  thread_local std::string message;
  return message;
}

int Set(int* error, int code, std::string message = "") {
  if (error != nullptr) *error = code;
  LastMessage() = std::move(message);
  return code;
}

int CodeOf(const Status& status, int otherwise) {
  switch (status.code()) {
    case absl::StatusCode::kOk: return GYRE_OK;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange: return GYRE_INVALID_ARGUMENT;
    case absl::StatusCode::kNotFound: return GYRE_NOT_FOUND;
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kFailedPrecondition: return GYRE_BAD_MODEL;
    case absl::StatusCode::kResourceExhausted: return GYRE_OUT_OF_MEMORY;
    case absl::StatusCode::kCancelled: return GYRE_CANCELLED;
    default: return otherwise;
  }
}

// Of an error that says why a model's file can't be used.
int FileCode(const Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound: return GYRE_NOT_FOUND;
    case absl::StatusCode::kResourceExhausted: return GYRE_OUT_OF_MEMORY;
    default: return GYRE_BAD_MODEL;
  }
}

// Runs `body` and returns its result; `failed` if it throws.
template <typename T, typename Body>
T Guarded(int* error, T failed, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    Set(error, GYRE_OUT_OF_MEMORY, "there is no memory left");
  } catch (const std::system_error& e) {  // of a thread that the system does not give
    Set(error, GYRE_OUT_OF_MEMORY, e.what());
  } catch (const std::exception& e) {
    Set(error, GYRE_UNKNOWN, e.what());
  } catch (...) {
    Set(error, GYRE_UNKNOWN, "an exception of unknown type");
  }
  return failed;
}

// A caller's struct, with the fields that its header has: one compiled with an older header passes fewer.
template <typename T>
StatusOr<T> Given(const char* name, const T* given) {
  T out{};
  if (given->struct_size == 0 || given->struct_size > sizeof out) {
    return InvalidArgument("{}.struct_size is {}; expected sizeof({}), {}", name, given->struct_size, name, sizeof out);
  }
  std::memcpy(&out, given, given->struct_size);
  return out;
}

StatusOr<RuntimeOptions> OptionsOf(const char* path, const gyre_options* given) {
  gyre_options options{};
  if (given != nullptr) {
    GYRE_ASSIGN_OR_RETURN(options, Given("gyre_options", given));
  }
  if (options.threads < 0) return InvalidArgument("gyre_options.threads is {}; expected 0 or more", options.threads);
  RuntimeOptions out;
  out.quiet = true;
  out.model = path;
  out.threads = options.threads;
  out.ctx = options.context;
  if (options.parallel != 0) out.parallel = options.parallel;
  if (options.kv_type != nullptr) out.kv_type = options.kv_type;
  if (options.tokenizer != nullptr) out.open.tokenizer_path = options.tokenizer;
  if (options.device != nullptr) out.device = options.device;
  out.device_memory = options.device_memory;
  return out;
}

// Puts the grammar that a caller names into the question; null: none.
Status ReadGrammar(const gyre_grammar* given, Question* question) {
  if (given == nullptr) return absl::OkStatus();
  GYRE_ASSIGN_OR_RETURN(const gyre_grammar grammar, Given("gyre_grammar", given));
  using grammar::SourceKind;
  const std::pair<const char*, SourceKind> forms[] = {{grammar.json_schema, SourceKind::kJsonSchema},
                                                      {grammar.regex, SourceKind::kRegex},
                                                      {grammar.gbnf, SourceKind::kGbnf}};
  for (const auto& [text, kind] : forms) {
    if (text == nullptr) continue;
    if (question->grammar_source) return InvalidArgument("gyre_grammar names more than one grammar");
    question->grammar_source = grammar::Source{.kind = kind, .text = text};
  }
  if (!question->grammar_source) return InvalidArgument("gyre_grammar names no grammar");
  question->compact_json = grammar.compact_json;
  question->jump_ahead = !grammar.no_jump_ahead;
  return absl::OkStatus();
}

// The settings that gyre_start and its like take; all others are off.
StatusOr<SamplingParams> SamplingOf(float temperature, int top_k, float top_p, uint64_t seed) {
  if (!(temperature >= 0 && temperature <= 2)) {
    return InvalidArgument("the temperature is {}; expected 0 to 2", temperature);
  }
  return SamplingParams{.temperature = temperature,
                        .top_k = top_k > 0 ? top_k : 50,
                        .top_p = top_p > 0 ? top_p : 0.95F,
                        .min_p = 0,
                        .seed = seed};
}

StatusOr<SamplingParams> SamplingOf(const Model& model, const gyre_request& request) {
  SamplingParams out = DefaultSampling(model);
  if (request.settings == nullptr && request.num_settings != 0) {
    return InvalidArgument("gyre_request.settings is null, and num_settings is {}", request.num_settings);
  }
  for (size_t i = 0; i < request.num_settings; ++i) {
    const gyre_setting& setting = request.settings[i];
    const SamplingOption* option = setting.name == nullptr ? nullptr : FindSamplingOption(setting.name);
    if (option == nullptr) {
      std::string names;
      for (const SamplingOption& o : SamplingOptions()) {
        names += fmt::format("{}{}", names.empty() ? "" : ", ", o.shown());
      }
      return InvalidArgument("there is no setting \"{}\"; expected one of {}",
                             setting.name == nullptr ? "" : setting.name, names);
    }
    GYRE_RETURN_IF_ERROR(SetChecked(&out, *option, setting.value));
  }
  out.seed = request.seed;
  return out;
}

// The input of a request: `prompt` or `messages`, of which the other one is null.
gyre_session* Start(gyre_model* model, const gyre_request& asked, StatusOr<SamplingParams> sampling, int* error) {
  const auto refuse = [error](int code, const Status& why) { return Set(error, code, Message(why)), nullptr; };
  Service& service = model->runtime->service();
  Question question;
  if (asked.messages == nullptr) {
    question.input = TextInput{.text = asked.prompt};
  } else {
    StatusOr<Conversation> conversation = service.ParseConversation(asked.messages, "");
    if (!conversation.ok()) return refuse(CodeOf(conversation.status(), GYRE_UNKNOWN), conversation.status());
    question.input = ChatInput{.conversation = *std::move(conversation)};
  }
  if (!sampling.ok()) return refuse(GYRE_INVALID_ARGUMENT, sampling.status());
  question.sampling = *std::move(sampling);
  if (const Status read = ReadGrammar(asked.grammar, &question); !read.ok()) return refuse(GYRE_INVALID_ARGUMENT, read);
  if (asked.max_tokens > 0) question.max_new_tokens = static_cast<uint32_t>(asked.max_tokens);
  StatusOr<Request> request = service.MakeRequest(std::move(question));
  if (!request.ok()) {
    const bool refused = asked.grammar != nullptr && (absl::IsUnimplemented(request.status()) ||  // the grammar is
                                                      absl::IsResourceExhausted(request.status()));
    const int code = refused ? GYRE_INVALID_ARGUMENT : CodeOf(request.status(), GYRE_UNKNOWN);
    return refuse(code, request.status());
  }
  StatusOr<std::unique_ptr<EventStream>> stream = service.Submit(*std::move(request), {.may_stall = true});
  if (!stream.ok()) {
    // MakeRequest has checked that the request fits, so this error means that too many requests wait.
    const bool full = absl::IsResourceExhausted(stream.status());
    return refuse(full ? GYRE_BUSY : CodeOf(stream.status(), GYRE_INFERENCE_FAILED), stream.status());
  }
  auto session = std::make_unique<gyre_session>();
  session->runtime = model->runtime;
  session->stream = *std::move(stream);
  Set(error, GYRE_OK);
  return session.release();
}

// Handles one event.
void Take(gyre_session* session, const Event& event) {
  if (const auto* token = std::get_if<TokenEvent>(&event)) {
    ++session->index;
    session->text += token->text;
    session->handed_out = false;
  } else if (const auto* finished = std::get_if<Finished>(&event)) {
    session->text += finished->text;
    session->ended = true;
  } else if (const auto* failed = std::get_if<Failed>(&event)) {
    session->ended = true;
    session->error = absl::IsResourceExhausted(failed->status) ? GYRE_OUT_OF_MEMORY : GYRE_INFERENCE_FAILED;
    session->message = Message(failed->status);
  } else if (std::holds_alternative<Cancelled>(event)) {
    session->ended = true;
    session->error = GYRE_CANCELLED;
    session->message = "the session was cancelled";
  }
}

// Copies complete characters of the session's text, as many as fit.
bool HandOut(gyre_session* session, char* text, size_t room, int* index, int* error) {
  std::string& rest = session->text;
  size_t bytes = 0;
  while (bytes < rest.size()) {
    const size_t n = Utf8Length(rest, bytes);
    if (bytes + n > room) break;
    bytes += n;
  }
  if (bytes == 0 && !rest.empty()) {
    Set(error, GYRE_BUFFER_TOO_SMALL, fmt::format("the next character needs {} bytes", Utf8Length(rest, 0) + 1));
    return false;
  }
  std::memcpy(text, rest.data(), bytes);
  text[bytes] = '\0';
  rest.erase(0, bytes);
  session->handed_out = true;
  if (index != nullptr) *index = session->index;
  Set(error, GYRE_OK);
  return true;
}

}  // namespace
}  // namespace gyre

using gyre::Guarded;
using gyre::Set;

const char* gyre_version(void) { return GYRE_VERSION; }

const char* gyre_error_name(int error) {
  switch (error) {
    case GYRE_OK: return "no error";
    case GYRE_INVALID_ARGUMENT: return "invalid argument";
    case GYRE_OUT_OF_MEMORY: return "out of memory";
    case GYRE_NOT_FOUND: return "not found";
    case GYRE_BAD_MODEL: return "bad model";
    case GYRE_INFERENCE_FAILED: return "inference failed";
    case GYRE_BUFFER_TOO_SMALL: return "buffer too small";
    case GYRE_BUSY: return "busy";
    case GYRE_CANCELLED: return "cancelled";
    default: return "unknown error";
  }
}

const char* gyre_error_message(void) { return gyre::LastMessage().c_str(); }

gyre_model* gyre_load(const char* path, const gyre_options* options, int* error) {
  return Guarded<gyre_model*>(error, nullptr, [&]() -> gyre_model* {
    if (path == nullptr) return Set(error, GYRE_INVALID_ARGUMENT, "the path is null"), nullptr;
    auto runtime_options = gyre::OptionsOf(path, options);
    if (!runtime_options.ok()) {
      return Set(error, GYRE_INVALID_ARGUMENT, gyre::Message(runtime_options.status())), nullptr;
    }
    auto opened = gyre::OpenModel(runtime_options->model, runtime_options->ForOpening());
    if (!opened.ok()) {
      Set(error, gyre::FileCode(opened.status()), gyre::Message(opened.status()));
      return nullptr;
    }
    runtime_options->opened = *std::move(opened);
    auto runtime = gyre::Runtime::Open(*runtime_options);
    if (!runtime.ok()) {
      Set(error, gyre::CodeOf(runtime.status(), GYRE_UNKNOWN), gyre::Message(runtime.status()));
      return nullptr;
    }
    auto model = std::make_unique<gyre_model>();
    model->runtime = *std::move(runtime);
    Set(error, GYRE_OK);
    return model.release();
  });
}

void gyre_model_free(gyre_model* model) {
  Guarded<int>(nullptr, 0, [&] { return delete model, 0; });
}

gyre_session* gyre_start(gyre_model* model, const char* prompt, int max_tokens, float temperature, int top_k,
                         float top_p, uint64_t seed, int* error) {
  return gyre_start_grammar(model, prompt, nullptr, max_tokens, temperature, top_k, top_p, seed, error);
}

gyre_session* gyre_start_chat(gyre_model* model, const char* messages, int max_tokens, float temperature, int top_k,
                              float top_p, uint64_t seed, int* error) {
  return gyre_start_chat_grammar(model, messages, nullptr, max_tokens, temperature, top_k, top_p, seed, error);
}

gyre_session* gyre_start_grammar(gyre_model* model, const char* prompt, const gyre_grammar* grammar, int max_tokens,
                                 float temperature, int top_k, float top_p, uint64_t seed, int* error) {
  return Guarded<gyre_session*>(error, nullptr, [&]() -> gyre_session* {
    if (model == nullptr || prompt == nullptr) {
      return Set(error, GYRE_INVALID_ARGUMENT, "the model or the prompt is null"), nullptr;
    }
    const gyre_request request{.prompt = prompt, .grammar = grammar, .max_tokens = max_tokens};
    return gyre::Start(model, request, gyre::SamplingOf(temperature, top_k, top_p, seed), error);
  });
}

gyre_session* gyre_start_chat_grammar(gyre_model* model, const char* messages, const gyre_grammar* grammar,
                                      int max_tokens, float temperature, int top_k, float top_p, uint64_t seed,
                                      int* error) {
  return Guarded<gyre_session*>(error, nullptr, [&]() -> gyre_session* {
    if (model == nullptr || messages == nullptr) {
      return Set(error, GYRE_INVALID_ARGUMENT, "the model or the conversation is null"), nullptr;
    }
    const gyre_request request{.messages = messages, .grammar = grammar, .max_tokens = max_tokens};
    return gyre::Start(model, request, gyre::SamplingOf(temperature, top_k, top_p, seed), error);
  });
}

gyre_session* gyre_start_request(gyre_model* model, const gyre_request* request, int* error) {
  return Guarded<gyre_session*>(error, nullptr, [&]() -> gyre_session* {
    if (model == nullptr || request == nullptr) {
      return Set(error, GYRE_INVALID_ARGUMENT, "the model or the request is null"), nullptr;
    }
    const auto given = gyre::Given("gyre_request", request);
    if (!given.ok()) return Set(error, GYRE_INVALID_ARGUMENT, gyre::Message(given.status())), nullptr;
    if ((given->prompt == nullptr) == (given->messages == nullptr)) {
      Set(error, GYRE_INVALID_ARGUMENT,
          "gyre_request has both a prompt and messages, or neither; expected one of them");
      return nullptr;
    }
    return gyre::Start(model, *given, gyre::SamplingOf(model->runtime->service().model(), *given), error);
  });
}

const char* gyre_setting_name(size_t i) {
  // The rows' names are literals, which end with a zero byte.
  return i < gyre::SamplingOptions().size() ? gyre::SamplingOptions()[i].shown().data() : nullptr;
}

bool gyre_next_token(gyre_session* session, char* text, int size, int* index, int* error) {
  return Guarded<bool>(error, false, [&]() -> bool {
    if (session == nullptr || text == nullptr || size < 1) {
      return Set(error, GYRE_INVALID_ARGUMENT, "the session or the text is null, or there is no room"), false;
    }
    if (session->cancelled) session->stream->Cancel();
    // A token's text is handed out before the next one is waited for; the last text may come with the end.
    while (!session->ended && session->text.empty() && session->handed_out) {
      const std::optional<gyre::Event> event = session->stream->Next(gyre::kNoDeadline);
      if (event) gyre::Take(session, *event);
    }
    if (session->cancelled) return Set(error, GYRE_CANCELLED, "the session was cancelled"), false;
    if (!session->text.empty() || !session->handed_out) {
      return gyre::HandOut(session, text, static_cast<size_t>(size) - 1, index, error);
    }
    text[0] = '\0';
    Set(error, session->error, session->message);
    return false;
  });
}

void gyre_cancel(gyre_session* session) {
  if (session == nullptr) return;
  Guarded<int>(nullptr, 0, [&] {
    session->cancelled = true;
    session->stream->Cancel();
    return 0;
  });
}

void gyre_free(gyre_session* session) {
  Guarded<int>(nullptr, 0, [&] { return delete session, 0; });
}
