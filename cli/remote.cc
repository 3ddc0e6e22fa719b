#include "cli/remote.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <boost/json.hpp>
#include <cstring>
#include <thread>

#include "base/plan.h"
#include "cli/session.h"
#include "gyre/v1/admin.grpc.pb.h"
#include "gyre/v1/inference.grpc.pb.h"
#include "proto/channel.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

void SetDeadline(grpc::ClientContext* context, Duration d) {
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::duration_cast<std::chrono::system_clock::duration>(d));
}

Duration Micros(int64_t us) { return std::chrono::microseconds(us); }

class RemoteTarget : public Target {
 public:
  RemoteTarget(std::string cluster, std::shared_ptr<grpc::Channel> channel)
      : cluster_(std::move(cluster)), stub_(v1::Inference::NewStub(channel)) {}

  Status FetchFacts() {
    grpc::ClientContext context;
    SetDeadline(&context, seconds(5));
    v1::ModelReply reply;
    GYRE_RETURN_IF_ERROR(FromGrpcAt(stub_->Model(&context, {}, &reply), cluster_));
    facts_ = {.model = reply.path(),
              .architecture = reply.architecture(),
              .kv_type = reply.kv_type(),
              .context = reply.context(),
              .vocab = reply.vocab(),
              .tokenizer_note = reply.tokenizer_note(),
              .add_bos = reply.add_bos(),
              .bos = reply.bos()};
    return absl::OkStatus();
  }

  const TargetFacts& facts() const override { return facts_; }

  StatusOr<std::vector<TokenId>> Encode(const std::string& text, const EncodeOptions& options) override {
    grpc::ClientContext context;
    SetDeadline(&context, seconds(30));
    v1::TokenizeRequest request;
    request.set_text(text);
    request.set_add_special(options.add_special);
    request.set_parse_special(options.parse_special);
    v1::TokenizeReply reply;
    GYRE_RETURN_IF_ERROR(FromGrpcAt(stub_->Tokenize(&context, request, &reply), cluster_));
    return std::vector<TokenId>(reply.ids().begin(), reply.ids().end());
  }

  StatusOr<ChatPrompt> Prompt(const boost::json::array& messages, const std::string& format) override {
    grpc::ClientContext context;
    SetDeadline(&context, seconds(30));
    v1::PromptRequest request;
    request.set_messages(boost::json::serialize(messages));
    request.set_format(format);
    v1::PromptReply reply;
    GYRE_RETURN_IF_ERROR(FromGrpcAt(stub_->Prompt(&context, request, &reply), cluster_));
    return ChatPrompt{.ids = {reply.ids().begin(), reply.ids().end()},
                      .stop_ids = {reply.stop_ids().begin(), reply.stop_ids().end()},
                      .format = reply.format()};
  }

  Status Run(Request request, const std::function<void(const Event&)>& on_event) override {
    grpc::ClientContext context;
    // Ctrl-C ends the call, and with it the request.
    std::atomic<bool> done{false};
    std::thread watcher([&] {
      while (!done && !InterruptGuard::Interrupted()) std::this_thread::sleep_for(milliseconds(20));
      if (!done) context.TryCancel();
    });
    const grpc::Status status =
        request.prompt_logits ? Score(&context, request, on_event) : Generate(&context, request, on_event);
    done = true;
    watcher.join();
    if (status.error_code() == grpc::StatusCode::CANCELLED && InterruptGuard::Interrupted()) {
      on_event(Cancelled{});
      return absl::OkStatus();
    }
    return FromGrpcAt(status, cluster_);
  }

  StatusOr<std::string> DescribeLayers() override {
    GYRE_ASSIGN_OR_RETURN(const v1::StatusReply reply, FetchStatus(cluster_));
    return FormatLayers(reply);
  }
  StatusOr<std::string> DescribeStatus() override {
    GYRE_ASSIGN_OR_RETURN(const v1::StatusReply reply, FetchStatus(cluster_));
    return FormatStatus(reply);
  }
  StatusOr<std::string> Resize(const std::string& ranges) override {
    GYRE_ASSIGN_OR_RETURN(const v1::ChangeReply reply, AskResize(cluster_, ranges));
    return FormatChange(reply);
  }

