// The clients' service: requests and their events, tokens and prompts.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstring>
#include <random>

#include "base/log_output.h"
#include "base/mutex.h"
#include "base/sha256.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/engine/request_codec.h"
#include "coordinator/grpc/services.h"
#include "coordinator/service/service.h"
#include "coordinator/state/request_journal.h"
#include "gyre/v1/inference.grpc.pb.h"
#include "model/chat_template.h"
#include "model/half_floats.h"
#include "model/quoted.h"
#include "model/tokenizer.h"
#include "proto/convert.h"
#include "proto/credentials.h"

namespace gyre {
namespace {

int64_t Micros(Duration d) { return std::chrono::duration_cast<std::chrono::microseconds>(d).count(); }

void WriteLogprob(const TokenLogprob& t, v1::TokenLogprob* out) {
  out->set_id(t.id);
  out->set_logprob(t.logprob);
}

template <typename Message>
void WriteTop(const std::vector<TokenLogprob>& top, Message* out) {
  for (const TokenLogprob& t : top) WriteLogprob(t, out->add_top());
}

void WriteLogits(const std::vector<float>& logits, bool half, v1::ScoreEvent* out) {
  if (half) {
    AppendHalves(logits, out->mutable_logits());
  } else {
    out->set_logits(logits.data(), logits.size() * sizeof(float));
  }
}

void Write(const TokenEvent& e, v1::GenerateEvent* out) {
  out->mutable_token()->set_id(e.token);
  out->mutable_token()->set_text(e.text);
  out->mutable_token()->set_probability(e.probability);
  out->mutable_token()->set_logprob(e.logprob);
  WriteTop(e.top, out->mutable_token());
}

void Write(const PromptTokenEvent& e, v1::GenerateEvent* out) {
  v1::PromptToken* token = out->mutable_prompt_token();
  token->set_position(e.position);
  token->set_id(e.token);
  token->set_logprob(e.logprob);
  WriteTop(e.top, token);
}

void Write(const EmbeddingEvent& e, v1::GenerateEvent* out) {
  out->mutable_embedding()->mutable_values()->Add(e.values.begin(), e.values.end());
}

void Write(const Finished& e, v1::Finished* f) {
  f->set_reason(e.reason == FinishReason::kStop ? "stop" : "length");
  f->set_text(e.text);
  f->set_prompt_tokens(e.usage.prompt_tokens);
  f->set_cached_tokens(e.usage.cached_tokens);
  f->set_generated_tokens(e.usage.generated_tokens);
  f->set_to_first_token_us(Micros(e.usage.to_first_token));
  f->set_total_us(Micros(e.usage.total));
  f->set_context_shifts(e.usage.context_shifts);
  f->set_drafted_tokens(e.usage.drafted_tokens);
  f->set_accepted_drafts(e.usage.accepted_drafts);
  f->set_stop(e.stop);
  if (e.stop_id >= 0) f->set_stop_id(e.stop_id);
}

// True: the event has a message of its own.
bool Convert(const Event& event, v1::GenerateEvent* out) {
  out->Clear();
  if (const auto* token = std::get_if<TokenEvent>(&event)) return Write(*token, out), true;
  if (const auto* finished = std::get_if<Finished>(&event)) return Write(*finished, out->mutable_finished()), true;
  if (const auto* prompt = std::get_if<PromptTokenEvent>(&event)) return Write(*prompt, out), true;
  if (const auto* embedding = std::get_if<EmbeddingEvent>(&event)) return Write(*embedding, out), true;
  if (const auto* waiting = std::get_if<Waiting>(&event)) {
    out->mutable_notice()->set_text(PrintableSentence(Message(waiting->why)));
    return true;
  }
  return false;
}

bool ConvertScore(const Event& event, bool half, v1::ScoreEvent* out) {
  out->Clear();
  if (const auto* row = std::get_if<LogitsEvent>(&event)) {
    out->set_position(row->position);
    WriteLogits(row->logits, half, out);
    return true;
  }
  if (const auto* score = std::get_if<PromptTokenEvent>(&event)) {
    out->set_position(score->position);
    out->set_id(score->token);
    out->set_logprob(score->logprob);
    WriteTop(score->top, out);
    out->set_rest(score->rest);
    for (const TokenLogprob& t : score->named) WriteLogprob(t, out->add_named());
    if (!score->logits.empty()) WriteLogits(score->logits, half, out);
    return true;
  }
  return false;
}

// The status with which a terminal event ends a call; nullopt: the event is not terminal.
std::optional<grpc::Status> EndOf(const Event& event) {
  if (std::holds_alternative<Finished>(event)) return grpc::Status::OK;
  if (const auto* failed = std::get_if<Failed>(&event)) return ToGrpc(failed->status);
  if (std::holds_alternative<Cancelled>(event)) return grpc::Status(grpc::StatusCode::CANCELLED, "cancelled");
  return std::nullopt;
}

// A call as the log shows it.
struct CallRecord {
  const char* method = "";
  std::string id;
  Deadline began = Clock::now();
  absl::StatusCode end = absl::StatusCode::kOk;
  Usage usage;
};

void LogCall(const CallRecord& r) {
  if (!LogEnabled(LogLevel::kInfo)) return;
  const double ms = std::chrono::duration<double, std::milli>(Clock::now() - r.began).count();
  const std::string status = absl::StatusCodeToString(r.end);
  std::string line = fmt::format("grpc {} {} {} {:.1f} ms", r.id, r.method, status, ms);
  if (r.usage.prompt_tokens > 0) {
    line += fmt::format(" tokens {}+{}", r.usage.prompt_tokens, r.usage.generated_tokens);
  }
  LogWith(LogLevel::kInfo, line,
          {{"request", r.id},
           {"method", r.method},
           {"status", status},
           {"milliseconds", fmt::format("{:.1f}", ms), true},
           {"prompt_tokens", std::to_string(r.usage.prompt_tokens), true},
           {"generated_tokens", std::to_string(r.usage.generated_tokens), true}});
}

// A call that streams one request's events to a client, one message at a time: what the client does not read stays in
// the event stream, which has its limits.
template <typename Message>
class StreamCall : public grpc::ServerWriteReactor<Message> {
 public:
  using Open = std::function<StatusOr<std::unique_ptr<EventStream>>(StreamOptions)>;
  // False: the event has no message.
  using Converter = std::function<bool(const Event&, Message*)>;
  // `id`: what the client knows the request by. `seen`: tokens whose events it has.
  StreamCall(grpc::CallbackServerContext* context, CallRecord record, const std::string& id, uint64_t seen,
             const Open& open, Converter convert)
      : context_(context), convert_(std::move(convert)), record_(std::move(record)), seen_(seen) {
    context->AddInitialMetadata("x-request-id", id);
    // Tells an end that the coordinator gives from a connection that broke.
    context->AddTrailingMetadata("x-request-id", id);
    StatusOr<std::unique_ptr<EventStream>> stream = open({.ready = [this] { Pump(); }});
    MutexLock lock(&mutex_);
    if (!stream.ok()) {
      finished_ = true;
      record_.end = stream.status().code();
      this->Finish(ToGrpc(stream.status()));
      return;
    }
    stream_ = *std::move(stream);
    // At once, so that a client knows the id when its first token takes long.
    this->StartSendInitialMetadata();
    left_ ? Leave() : Advance();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    writing_ = false;
    if (ok && !left_) return Advance();
    Leave();
  }
  // The caller left: its request ends now, not when something is to be written.
  void OnCancel() override {
    MutexLock lock(&mutex_);
    left_ = true;
    if (stream_ != nullptr) Leave();
  }
  void OnDone() override {
    {
      MutexLock lock(&mutex_);
      LogCall(record_);
    }
    delete this;
  }

