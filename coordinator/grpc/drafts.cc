// The service of workers that draft: a stream each, answers up, questions down (docs/speculation.md).
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "base/log.h"
#include "coordinator/engine/remote_drafter.h"
#include "coordinator/engine/request_codec.h"
#include "coordinator/grpc/services.h"
#include "gyre/v1/drafts.grpc.pb.h"
#include "model/quoted.h"
#include "model/tokenizer.h"
#include "proto/control_codec.h"
#include "proto/convert.h"
#include "proto/credentials.h"

namespace gyre {
namespace {

// Messages that wait for the network: a worker that takes in nothing more is given up.
constexpr size_t kMostWaiting = 10000;
constexpr size_t kMostName = 256;
constexpr int kMostStreams = 16;           // each may have a vocabulary on its way
constexpr TokenId kTokensAMessage = 4096;  // of the vocabulary

class DraftsReactor : public grpc::ServerBidiReactor<v1::DraftsEvent, v1::DraftsCommand> {
 public:
  // streams: how many there are.
  DraftsReactor(grpc::CallbackServerContext* context, const GrpcServerOptions& options, const Model& model,
                std::atomic<int>& streams)
      : context_(context), options_(options), model_(model), streams_(streams) {
    ++streams_;
    StartRead(&event_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(Unavailable("the connection ended"));
    const gyre::Status status = OnEvent();
    if (!status.ok()) return End(status);
    StartRead(&event_);
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    waiting_.pop_front();
    if (ok && !waiting_.empty() && !finished_) StartWrite(&waiting_.front());
  }
  void OnCancel() override {}
  void OnDone() override {
    Detach();
    --streams_;
    delete this;
  }

 private:
  gyre::Status OnEvent() {
    if (event_.has_hello()) return OnHello(event_.hello());
    if (name_.empty()) return InvalidArgument("its first message is not a hello");
    if (event_.has_ready()) return OnReady();
    if (event_.has_answer()) {
      const auto& tokens = event_.answer().tokens();
      options_.drafter->Answer(number_, event_.answer().question(), {tokens.begin(), tokens.end()});
    }
    return absl::OkStatus();
  }
  gyre::Status OnHello(const v1::DraftsHello& hello) {
    if (!name_.empty()) return InvalidArgument("a second hello");
    if (hello.protocol() != kControlProtocol) {
      return FailedPrecondition("the worker speaks protocol {}, the coordinator ({}) {}", hello.protocol(),
                                options_.version, kControlProtocol);
    }
    if (hello.name().empty() || hello.name().size() > kMostName)
      return InvalidArgument("a name of {} bytes, expected 1 to {}", hello.name().size(), kMostName);
    const std::optional<Principal> caller = CallerOf(*context_->auth_context());
    if (caller && caller->name != hello.name())
      return FailedPrecondition("it calls itself {}, its certificate is that of {}", Printable(hello.name()),
                                Describe(*caller));
    if (streams_ > kMostStreams) return Unavailable("{} other workers ask to draft", streams_ - 1);
    if (options_.drafter == nullptr)
      return FailedPrecondition(
          "this coordinator takes no drafts of others: it has a draft model itself, or --speculation says so");
    GYRE_RETURN_IF_ERROR(options_.drafter->CheckAttach(Printable(hello.name())));
    name_ = Printable(hello.name());
    const Tokenizer* tokenizer = model_.tokenizer();
    v1::DraftsCommand command;
    v1::DraftsWelcome& welcome = *command.mutable_welcome();
    welcome.set_model(model_.path());
    welcome.set_ids(static_cast<uint32_t>(model_.spec().vocab));
    welcome.set_tokens(tokenizer != nullptr ? static_cast<uint32_t>(tokenizer->size()) : 0);
    welcome.set_context(options_.context);
    welcome.set_texts(options_.texts);
    Write(std::move(command));
    for (TokenId first = 0; tokenizer != nullptr && first < tokenizer->size(); first += kTokensAMessage) {
      v1::DraftsCommand part;
      v1::DraftsVocabulary& some = *part.mutable_vocabulary();
      for (TokenId id = first; id < std::min(tokenizer->size(), first + kTokensAMessage); ++id) {
        some.add_texts(tokenizer->Text(id));
        some.mutable_types()->push_back(static_cast<char>(tokenizer->type(id)));
      }
      Write(std::move(part));
    }
    return absl::OkStatus();
  }
  gyre::Status OnReady() {
    if (number_ != 0) return InvalidArgument("it was ready already");
    GYRE_ASSIGN_OR_RETURN(number_,
                          options_.drafter->Attach({.name = name_,
                                                    .ask = [this](auto... of) { Ask(std::move(of)...); },
                                                    .displaced = [this](const gyre::Status& why) { Displace(why); },
                                                    .accepted = [this] { return Accepted(); }}));
    Log(LogLevel::kInfo, "{} drafts for this coordinator", name_);
    return absl::OkStatus();
  }
  gyre::Status Accepted() const {
    if (options_.identity == nullptr) return absl::OkStatus();
    return CheckCaller(*context_->auth_context(), *options_.identity->current()).status();
  }
  void Ask(uint64_t number, DraftQuestion q, std::vector<SeqId> ended) {
    v1::DraftsCommand command;
    v1::DraftsQuestion& out = *command.mutable_question();
    out.set_number(number);
    out.set_text(static_cast<uint64_t>(q.seq));
    out.set_first(q.first);
    out.mutable_tokens()->Assign(q.tokens.begin(), q.tokens.end());
    out.set_assumed(q.assumed);
    out.set_prompt(q.prompt);
    out.set_most(q.most);
    Request settings;
    settings.sampling = std::move(q.sampling);
    *out.mutable_settings() = EncodeRequest(settings);
    for (const SeqId seq : ended) out.add_ended(static_cast<uint64_t>(seq));
    Write(std::move(command));
  }
  // The stream ends, with this reason. Any thread.
  void Displace(const gyre::Status& why) {
    {
      MutexLock lock(&mutex_);
      if (std::exchange(finished_, true)) return;
    }
    Log(LogLevel::kInfo, "{} drafts no more: {}", name_, Message(why));
    Finish(ToGrpc(why));
  }
  void Write(v1::DraftsCommand command) {
    MutexLock lock(&mutex_);
    if (finished_) return;
    if (waiting_.size() >= kMostWaiting) return context_->TryCancel();
    waiting_.push_back(std::move(command));
    if (waiting_.size() == 1) StartWrite(&waiting_.front());
  }
  void End(const gyre::Status& why) {
    const bool served = number_ != 0;
    Detach();
    {
      MutexLock lock(&mutex_);
      if (std::exchange(finished_, true)) return;
    }
    if (served)
      Log(LogLevel::kInfo, "{} drafts no more: {}", name_, Message(why));
    else if (!absl::IsUnavailable(why))
      Log(LogLevel::kWarn, "a worker at {} may not draft: {}", context_->peer(), Message(why));
    Finish(ToGrpc(why));
  }
  void Detach() {
    if (const uint64_t number = std::exchange(number_, 0); number != 0) options_.drafter->Detach(number);
  }

  grpc::CallbackServerContext* const context_;
  const GrpcServerOptions& options_;
  const Model& model_;
  std::atomic<int>& streams_;
  v1::DraftsEvent event_;
  std::string name_;     // once it has said hello
  uint64_t number_ = 0;  // RemoteDrafter's, once it is ready
  Mutex mutex_;
  std::deque<v1::DraftsCommand> waiting_ GYRE_GUARDED_BY(mutex_);  // the first one is being written
  bool finished_ GYRE_GUARDED_BY(mutex_) = false;
};

class DraftsService : public v1::Drafts::CallbackService {
 public:
  DraftsService(const GrpcServerOptions& options, const Model& model) : options_(options), model_(model) {}
  grpc::ServerBidiReactor<v1::DraftsEvent, v1::DraftsCommand>* Draft(grpc::CallbackServerContext* context) override {
    return new DraftsReactor(context, options_, model_, streams_);
  }

 private:
  const GrpcServerOptions& options_;
  const Model& model_;
  std::atomic<int> streams_{0};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeDraftsService(const GrpcServerOptions& options, const Model& model) {
  return std::make_unique<DraftsService>(options, model);
}

}  // namespace gyre
