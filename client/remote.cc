#include "client/remote.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <thread>

#include "client/remote_call.h"
#include "coordinator/engine/request_codec.h"
#include "fmt/core.h"
#include "gyre/v1/inference.grpc.pb.h"
#include "proto/channel.h"
#include "proto/coordinators.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Duration Micros(int64_t us) { return std::chrono::microseconds(us); }

std::vector<TokenLogprob> ReadTop(const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& top) {
  std::vector<TokenLogprob> out;
  for (const v1::TokenLogprob& t : top) out.push_back({t.id(), t.logprob()});
  return out;
}

Finished ReadFinished(const v1::Finished& f) {
  return {.reason = f.reason() == "stop" ? FinishReason::kStop : FinishReason::kLength,
          .text = f.text(),
          .usage = {.prompt_tokens = f.prompt_tokens(),
                    .cached_tokens = f.cached_tokens(),
                    .generated_tokens = f.generated_tokens(),
                    .context_shifts = f.context_shifts(),
                    .drafted_tokens = f.drafted_tokens(),
                    .accepted_drafts = f.accepted_drafts(),
                    .to_first_token = Micros(f.to_first_token_us()),
                    .total = Micros(f.total_us())},
          .stop = f.stop(),
          .stop_id = f.has_stop_id() ? f.stop_id() : -1};
}

class RemoteTarget : public Target {
 public:
  RemoteTarget(ClusterAddress cluster, Coordinators coordinators)
      : cluster_(std::move(cluster)), coordinators_(std::move(coordinators)) {}

  Status FetchFacts() {
    v1::ModelReply reply;
    const auto ask = [&](const auto& channel, grpc::ClientContext* context) {
      SetDeadline(context, seconds(5));
      stub_ = v1::Inference::NewStub(channel);
      return stub_->Model(context, {}, &reply);
    };
    GYRE_RETURN_IF_ERROR(AskLeader(&coordinators_, cluster_, ask, std::min<Duration>(cluster_.reconnect, seconds(10))));
    facts_ = {.model = reply.path(),
              .architecture = reply.architecture(),
              .kv_type = reply.kv_type(),
              .context = reply.context(),
              .context_shift = reply.context_shift(),
              .rounds_prompts = reply.rounds_prompts(),
              .vocab = reply.vocab(),
              .tokenizer_note = reply.tokenizer_note(),
              .add_bos = reply.add_bos(),
              .bos = reply.bos()};
    return absl::OkStatus();
  }

  const TargetFacts& facts() const override { return facts_; }

  StatusOr<std::vector<TokenId>> Encode(const std::string& text, const EncodeOptions& options) override {
    v1::TokenizeRequest request;
    request.set_text(text);
    request.set_add_special(options.add_special);
    request.set_parse_special(options.parse_special);
    v1::TokenizeReply reply;
    GYRE_RETURN_IF_ERROR(AskUntilThere(request, &v1::Inference::Stub::Tokenize, &reply));
    return std::vector<TokenId>(reply.ids().begin(), reply.ids().end());
  }

  StatusOr<ChatPrompt> Prompt(const boost::json::array& messages, const boost::json::value& tools,
                              const std::string& format) override {
    v1::PromptRequest request;
    request.set_messages(boost::json::serialize(messages));
    if (!tools.is_null()) request.set_tools(boost::json::serialize(tools));
    request.set_format(format);
    v1::PromptReply reply;
    GYRE_RETURN_IF_ERROR(AskUntilThere(request, &v1::Inference::Stub::Prompt, &reply));
    return ChatPrompt{.ids = {reply.ids().begin(), reply.ids().end()},
                      .stop_ids = {reply.stop_ids().begin(), reply.stop_ids().end()},
                      .boundaries = {reply.boundaries().begin(), reply.boundaries().end()},
                      .format = reply.format(),
                      .answer = DecodeFormat(reply.answer())};
  }

  Status Run(Request request, const std::function<void(const Event&)>& on_event,
             const std::function<bool()>& interrupted) override {
    Progress progress;
    Outage outage(cluster_);
    for (;;) {
      const size_t before = progress.seen.size();
      const Status status = Call(request, &progress, on_event, interrupted);
      const bool text =
          request.max_new_tokens > 0 && !request.prompt_logits && !request.prompt_logprobs && !request.score;
      // A coordinator that never led this request may be asked again for anything.
      const bool unasked = last_.stands_by || (last_.absent && coordinators_.several());
      if (absl::IsNotFound(status) && progress.by_id) {
        // The coordinator forgot the request or never kept it: the new call brings along the tokens received so far.
        progress.by_id = false;
        progress.id.clear();
        continue;
      }
      const bool again = unasked || (text && (progress.accepted || progress.broke));
      if (!absl::IsUnavailable(status) || !again) return status;
      if (progress.seen.size() > before) outage.Over();
      if (outage.Began()) on_event(Waiting{status});
      if (!outage.Wait(interrupted)) {
        if (!interrupted()) return status;
        on_event(Cancelled{});
        return absl::OkStatus();
      }
      progress.by_id = !progress.id.empty();
      GYRE_RETURN_IF_ERROR(Connect());
    }
  }