 private:
  void Pump() {
    MutexLock lock(&mutex_);
    if (stream_ != nullptr) Advance();
  }
  // Nothing reaches the client any more. A write that is under way ends first, with OnWriteDone.
  void Leave() GYRE_REQUIRES(mutex_) {
    stream_->Cancel();
    if (writing_ || finished_) return;
    finished_ = true;
    record_.end = absl::StatusCode::kCancelled;
    this->Finish(grpc::Status(grpc::StatusCode::CANCELLED, "cancelled"));
  }
  void Advance() GYRE_REQUIRES(mutex_) {
    if (writing_ || finished_) {
      // A write that the client does not take ends only with the call.
      if (stream_->dropped()) context_->TryCancel();
      return;
    }
    while (const std::optional<Event> event = stream_->TryNext()) {
      const bool seen = seen_ > 0 && std::holds_alternative<TokenEvent>(*event);
      if (seen) --seen_;
      const bool has_message = !seen && convert_(*event, &message_);
      const std::optional<grpc::Status> end = EndOf(*event);
      if (end) record_.end = static_cast<absl::StatusCode>(end->error_code());
      if (const auto* finished = std::get_if<Finished>(&*event)) record_.usage = finished->usage;
      if (end) {
        finished_ = true;
        if (has_message) return this->StartWriteAndFinish(&message_, {}, *end);
        return this->Finish(*end);
      }
      if (has_message) {
        writing_ = true;
        return this->StartWrite(&message_);
      }
    }
  }

