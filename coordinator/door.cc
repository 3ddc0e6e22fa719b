#include "coordinator/door.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <deque>
#include <list>
#include <set>
#include <thread>

#include "base/log.h"
#include "base/mutex.h"
#include "coordinator/remote_stage.h"
#include "gyre/v1/admin.grpc.pb.h"
#include "gyre/v1/cluster.grpc.pb.h"
#include "gyre/v1/inference.grpc.pb.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"
#include "proto/convert.h"
#include "transport/tcp_link.h"

namespace gyre {
namespace {

constexpr uint32_t kControlProtocol = 1;
constexpr size_t kMaxQueuedBytes = size_t{1} << 30;  // of answers that a client does not read

// "ipv4:127.0.0.1:4711" -> "127.0.0.1".
std::string HostOf(const std::string& peer) {
  const size_t colon = peer.find(':'), port = peer.rfind(':');
  if (colon == std::string::npos || port <= colon) return peer;
  return peer.substr(colon + 1, port - colon - 1);
}

// One line for the first, then a line a minute with their number.
class RefusalLog {
 public:
  void Log(const std::string& peer, const Status& why) {
    uint64_t count = 0;
    {
      MutexLock lock(&mutex_);
      ++count_;
      const Deadline now = Clock::now();
      if (count_ > 1 && now < last_ + std::chrono::minutes(1)) return;
      last_ = now;
      count = count_;
    }
    gyre::Log(LogLevel::kWarn, "refused a worker from {}: {} ({} refused since the start)", peer, Message(why), count);
  }