 private:
  grpc::Status Generate(grpc::ClientContext* context, const Request& r,
                        const std::function<void(const Event&)>& on_event) {
    v1::GenerateRequest request;
    request.mutable_ids()->Add(r.prompt.begin(), r.prompt.end());
    request.set_max_new_tokens(r.max_new_tokens);
    request.set_ignore_end(r.ignore_end);
    request.set_priority(r.priority);
    for (const std::string& stop : r.stops) request.add_stops(stop);
    request.mutable_stop_ids()->Add(r.stop_ids.begin(), r.stop_ids.end());
    v1::Sampling* s = request.mutable_sampling();
    s->set_temperature(r.sampling.temperature);
    s->set_top_k(r.sampling.top_k);
    s->set_top_p(r.sampling.top_p);
    s->set_min_p(r.sampling.min_p);
    s->set_repetition_penalty(r.sampling.repetition_penalty);
    s->set_frequency_penalty(r.sampling.frequency_penalty);
    s->set_presence_penalty(r.sampling.presence_penalty);
    s->set_penalty_last_n(r.sampling.penalty_last_n);
    s->set_seed(r.sampling.seed);
    for (const auto& [id, bias] : r.sampling.logit_bias) (*s->mutable_logit_bias())[id] += bias;
    const auto reader = stub_->Generate(context, request);
    for (v1::GenerateEvent event; reader->Read(&event);) {
      if (event.has_token()) {
        on_event(TokenEvent{
            .token = event.token().id(), .probability = event.token().probability(), .text = event.token().text()});
      } else if (event.has_finished()) {
        const v1::Finished& f = event.finished();
        on_event(Finished{.reason = f.reason() == "stop" ? FinishReason::kStop : FinishReason::kLength,
                          .text = f.text(),
                          .usage = {.prompt_tokens = f.prompt_tokens(),
                                    .cached_tokens = f.cached_tokens(),
                                    .generated_tokens = f.generated_tokens(),
                                    .to_first_token = Micros(f.to_first_token_us()),
                                    .total = Micros(f.total_us())}});
      }
    }
    return reader->Finish();
  }

  grpc::Status Score(grpc::ClientContext* context, const Request& r,
                     const std::function<void(const Event&)>& on_event) {
    v1::ScoreRequest request;
    request.mutable_ids()->Add(r.prompt.begin(), r.prompt.end());
    const auto reader = stub_->Score(context, request);
    for (v1::ScoreEvent event; reader->Read(&event);) {
      LogitsEvent row{.position = event.position(),
                      .logits = std::vector<float>(event.logits().size() / sizeof(float))};
      std::memcpy(row.logits.data(), event.logits().data(), row.logits.size() * sizeof(float));
      on_event(row);
    }
    return reader->Finish();
  }

  const std::string cluster_;
  const std::unique_ptr<v1::Inference::Stub> stub_;
  TargetFacts facts_;
};

}  // namespace

StatusOr<std::unique_ptr<Target>> OpenRemote(const std::string& cluster) {
  GYRE_ASSIGN_OR_RETURN(auto channel, MakeChannel(cluster));
  auto target = std::make_unique<RemoteTarget>(cluster, std::move(channel));
  GYRE_RETURN_IF_ERROR(target->FetchFacts());
  return std::unique_ptr<Target>(std::move(target));
}

StatusOr<v1::StatusReply> FetchStatus(const std::string& cluster) {
  GYRE_ASSIGN_OR_RETURN(const auto channel, MakeChannel(cluster));
  const auto stub = v1::Admin::NewStub(channel);
  grpc::ClientContext context;
  SetDeadline(&context, seconds(5));
  v1::StatusReply reply;
  GYRE_RETURN_IF_ERROR(FromGrpcAt(stub->Status(&context, {}, &reply), cluster));
  return reply;
}