  grpc::CallbackServerContext* const context_;
  const Converter convert_;
  Mutex mutex_;
  CallRecord record_ GYRE_GUARDED_BY(mutex_);
  uint64_t seen_ GYRE_GUARDED_BY(mutex_);
  Message message_;  // of the write that is under way
  bool writing_ GYRE_GUARDED_BY(mutex_) = false;
  bool finished_ GYRE_GUARDED_BY(mutex_) = false;  // Finish or the last write was asked for
  bool left_ GYRE_GUARDED_BY(mutex_) = false;      // the caller
  // The last member: its end waits for a Pump that runs.
  std::unique_ptr<EventStream> stream_;
};

Question ReadQuestion(const v1::GenerateRequest& r) {
  Question q;
  q.input = IdsInput(r.ids().begin(), r.ids().end());
  static_cast<RequestSettings&>(q) = DecodeSettings(r);
  if (r.has_max_new_tokens()) q.max_new_tokens = r.max_new_tokens();
  q.generated.assign(r.generated().begin(), r.generated().end());
  q.predicted.assign(r.prediction().begin(), r.prediction().end());
  return q;
}

Question ReadScore(const v1::ScoreRequest& r) {
  Question q{.input = IdsInput(r.ids().begin(), r.ids().end())};
  q.cache_salt = r.cache_salt();
  q.tenant = r.tenant();
  q.priority = r.priority();
  q.adapter = r.adapter();
  q.prompt_logits = !r.has_score_from();
  if (!r.has_score_from()) return q;
  ScoreSettings& score = q.score.emplace();
  score = {.from = r.score_from(), .top = r.top(), .logits = r.logits(), .generated = r.generated()};
  for (const v1::Ids& ids : r.named()) score.named.emplace_back(ids.ids().begin(), ids.ids().end());
  return q;
}

// A client can't reach another one by what it says of itself: its tenant and cache salt are hashed together with its
// name, and only an admin may give a priority.
void KeepApart(const std::optional<Principal>& caller, Question* q) {
  if (!caller || caller->role != Role::kClient) return;
  for (uint64_t* number : {&q->tenant, &q->cache_salt}) {
    const Hash256 hash = Sha256(fmt::format("{} {}", FormatPrincipal(*caller), *number));
    std::memcpy(number, hash.data(), sizeof *number);
  }
  q->priority = 0;
}

class InferenceService : public v1::Inference::CallbackService {
 public:
  InferenceService(const GrpcServerOptions& options, const gyre::Model& model, const Cluster& cluster,
                   gyre::Service& service)
      : options_(options), model_(model), cluster_(cluster), service_(service) {}

  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(grpc::CallbackServerContext* context,
                                                        const v1::GenerateRequest* r) override {
    Question q = ReadQuestion(*r);
    KeepApart(CallerOf(*context->auth_context()), &q);
    if (!r->request_id().empty()) return Reattach(context, *r, q.tenant);
    const CallRecord call = NewCall("Generate");
    const std::string id = service_.streams().keeps() ? NewRequestId(call.id) : call.id;
    return new StreamCall<v1::GenerateEvent>(context, call, id, r->resume_after(), Asking(std::move(q), call.id, id),
                                             Convert);
  }