  StatusOr<v1::StatusReply> FetchStatus() override { return gyre::FetchStatus(cluster_); }
  StatusOr<v1::ChangeReply> Resize(const std::string& ranges) override { return AskResize(cluster_, ranges); }

 private:
  // The progress of a request, as this side knows it.
  struct Progress {
    bool accepted = false;  // the coordinator took it once
    bool broke = false;     // the connection ended, and no coordinator has said why
    bool by_id = false;     // it is to be reattached by its id
    std::string id;
    std::vector<TokenEvent> seen;  // without their texts
  };
  // The time since the coordinator was lost.
  class Outage {
   public:
    explicit Outage(const ClusterAddress& cluster) : longest_(cluster.reconnect) {}
    // Returns true if the outage begins now.
    bool Began() {
      if (since_ != kNoDeadline || longest_ == Duration{}) return false;
      since_ = Clock::now();
      return true;
    }
    void Over() { since_ = kNoDeadline; }
    // Waits until the next attempt. Returns false if there is none.
    bool Wait(const std::function<bool()>& interrupted) {
      for (int i = 0; i < 10; ++i) {
        if (longest_ == Duration{} || Clock::now() - since_ > longest_ || interrupted()) return false;
        std::this_thread::sleep_for(milliseconds(20));
      }
      return true;
    }

   private:
    const Duration longest_;
    Deadline since_ = kNoDeadline;
  };

  // Connects to the next coordinator, or to the same one again. A channel to an address that was lost waits longer and
  // longer before it tries again; a new channel tries at once.
  Status Connect() {
    if (last_.stands_by || last_.absent) coordinators_.Next(last_.leader);
    GYRE_ASSIGN_OR_RETURN(auto channel, MakeChannel(coordinators_.current(), {.own_connection = true,
                                                                              .impatient = coordinators_.several(),
                                                                              .identity = cluster_.identity}));
    stub_ = v1::Inference::NewStub(channel);
    return absl::OkStatus();
  }

  // Makes a call that changes nothing, and repeats it while the coordinator is away.
  template <typename Ask, typename Reply>
  Status AskUntilThere(const Ask& ask,
                       grpc::Status (v1::Inference::Stub::*call)(grpc::ClientContext*, const Ask&, Reply*),
                       Reply* reply) {
    Outage outage(cluster_);
    for (;;) {
      grpc::ClientContext context;
      SetDeadline(&context, seconds(30));
      last_ = MakeCall(coordinators_.current(), cluster_.interrupted, &context,
                       [&] { return ((*stub_).*call)(&context, ask, reply); });
      if (!absl::IsUnavailable(last_.status)) return last_.status;
      outage.Began();
      if (!outage.Wait(cluster_.interrupted))
        return cluster_.interrupted() ? StoppedAt(coordinators_.current()) : last_.status;
      GYRE_RETURN_IF_ERROR(Connect());
    }
  }

  // Makes one call and waits for its end, or for the coordinator's.
  Status Call(const Request& request, Progress* progress, const std::function<void(const Event&)>& on_event,
              const std::function<bool()>& interrupted) {
    grpc::ClientContext context;
    // The end of the call ends the request.
    last_ = MakeCall(coordinators_.current(), interrupted, &context, [&] {
      return request.prompt_logits || request.score ? Score(&context, request, on_event)
                                                    : Generate(&context, request, progress, on_event);
    });
    if (absl::IsCancelled(last_.status) && interrupted()) {
      on_event(Cancelled{});
      return absl::OkStatus();
    }
    if (last_.status.ok()) coordinators_.Found();
    return last_.status;
  }

  static v1::GenerateRequest Encode(const Request& r, const Progress& progress) {
    v1::GenerateRequest request;
    if (progress.by_id) {
      request.set_request_id(progress.id);
    } else {
      request = EncodeRequest(r);
      for (const TokenEvent& token : progress.seen) request.add_generated(token.token);
    }
    request.set_resume_after(static_cast<uint32_t>(r.generated.size() + progress.seen.size()));
    if (progress.seen.empty()) request.set_resume_after(0);
    return request;
  }

