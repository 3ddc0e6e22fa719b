// Clients at the door: requests and their events, tokens and prompts.
#include <grpcpp/grpcpp.h>

#include <boost/json.hpp>
#include <deque>

#include "base/mutex.h"
#include "coordinator/door_services.h"
#include "gyre/v1/inference.grpc.pb.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"
#include "proto/convert.h"

namespace gyre {
namespace {

constexpr size_t kMaxQueuedBytes = size_t{1} << 30;  // of answers that a client does not read

// The events of one call that streams to a client. The engine's thread pushes, gRPC's threads write.
template <typename Message>
class Stream : public std::enable_shared_from_this<Stream<Message>> {
 public:
  void Open(grpc::ServerWriteReactor<Message>* reactor) {
    MutexLock lock(&mutex_);
    reactor_ = reactor;
    Next();
  }
  // False: the client reads too slowly.
  bool Push(Message message) {
    MutexLock lock(&mutex_);
    bytes_ += message.ByteSizeLong();
    queue_.push_back(std::move(message));
    if (queue_.size() == 1) Next();
    return bytes_ <= kMaxQueuedBytes;
  }
  // After what was pushed before.
  void End(const grpc::Status& status) {
    MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    status_ = status;
    if (queue_.empty()) Next();
  }
  void Written(bool ok) {
    MutexLock lock(&mutex_);
    bytes_ -= queue_.front().ByteSizeLong();
    queue_.pop_front();
    if (!ok) queue_.clear();
    Next();
  }
  void Detach() {
    MutexLock lock(&mutex_);
    reactor_ = nullptr;
  }

 private:
  void Next() GYRE_REQUIRES(mutex_) {
    if (reactor_ == nullptr) return;
    if (!queue_.empty()) return reactor_->StartWrite(&queue_.front());
    if (ended_ && !finished_) {
      finished_ = true;
      reactor_->Finish(status_);
    }
  }

  Mutex mutex_;
  grpc::ServerWriteReactor<Message>* reactor_ GYRE_GUARDED_BY(mutex_) = nullptr;
  std::deque<Message> queue_ GYRE_GUARDED_BY(mutex_);
  size_t bytes_ GYRE_GUARDED_BY(mutex_) = 0;
  bool ended_ GYRE_GUARDED_BY(mutex_) = false, finished_ GYRE_GUARDED_BY(mutex_) = false;
  grpc::Status status_ GYRE_GUARDED_BY(mutex_);
};

template <typename Message>
class StreamReactor : public grpc::ServerWriteReactor<Message> {
 public:
  StreamReactor(std::shared_ptr<Stream<Message>> stream, std::function<void()> cancel)
      : stream_(std::move(stream)), cancel_(std::move(cancel)) {
    stream_->Open(this);
  }
  void OnWriteDone(bool ok) override { stream_->Written(ok); }
  void OnCancel() override { cancel_(); }
  void OnDone() override {
    stream_->Detach();
    cancel_();
    delete this;
  }

 private:
  const std::shared_ptr<Stream<Message>> stream_;
  const std::function<void()> cancel_;
};

v1::GenerateEvent Convert(const TokenEvent& e) {
  v1::GenerateEvent out;
  out.mutable_token()->set_id(e.token);
  out.mutable_token()->set_text(e.text);
  out.mutable_token()->set_probability(e.probability);
  return out;
}

int64_t Micros(Duration d) { return std::chrono::duration_cast<std::chrono::microseconds>(d).count(); }

v1::GenerateEvent Convert(const Finished& e) {
  v1::GenerateEvent out;
  v1::Finished* f = out.mutable_finished();
  f->set_reason(e.reason == FinishReason::kStop ? "stop" : "length");
  f->set_text(e.text);
  f->set_prompt_tokens(e.usage.prompt_tokens);
  f->set_cached_tokens(e.usage.cached_tokens);
  f->set_generated_tokens(e.usage.generated_tokens);
  f->set_to_first_token_us(Micros(e.usage.to_first_token));
  f->set_total_us(Micros(e.usage.total));
  return out;
}

class InferenceService : public v1::Inference::CallbackService {
 public:
  InferenceService(const DoorOptions& options, const gyre::Model& model, Engine& engine)
      : options_(options), model_(model), engine_(engine) {}

  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(grpc::CallbackServerContext*,
                                                        const v1::GenerateRequest* r) override {
    Request request;
    request.prompt.assign(r->ids().begin(), r->ids().end());
    request.max_new_tokens = r->max_new_tokens();
    request.stops.assign(r->stops().begin(), r->stops().end());
    request.ignore_end = r->ignore_end();
    request.priority = r->priority();
    request.stop_ids.assign(r->stop_ids().begin(), r->stop_ids().end());
    if (r->has_sampling()) {
      const v1::Sampling& s = r->sampling();
      request.sampling = {.temperature = s.temperature(),
                          .top_k = s.top_k(),
                          .top_p = s.top_p(),
                          .min_p = s.min_p(),
                          .repetition_penalty = s.repetition_penalty(),
                          .frequency_penalty = s.frequency_penalty(),
                          .presence_penalty = s.presence_penalty(),
                          .penalty_last_n = s.penalty_last_n(),
                          .logit_bias = {s.logit_bias().begin(), s.logit_bias().end()},
                          .seed = s.seed()};
    }
    auto stream = std::make_shared<Stream<v1::GenerateEvent>>();
    return Run<v1::GenerateEvent>(std::move(request), stream, [stream](const Event& event) {
      bool fast = true;
      if (auto* token = std::get_if<TokenEvent>(&event)) fast = stream->Push(Convert(*token));
      if (auto* finished = std::get_if<Finished>(&event)) stream->Push(Convert(*finished));
      return fast;
    });
  }