 private:
  Mutex mutex_;
  uint64_t count_ GYRE_GUARDED_BY(mutex_) = 0;
  Deadline last_ GYRE_GUARDED_BY(mutex_){};
};

StatusOr<MemberInfo> ReadHello(const v1::WorkerHello& h, const std::string& peer) {
  if (h.protocol() != kControlProtocol) {
    return FailedPrecondition("it speaks control protocol {}, expected {}", h.protocol(), kControlProtocol);
  }
  MemberInfo info{.name = h.name(),
                  .address = h.ring_address(),
                  .host = HostOf(peer),
                  .memory = h.memory_bytes(),
                  .threads = static_cast<int>(std::min(h.threads(), 65536u)),
                  .isa = h.isa().substr(0, 32),
                  .model_hash = h.model_hash(),
                  .wire_types = h.wire_types() == 0 ? Only(WireType::kF32) : h.wire_types()};
  if (info.name.empty() || info.name.size() > 64) return InvalidArgument("a name has 1 to 64 characters, not {}", info.name.size());
  for (char c : info.name) {
    const bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
    if (!fine) return InvalidArgument("a name has letters, digits, '-', '_' and '.' only");
  }
  if (info.name == "local") return InvalidArgument("the name 'local' is the coordinator's own");
  GYRE_RETURN_IF_ERROR(ParseHostPort(info.address).status());
  if (h.threads() == 0 || h.threads() > 65536) return InvalidArgument("{} threads, expected 1 to 65536", h.threads());
  for (const std::string* text : {&h.isa(), &h.version(), &h.host()}) {
    if (text->size() > 256) return InvalidArgument("a text of {} bytes, at most 256 fit", text->size());
  }
  if (h.has_wish()) info.wish = LayerRange{h.wish().begin(), h.wish().end()};
  return info;
}

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
double Millis(Duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

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

// Finishes a call once, and in any case.
class Finisher {
 public:
  explicit Finisher(grpc::ServerUnaryReactor* reactor) : reactor_(reactor) {}
  ~Finisher() { Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the coordinator stops")); }
  void Finish(const grpc::Status& status) {
    if (!done_.exchange(true)) reactor_->Finish(status);
  }

 private:
  grpc::ServerUnaryReactor* const reactor_;
  std::atomic<bool> done_{false};
};

class AdminService : public v1::Admin::CallbackService {
 public:
  AdminService(const DoorOptions& options, const Model& model, Engine& engine, Cluster& cluster)
      : options_(options), model_(model), engine_(engine), cluster_(cluster) {}

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context, const v1::StatusRequest*,
                                   v1::StatusReply* reply) override {
    Fill(reply);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerUnaryReactor* Resize(grpc::CallbackServerContext* context, const v1::ResizeRequest* request,
                                   v1::ChangeReply* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    cluster_.Resize(request->ranges().substr(0, 100000), Answer(reactor, reply));
    return reactor;
  }
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                  v1::ChangeReply* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    cluster_.Drain(request->worker(), Answer(reactor, reply));
    return reactor;
  }

 private:
  static Cluster::Done Answer(grpc::ServerUnaryReactor* reactor, v1::ChangeReply* reply) {
    return [finisher = std::make_shared<Finisher>(reactor), reply](StatusOr<ChangeReport> report) {
      if (report.ok()) {
        reply->mutable_epoch()->set_term(report->epoch.term);
        reply->mutable_epoch()->set_number(report->epoch.number);
        reply->set_ranges(report->ranges);
        reply->set_pages_moved(report->pages_moved);
        reply->set_last_pages(report->last_pages);
        reply->set_took_ms(Millis(report->took));
      }
      finisher->Finish(ToGrpc(report.status()));
    };
  }
  void Fill(v1::StatusReply* reply) const;

  const DoorOptions& options_;
  const gyre::Model& model_;
  Engine& engine_;
  Cluster& cluster_;
};

void AdminService::Fill(v1::StatusReply* reply) const {
  const ClusterStatus c = cluster_.status();
  reply->set_version(options_.version);
  reply->set_state(c.state);
  if (c.plan) {
    reply->mutable_epoch()->set_term(c.plan->epoch.term);
    reply->mutable_epoch()->set_number(c.plan->epoch.number);
    reply->set_ranges(FormatRanges(*c.plan));
  }
  reply->set_model(model_.path());
  reply->set_num_layers(static_cast<int>(model_.spec().layers.size()));
  reply->set_context(options_.context);
  for (const gyre::MemberStatus& m : c.members) {
    v1::MemberStatus* out = reply->add_members();
    out->set_name(m.info.name);
    out->set_address(m.info.address);
    out->set_host(m.info.host);
    out->set_local(m.info.local);
    out->set_isa(m.info.isa);
    out->set_threads(static_cast<uint32_t>(m.info.threads));
    out->set_memory_bytes(m.info.memory);
    if (m.layers) {
      out->mutable_layers()->set_begin(m.layers->begin);
      out->mutable_layers()->set_end(m.layers->end);
    }
    out->set_weight_bytes(m.weight_bytes);
    out->set_kv_bytes(m.kv_bytes);
    out->set_busy(m.load.busy);
    out->set_steps(m.load.steps);
    out->set_busy_us(m.load.busy_us);
    out->set_rows_sent(m.load.rows_sent);
    out->set_row_bytes_sent(m.load.row_bytes_sent);
  }
  reply->set_plans(c.plans);
  reply->set_aborted(c.aborted);
  reply->set_lost(c.lost);
  const EngineStats e = engine_.stats();
  reply->set_requests(e.requests);
  reply->set_finished(e.finished);
  reply->set_failed(e.failed);
  reply->set_cancelled(e.cancelled);
  reply->set_tokens_generated(e.tokens_generated);
  reply->set_rows_replayed(e.scheduler.replayed_rows);
  reply->set_blocks(e.scheduler.num_blocks);
  reply->set_blocks_available(e.scheduler.blocks_available);
  reply->set_pauses(e.pauses);
  reply->set_last_pause_ms(Millis(e.last_pause));
  reply->set_longest_pause_ms(Millis(e.longest_pause));
  reply->set_held_in_prefill(e.held_in_prefill);
  reply->set_held_in_partial_block(e.held_in_partial_block);
  reply->set_wire(WireTypeName(c.wire));
  for (const SequenceStats& s : e.sequences) {
    v1::SequenceStatus* out = reply->add_sequences();
    out->set_id(static_cast<uint64_t>(s.id));
    out->set_state(s.state == SeqState::kWaiting ? "waiting" : s.state == SeqState::kPrefill ? "prefill" : "decode");
    out->set_prompt(s.prompt);
    out->set_generated(s.generated);
  }
}

class AttachReactor;

// The attached workers, so that silent ones are found.
class Attached {
 public:
  void Add(AttachReactor* r) {
    MutexLock lock(&mutex_);
    all_.insert(r);
  }
  void Remove(AttachReactor* r) {
    MutexLock lock(&mutex_);
    all_.erase(r);
  }
  // `held`: for how long this process could not listen since the last call.
  void Check(Duration timeout, Duration held);
  void CancelAll();

 private:
  Mutex mutex_;
  std::set<AttachReactor*> all_ GYRE_GUARDED_BY(mutex_);
};

class AttachReactor : public grpc::ServerBidiReactor<v1::WorkerEvent, v1::Command> {
 public:
  AttachReactor(grpc::CallbackServerContext* context, Cluster& cluster, Attached& attached, RefusalLog& refusals,
                uint64_t term)
      : context_(context), cluster_(cluster), attached_(attached), refusals_(refusals), term_(term) {
    attached_.Add(this);
    StartRead(&event_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(Unavailable("its connection ended"));
    heard_ = Now();
    if (stage_ == nullptr) {
      const gyre::Status status = OnHello();
      if (!status.ok()) {
        refusals_.Log(context_->peer(), status);
        return End(status);
      }
    } else if (event_.what_case() == v1::WorkerEvent::kHeartbeat) {
      const v1::Heartbeat& h = event_.heartbeat();
      cluster_.Report(name_, {.busy = std::clamp(h.busy(), 0.0, 1.0),
                              .steps = h.steps(),
                              .resident_bytes = h.resident_bytes(),
                              .busy_us = h.busy_us(),
                              .rows_sent = h.rows_sent(),
                              .row_bytes_sent = h.row_bytes_sent()});
    } else {
      stage_->OnEvent(event_);
    }
    StartRead(&event_);
  }
  void OnWriteDone(bool ok) override {
    if (ok && stage_ != nullptr) stage_->Written();
  }
  void OnCancel() override {}
  void OnDone() override {
    attached_.Remove(this);
    if (stage_ != nullptr) stage_->Close();
    Leave(Unavailable("its connection ended"));
    delete this;
  }

  bool SilentSince(Duration timeout) const { return Now() - heard_ > timeout.count(); }
  // That long nothing could be heard.
  void Forgive(Duration held) {
    auto heard = heard_.load();
    while (!heard_.compare_exchange_weak(heard, std::min(heard + held.count(), Now()))) {}
  }
  // The read fails then, and the call ends.
  void Cancel(const gyre::Status& why) {
    {
      MutexLock lock(&mutex_);
      if (why_.ok()) why_ = why;
    }
    context_->TryCancel();
  }

 private:
  static int64_t Now() { return Clock::now().time_since_epoch().count(); }

  gyre::Status OnHello() {
    if (event_.what_case() != v1::WorkerEvent::kHello) return InvalidArgument("its first event is no hello");
    GYRE_ASSIGN_OR_RETURN(MemberInfo info, ReadHello(event_.hello(), context_->peer()));
    auto stage = std::make_shared<RemoteStage>(info.name);
    GYRE_ASSIGN_OR_RETURN(name_, cluster_.Join(std::move(info), stage));
    stage_ = std::move(stage);
    v1::Command welcome;
    welcome.mutable_welcome()->set_name(name_);
    welcome.mutable_welcome()->set_term(term_);
    stage_->Open([this](const v1::Command* command) { StartWrite(command); }, std::move(welcome));
    return absl::OkStatus();
  }
  void Leave(const gyre::Status& otherwise) {
    if (name_.empty() || left_.exchange(true)) return;
    gyre::Status why;
    {
      MutexLock lock(&mutex_);
      why = why_.ok() ? otherwise : why_;
    }
    cluster_.Leave(name_, why);
  }
  void End(const gyre::Status& why) {
    if (stage_ != nullptr) stage_->Close();
    Leave(why);
    Finish(ToGrpc(why));
  }

  grpc::CallbackServerContext* const context_;
  Cluster& cluster_;
  Attached& attached_;
  RefusalLog& refusals_;
  const uint64_t term_;
  v1::WorkerEvent event_;
  std::string name_;
  std::shared_ptr<RemoteStage> stage_;
  std::atomic<int64_t> heard_{Now()};
  std::atomic<bool> left_{false};
  Mutex mutex_;
  gyre::Status why_ GYRE_GUARDED_BY(mutex_);
};

void Attached::Check(Duration timeout, Duration held) {
  MutexLock lock(&mutex_);
  for (AttachReactor* r : all_) {
    r->Forgive(held);
    if (r->SilentSince(timeout)) {
      r->Cancel(Unavailable("nothing was heard of it for {:.1f} s", std::chrono::duration<double>(timeout).count()));
    }
  }
}

void Attached::CancelAll() {
  MutexLock lock(&mutex_);
  for (AttachReactor* r : all_) r->Cancel(Unavailable("the coordinator stops"));
}

class ClusterService : public v1::Cluster::CallbackService {
 public:
  ClusterService(const DoorOptions& options, const Model& model, Cluster& cluster)
      : options_(options), model_(model), cluster_(cluster) {}

  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context, const v1::InfoRequest*,
                                 v1::ClusterInfo* reply) override {
    reply->set_protocol(kControlProtocol);
    reply->set_term(options_.term);
    reply->set_version(options_.version);
    reply->set_model_path(model_.path());
    reply->set_model_hash(model_.content_hash());
    reply->set_layers(static_cast<int>(model_.spec().layers.size()));
    reply->set_rope_base(options_.open.rope_base);
    reply->set_norm_eps(options_.open.norm_eps);
    reply->set_context(options_.open.context);
    reply->set_exact(options_.exact);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerBidiReactor<v1::WorkerEvent, v1::Command>* Attach(grpc::CallbackServerContext* context) override {
    return new AttachReactor(context, cluster_, attached_, refusals_, options_.term);
  }
  Attached& attached() { return attached_; }

 private:
  const DoorOptions& options_;
  const gyre::Model& model_;
  Cluster& cluster_;
  Attached attached_;
  RefusalLog refusals_;
};

class GrpcDoor : public Door {
 public:
  GrpcDoor(const DoorOptions& options, const Model& model, Engine& engine, Cluster& cluster)
      : options_(options),
        inference_(options_, model, engine),
        admin_(options_, model, engine, cluster),
        cluster_(options_, model, cluster) {}
  ~GrpcDoor() override { GrpcDoor::Stop(); }

  Status Listen() {
    GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(options_.address));
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(options_.address, grpc::InsecureServerCredentials(), &port);
    // Two servers must not share a port unnoticed.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1000);
    builder.SetMaxReceiveMessageSize(16 << 20);
    grpc::ResourceQuota quota("door");
    quota.Resize(size_t{512} << 20);
    builder.SetResourceQuota(quota);
    builder.RegisterService(&inference_);
    builder.RegisterService(&admin_);
    builder.RegisterService(&cluster_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) return Unavailable("cannot listen at {}: is the port in use?", options_.address);
    address_ = FormatHostPort(at.host, static_cast<uint16_t>(port));
    watch_ = std::thread([this] {
      constexpr Duration kTick = std::chrono::milliseconds(100);
      while (!stopping_) {
        const Deadline wake = After(kTick);
        std::this_thread::sleep_for(kTick);
        // Woken late, the process was held up itself, by a suspended or crowded machine: others' silence means nothing then.
        const Duration late = Clock::now() - wake;
        cluster_.attached().Check(options_.heartbeat_timeout, late > kTick / 2 ? late : Duration::zero());
      }
    });
    return absl::OkStatus();
  }
  const std::string& address() const override { return address_; }
  void Stop() override {
    if (server_ == nullptr || stopping_.exchange(true)) return;
    cluster_.attached().CancelAll();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
    server_->Wait();
    watch_.join();
  }

 private:
  const DoorOptions options_;
  InferenceService inference_;
  AdminService admin_;
  ClusterService cluster_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  std::atomic<bool> stopping_{false};
  std::thread watch_;
};

}  // namespace

StatusOr<std::unique_ptr<Door>> Door::Open(const DoorOptions& options, const Model& model, Engine& engine,
                                           Cluster& cluster) {
  auto door = std::make_unique<GrpcDoor>(options, model, engine, cluster);
  GYRE_RETURN_IF_ERROR(door->Listen());
  return std::unique_ptr<Door>(std::move(door));
}

}  // namespace gyre