StatusOr<v1::ChangeReply> AskResize(const std::string& cluster, const std::string& ranges) {
  GYRE_ASSIGN_OR_RETURN(const auto channel, MakeChannel(cluster));
  const auto stub = v1::Admin::NewStub(channel);
  grpc::ClientContext context;
  v1::ResizeRequest request;
  request.set_ranges(ranges);
  v1::ChangeReply reply;
  GYRE_RETURN_IF_ERROR(FromGrpcAt(stub->Resize(&context, request, &reply), cluster));
  return reply;
}

StatusOr<v1::ChangeReply> AskDrain(const std::string& cluster, const std::string& worker) {
  GYRE_ASSIGN_OR_RETURN(const auto channel, MakeChannel(cluster));
  const auto stub = v1::Admin::NewStub(channel);
  grpc::ClientContext context;
  v1::DrainRequest request;
  request.set_worker(worker);
  v1::ChangeReply reply;
  GYRE_RETURN_IF_ERROR(FromGrpcAt(stub->Drain(&context, request, &reply), cluster));
  return reply;
}

std::string FormatLayers(const v1::StatusReply& status) {
  std::string out = fmt::format("{:<16} {:>9} {:>9} {:>9} {:>7} {:>6}  {}\n", "worker", "layers", "weights", "KV",
                                "threads", "busy", "where");
  auto mib = [](uint64_t bytes) { return fmt::format("{:.1f}M", static_cast<double>(bytes) / (1 << 20)); };
  for (const v1::MemberStatus& m : status.members()) {
    out += fmt::format("{:<16} {:>9} {:>9} {:>9} {:>7} {:>5.0f}%  {}\n", m.name(),
                       m.has_layers() ? FormatRange({m.layers().begin(), m.layers().end()}) : "-",
                       m.has_layers() ? mib(m.weight_bytes()) : "-", m.has_layers() ? mib(m.kv_bytes()) : "-",
                       m.threads(), m.busy() * 100, m.host().empty() ? "the coordinator" : m.host());
  }
  return out;
}

std::string FormatStatus(const v1::StatusReply& s) {
  std::string out = fmt::format("{} ({} layers, context {})\n", s.model(), s.num_layers(), s.context());
  out += s.has_epoch() ? fmt::format("plan {}: {}; {}\n", s.epoch().number(), s.ranges(), s.state()) : s.state() + "\n";
  out += fmt::format("requests: {} running, {} finished, {} failed, {} cancelled; {} tokens generated\n",
                     s.sequences_size(), s.finished(), s.failed(), s.cancelled(), s.tokens_generated());
  out += fmt::format("KV blocks: {} of {} free\n", s.blocks_available(), s.blocks());
  uint64_t rows = 0, bytes = 0;
  for (const v1::MemberStatus& m : s.members()) {
    rows += m.rows_sent();
    bytes += m.row_bytes_sent();
  }
  if (rows > 0) {
    out += fmt::format("ring: activations as {}; {:.1f} MiB between stages, {} bytes a row\n", s.wire(),
                       static_cast<double>(bytes) / (1 << 20), bytes / rows);
  }
  if (s.plans() > 1 || s.aborted() > 0 || s.lost() > 0) {
    out += fmt::format("plans: {} made, {} given up, {} lost; last pause {:.1f} ms, longest {:.1f} ms\n", s.plans(),
                       s.aborted(), s.lost(), s.last_pause_ms(), s.longest_pause_ms());
  }
  return out + FormatLayers(s);
}

std::string FormatChange(const v1::ChangeReply& c) {
  return fmt::format("plan {}: {} after {:.0f} ms; {} KV pages moved, {} of them in the pause\n", c.epoch().number(),
                     c.ranges(), c.took_ms(), c.pages_moved(), c.last_pages());
}

}  // namespace gyre