  grpc::ServerWriteReactor<v1::ScoreEvent>* Score(grpc::CallbackServerContext*, const v1::ScoreRequest* r) override {
    Request request;
    request.prompt.assign(r->ids().begin(), r->ids().end());
    request.prompt_logits = true;
    auto stream = std::make_shared<Stream<v1::ScoreEvent>>();
    return Run<v1::ScoreEvent>(std::move(request), stream, [stream](const Event& event) {
      auto* row = std::get_if<LogitsEvent>(&event);
      if (row == nullptr) return true;
      v1::ScoreEvent out;
      out.set_position(row->position);
      out.set_logits(row->logits.data(), row->logits.size() * sizeof(float));
      return stream->Push(std::move(out));
    });
  }

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
                                     v1::TokenizeReply* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (model_.tokenizer() == nullptr) {
      reactor->Finish(ToGrpc(FailedPrecondition("{}", model_.tokenizer_note())));
      return reactor;
    }
    const auto ids = model_.tokenizer()->Encode(
        request->text(), {.add_special = request->add_special(), .parse_special = request->parse_special()});
    reply->mutable_ids()->Add(ids.begin(), ids.end());
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* Prompt(grpc::CallbackServerContext* context, const v1::PromptRequest* request,
                                   v1::PromptReply* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpc(MakePrompt(*request, reply)));
    return reactor;
  }

  grpc::ServerUnaryReactor* Model(grpc::CallbackServerContext* context, const v1::ModelRequest*,
                                  v1::ModelReply* reply) override {
    const ModelSpec& spec = model_.spec();
    reply->set_path(model_.path());
    reply->set_architecture(spec.architecture);
    reply->set_layers(static_cast<int>(spec.layers.size()));
    reply->set_vocab(spec.vocab);
    reply->set_context(options_.context);
    reply->set_kv_type(options_.kv_type);
    reply->set_tokenizer_note(model_.tokenizer_note());
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
  Status MakePrompt(const v1::PromptRequest& request, v1::PromptReply* reply) const {
    boost::system::error_code error;
    const boost::json::value messages = boost::json::parse(request.messages(), error);
    if (error || !messages.is_array()) return InvalidArgument("messages: not a JSON array");
    Conversation conversation;
    conversation.messages = messages.get_array();
    if (!request.tools().empty()) conversation.tools = boost::json::parse(request.tools(), error);
    if (error) return InvalidArgument("tools: not JSON");
    GYRE_ASSIGN_OR_RETURN(const ChatPrompt prompt, MakeChatPrompt(model_, request.format(), conversation));
    reply->mutable_ids()->Add(prompt.ids.begin(), prompt.ids.end());
    reply->mutable_stop_ids()->Add(prompt.stop_ids.begin(), prompt.stop_ids.end());
    reply->set_format(prompt.format);
    return absl::OkStatus();
  }

  // `push` takes the events that are no end; false: the client reads too slowly.
  template <typename Message>
  grpc::ServerWriteReactor<Message>* Run(Request request, std::shared_ptr<Stream<Message>> stream,
                                         std::function<bool(const Event&)> push) {
    auto engine = &engine_;
    auto seq = engine_.Submit(std::move(request), [stream, push, engine](SeqId id, const Event& event) {
      if (!push(event)) {
        stream->End(ToGrpc(ResourceExhausted("the client reads too slowly")));
        engine->Cancel(id);
      }
      if (auto* failed = std::get_if<Failed>(&event)) stream->End(ToGrpc(failed->status));
      if (std::holds_alternative<Finished>(event)) stream->End(grpc::Status::OK);
      if (std::holds_alternative<Cancelled>(event)) stream->End(grpc::Status(grpc::StatusCode::CANCELLED, "cancelled"));
    });
    if (!seq.ok()) stream->End(ToGrpc(seq.status()));
    return new StreamReactor<Message>(stream, [engine, seq] {
      if (seq.ok()) engine->Cancel(*seq);
    });
  }

  const DoorOptions& options_;
  const gyre::Model& model_;
  Engine& engine_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeInferenceService(const DoorOptions& options, const Model& model, Engine& engine) {
  return std::make_unique<InferenceService>(options, model, engine);
}

}  // namespace gyre