  grpc::Status Generate(grpc::ClientContext* context, const Request& r, Progress* progress,
                        const std::function<void(const Event&)>& on_event) {
    const auto reader = stub_->Generate(context, Encode(r, *progress));
    reader->WaitForInitialMetadata();
    const auto& metadata = context->GetServerInitialMetadata();
    if (const auto id = metadata.find("x-request-id"); id != metadata.end()) {
      progress->accepted = true;
      progress->id.assign(id->second.data(), id->second.size());
    }
    for (v1::GenerateEvent event; reader->Read(&event);) {
      if (event.has_token()) {
        const v1::Token& t = event.token();
        progress->seen.push_back({.token = t.id()});
        on_event(TokenEvent{.token = t.id(),
                            .probability = t.probability(),
                            .text = t.text(),
                            .logprob = t.logprob(),
                            .top = ReadTop(t.top())});
      } else if (event.has_prompt_token()) {
        const v1::PromptToken& t = event.prompt_token();
        on_event(PromptTokenEvent{
            .position = t.position(), .token = t.id(), .logprob = t.logprob(), .top = ReadTop(t.top())});
      } else if (event.has_embedding()) {
        on_event(EmbeddingEvent{{event.embedding().values().begin(), event.embedding().values().end()}});
      } else if (event.has_notice()) {
        on_event(Waiting{Unavailable("{}", event.notice().text())});
      } else if (event.has_finished()) {
        on_event(ReadFinished(event.finished()));
      }
    }
    grpc::Status status = reader->Finish();
    progress->broke = context->GetServerTrailingMetadata().count("x-request-id") == 0;
    // The coordinator itself refuses the request: there is nothing to reattach to.
    if (progress->seen.empty() && !progress->broke) progress->accepted = false;
    return status;
  }

  // Callers index by the position.
  static bool WasAsked(const Request& r, const v1::ScoreEvent& event) {
    const size_t at = event.position();
    return at >= r.score->from && at < r.prompt.size() && event.id() == r.prompt[at];
  }

  grpc::Status Score(grpc::ClientContext* context, const Request& r,
                     const std::function<void(const Event&)>& on_event) {
    v1::ScoreRequest request;
    request.mutable_ids()->Add(r.prompt.begin(), r.prompt.end());
    request.set_cache_salt(r.cache_salt);
    request.set_tenant(r.tenant);
    request.set_priority(r.priority);
    request.set_adapter(r.adapter);
    if (r.score) {
      request.set_score_from(r.score->from);
      request.set_top(r.score->top);
      request.set_logits(r.score->logits);
      request.set_generated(r.score->generated);
      for (const auto& ids : r.score->named) request.add_named()->mutable_ids()->Add(ids.begin(), ids.end());
    }
    const auto reader = stub_->Score(context, request);
    for (v1::ScoreEvent event; reader->Read(&event);) {
      if (!event.has_finished() && !event.has_notice() && r.score && !WasAsked(r, event)) {
        context->TryCancel();
        reader->Finish();
        return {grpc::StatusCode::INTERNAL, fmt::format("the coordinator scored token {} at position {}: nobody asked",
                                                        event.id(), event.position())};
      }
      std::vector<float> logits(event.logits().size() / sizeof(float));
      if (!logits.empty()) std::memcpy(logits.data(), event.logits().data(), logits.size() * sizeof(float));
      if (event.has_finished()) {
        on_event(ReadFinished(event.finished()));
      } else if (event.has_notice()) {
        on_event(Waiting{Unavailable("{}", event.notice().text())});
      } else if (!r.score) {
        on_event(LogitsEvent{.position = event.position(), .logits = std::move(logits)});
      } else {
        on_event(PromptTokenEvent{.position = event.position(),
                                  .token = event.id(),
                                  .logprob = event.logprob(),
                                  .top = ReadTop(event.top()),
                                  .rest = event.rest(),
                                  .named = ReadTop(event.named()),
                                  .logits = std::move(logits)});
      }
    }
    return reader->Finish();
  }

  const ClusterAddress cluster_;
  Coordinators coordinators_;
  CallEnd last_;  // of the last call that failed or came to its end
  std::unique_ptr<v1::Inference::Stub> stub_;
  TargetFacts facts_;
};

}  // namespace

StatusOr<std::unique_ptr<Target>> OpenRemote(const ClusterAddress& cluster) {
  GYRE_ASSIGN_OR_RETURN(Coordinators coordinators, Coordinators::Parse(cluster.address));
  auto target = std::make_unique<RemoteTarget>(cluster, std::move(coordinators));
  GYRE_RETURN_IF_ERROR(target->FetchFacts());
  return std::unique_ptr<Target>(std::move(target));
}

}  // namespace gyre