  grpc::ServerWriteReactor<v1::ScoreEvent>* Score(grpc::CallbackServerContext* context,
                                                  const v1::ScoreRequest* r) override {
    Question q = ReadScore(*r);
    KeepApart(CallerOf(*context->auth_context()), &q);
    const CallRecord call = NewCall("Score");
    const auto convert = [half = r->half(), scored = r->has_score_from()](const Event& event, v1::ScoreEvent* out) {
      if (ConvertScore(event, half, out)) return true;
      if (!scored) return false;
      if (const auto* finished = std::get_if<Finished>(&event)) return Write(*finished, out->mutable_finished()), true;
      const auto* waiting = std::get_if<Waiting>(&event);
      if (waiting != nullptr) out->mutable_notice()->set_text(PrintableSentence(Message(waiting->why)));
      return waiting != nullptr;
    };
    return new StreamCall<v1::ScoreEvent>(context, call, call.id, 0, Asking(std::move(q), call.id, ""), convert);
  }

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
                                     v1::TokenizeReply* reply) override {
    return Answer(context, request->ByteSizeLong(), [this, request, reply]() -> gyre::Status {
      GYRE_ASSIGN_OR_RETURN(const auto ids,
                            service_.Tokenize(request->text(), {.add_special = request->add_special(),
                                                                .parse_special = request->parse_special()}));
      reply->mutable_ids()->Add(ids.begin(), ids.end());
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Prompt(grpc::CallbackServerContext* context, const v1::PromptRequest* request,
                                   v1::PromptReply* reply) override {
    return Answer(context, request->ByteSizeLong(), [this, request, reply]() -> gyre::Status {
      ChatInput chat{.format = request->format()};
      GYRE_ASSIGN_OR_RETURN(chat.conversation, service_.ParseConversation(request->messages(), request->tools()));
      GYRE_ASSIGN_OR_RETURN(const ChatPrompt prompt, service_.Prompt(chat));
      reply->mutable_ids()->Add(prompt.ids.begin(), prompt.ids.end());
      reply->mutable_stop_ids()->Add(prompt.stop_ids.begin(), prompt.stop_ids.end());
      reply->set_format(prompt.format);
      *reply->mutable_answer() = EncodeFormat(prompt.answer);
      reply->mutable_boundaries()->Add(prompt.boundaries.begin(), prompt.boundaries.end());
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Model(grpc::CallbackServerContext* context, const v1::ModelRequest*,
                                  v1::ModelReply* reply) override {
    const ModelSpec& spec = model_.spec();
    reply->set_path(model_.path());
    reply->set_architecture(spec.architecture);
    reply->set_layers(static_cast<int>(spec.layers.size()));
    reply->set_vocab(spec.vocab);
    reply->set_context(options_.context);
    reply->set_context_shift(options_.context_shift);
    reply->set_kv_type(options_.kv_type);
    reply->set_rounds_prompts(cluster_.status().rounds_prompts);
    reply->set_tokenizer_note(PrintableSentence(model_.tokenizer_note()));
    if (const Tokenizer* t = model_.tokenizer()) {
      reply->set_add_bos(t->add_bos());
      reply->set_bos(t->bos());
      for (TokenId id = 0; id < t->size(); ++id) {
        if (t->IsEndOfGeneration(id)) reply->add_end_ids(id);
      }
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  // Begins what a client asks.
  std::function<StatusOr<std::unique_ptr<EventStream>>(StreamOptions)> Asking(Question q, const std::string& call,
                                                                              const std::string& id) {
    return [this, q = std::move(q), call, id](StreamOptions options) mutable -> StatusOr<std::unique_ptr<EventStream>> {
      GYRE_ASSIGN_OR_RETURN(Request request, service_.MakeRequest(std::move(q)));
      request.id = call;
      request.reattach_id = id;
      return service_.Submit(std::move(request), std::move(options));
    };
  }
  grpc::ServerWriteReactor<v1::GenerateEvent>* Reattach(grpc::CallbackServerContext* context,
                                                        const v1::GenerateRequest& r, uint64_t tenant) {
    const std::string id = IsRequestId(r.request_id()) ? r.request_id() : "-";
    CallRecord call{.method = "Generate"};
    call.id = CallOf(id);
    return new StreamCall<v1::GenerateEvent>(
        context, std::move(call), id, r.resume_after(),
        [this, id, tenant](StreamOptions options) { return service_.Reattach(id, tenant, std::move(options)); },
        Convert);
  }
  CallRecord NewCall(const char* method) {
    return {.method = method, .id = fmt::format("{}{:08x}", prefix_, ++calls_)};
  }
  // Does the work, with a message of so many bytes, on a thread of the service: gRPC's threads read heartbeats too.
  // Request and reply live until Finish.
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, size_t bytes,
                                   std::function<gyre::Status()> work) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const gyre::Status posted = service_.Post(
        [reactor, work = std::move(work)] {
          gyre::Status status;
          try {
            status = work();
          } catch (const std::exception& e) {
            status = Internal("the text could not be processed: {}", e.what());
          }
          reactor->Finish(ToGrpc(status));
        },
        bytes);
    if (!posted.ok()) reactor->Finish(ToGrpc(posted));
    return reactor;
  }

  const GrpcServerOptions& options_;
  const gyre::Model& model_;
  const Cluster& cluster_;
  gyre::Service& service_;
  const std::string prefix_ = fmt::format("g{:08x}-", std::random_device()());  // so that ids of two runs differ
  std::atomic<uint64_t> calls_{0};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeInferenceService(const GrpcServerOptions& options, const Model& model,
                                                    const Cluster& cluster, Service& service) {
  return std::make_unique<InferenceService>(options, model, cluster, service);
}

}  // namespace gyre
