#include "runtime/draft_node.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "coordinator/engine/request_codec.h"
#include "gyre/v1/cluster.grpc.pb.h"
#include "gyre/v1/drafts.grpc.pb.h"
#include "model/quoted.h"
#include "proto/channel.h"
#include "proto/control_codec.h"
#include "proto/convert.h"
#include "proto/coordinators.h"
#include "runtime/model_drafter.h"
#include "worker/catch_exhausted.h"
#include "worker/device_room.h"
#include "worker/node_identity.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using Stream = grpc::ClientReaderWriter<v1::DraftsEvent, v1::DraftsCommand>;

// What a coordinator may ask for: it is not trusted with this machine's memory.
constexpr uint32_t kMostIds = 1 << 24, kMostContext = 1 << 26, kMostTexts = 1 << 12, kMostDrafts = 64;

class DraftNode {
 public:
  DraftNode(const DraftNodeOptions& options, const std::function<bool()>& stopped)
      : options_(options), stopped_(stopped), identity_(options.identity, options.join) {}

  Status Run();

 private:
  void Say(const std::string& line) {
    if (options_.say) options_.say(line);
  }
  void Sleep(Duration d) {
    for (const Deadline end = After(d); !stopped_() && Clock::now() < end;)
      std::this_thread::sleep_for(milliseconds(50));
  }
  // Whether the coordinator at at_ leads. Says why it waits, once.
  bool FindsLeader(v1::Cluster::Stub& stub);
  // Until the stream ends. OK: it ended, or was stopped. An error: no use to come back.
  Status Attached(v1::Drafts::Stub& stub, v1::Cluster::Stub& cluster);
  Status Stay(Stream& stream);
  StatusOr<uint32_t> TextsThatFit(const v1::DraftsWelcome& welcome) const;
  // What comes before the questions.
  StatusOr<v1::DraftsWelcome> ReadWelcome(Stream& stream, TokenList* target);
  void Serve(const v1::DraftsQuestion& question, ModelDrafter& drafter, Stream& stream);

  const DraftNodeOptions& options_;
  const std::function<bool()>& stopped_;
  NodeIdentity identity_;
  Coordinators coordinators_;
  std::string at_, name_, waiting_;
  Mutex mutex_;  // of writes to the stream
};

Status DraftNode::Run() {
  GYRE_ASSIGN_OR_RETURN(coordinators_, Coordinators::Parse(options_.join));
  GYRE_ASSIGN_OR_RETURN(name_, identity_.WorkerName(options_.name));
  while (!stopped_()) {
    at_ = coordinators_.current();
    GYRE_ASSIGN_OR_RETURN(const auto channel, MakeChannel(at_, {.own_connection = true,
                                                                .keepalive = true,
                                                                .impatient = coordinators_.several(),
                                                                .identity = identity_.current()}));
    const auto cluster = v1::Cluster::NewStub(channel);
    if (!FindsLeader(*cluster)) continue;
    const auto stub = v1::Drafts::NewStub(channel);
    GYRE_RETURN_IF_ERROR(Attached(*stub, *cluster));
    Sleep(milliseconds(500));
  }
  return absl::OkStatus();
}

bool DraftNode::FindsLeader(v1::Cluster::Stub& stub) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(coordinators_.several() ? 1 : 2));
  v1::InfoRequest request;
  request.set_protocol(kControlProtocol);
  v1::ClusterInfo info;
  const grpc::Status status = stub.Info(&context, request, &info);
  if (status.ok()) {
    coordinators_.Found();
    waiting_.clear();
    return true;
  }
  if (coordinators_.Next(ReadLeader(context).leader)) return false;
  const std::string why = WhyNotReached(status);
  if (std::exchange(waiting_, why) != why)
    Say(fmt::format("waiting for the coordinator at {}: {}", options_.join, why));
  Sleep(milliseconds(500));
  return false;
}

Status DraftNode::Attached(v1::Drafts::Stub& stub, v1::Cluster::Stub& cluster) {
  grpc::ClientContext context;
  const auto stream = stub.Draft(&context);
  std::atomic<bool> ended{false};
  StatusOr<std::thread> watcher = StartThread("drafting", [&] {
    while (!ended && !stopped_()) {
      std::this_thread::sleep_for(milliseconds(50));
      identity_.RenewIfDue(cluster);
    }
    if (!ended) context.TryCancel();
  });
  GYRE_RETURN_IF_ERROR(watcher.status());
  const Status status = CatchExhausted([&] { return Stay(*stream); });
  // An error of this side ends the call, too.
  if (!status.ok()) context.TryCancel();
  const Status end = FromGrpcAt(stream->Finish(), at_);
  ended = true;
  watcher->join();
  GYRE_RETURN_IF_ERROR(status);
  if (stopped_()) return absl::OkStatus();
  const bool refused = absl::IsFailedPrecondition(end) || absl::IsInvalidArgument(end) || absl::IsUnimplemented(end) ||
                       end.code() == absl::StatusCode::kPermissionDenied;
  if (refused) return Annotate(end, "the coordinator refuses this worker's drafts");
  Say(fmt::format("lost the coordinator ({}); waiting for it", Message(end)));
  return absl::OkStatus();
}

StatusOr<v1::DraftsWelcome> DraftNode::ReadWelcome(Stream& stream, TokenList* target) {
  v1::DraftsCommand command;
  if (!stream.Read(&command) || !command.has_welcome()) return v1::DraftsWelcome();  // Finish says why
  const v1::DraftsWelcome welcome = command.welcome();
  if (welcome.ids() > kMostIds || welcome.tokens() > kMostIds || welcome.context() > kMostContext ||
      welcome.texts() > kMostTexts || welcome.context() == 0 || welcome.texts() == 0) {
    return InvalidArgument("the coordinator at {} tells of {} ids, {} texts and {} positions", at_, welcome.ids(),
                           welcome.texts(), welcome.context());
  }
  target->ids = static_cast<int>(welcome.ids());
  while (target->tokens.size() < welcome.tokens()) {
    if (!stream.Read(&command)) return v1::DraftsWelcome();
    const v1::DraftsVocabulary& some = command.vocabulary();
    if (some.texts_size() == 0 || static_cast<size_t>(some.texts_size()) != some.types().size() ||
        target->tokens.size() + some.types().size() > welcome.tokens()) {
      return InvalidArgument("the coordinator at {} tells its vocabulary in another way", at_);
    }
    for (int i = 0; i < some.texts_size(); ++i)
      target->tokens.push_back({some.texts(i), static_cast<TokenType>(some.types()[static_cast<size_t>(i)])});
  }
  return welcome;
}

// The number of whole contexts that fit into memory, at most as many as run at once. If more texts run, the one that
// was unused for longest loses its pages.
StatusOr<uint32_t> DraftNode::TextsThatFit(const v1::DraftsWelcome& welcome) const {
  const std::optional<DeviceRoom> device = options_.device->room();
  const uint64_t room = device ? RoomForLayers(*device) : AvailableMemory() / 10 * 9;
  for (uint32_t texts = welcome.texts();; texts = (texts + 1) / 2) {
    GYRE_ASSIGN_OR_RETURN(const uint64_t bytes, DraftModelBytes(*options_.model, uint64_t{texts} * welcome.context()));
    if (texts == 1 || room == 0 || bytes <= room) return texts;
  }
}

Status DraftNode::Stay(Stream& stream) {
  v1::DraftsEvent event;
  event.mutable_hello()->set_protocol(kControlProtocol);
  event.mutable_hello()->set_name(name_);
  event.mutable_hello()->set_version(options_.version);
  if (!stream.Write(event)) return absl::OkStatus();
  TokenList target;
  GYRE_ASSIGN_OR_RETURN(const v1::DraftsWelcome welcome, ReadWelcome(stream, &target));
  if (welcome.context() == 0) return absl::OkStatus();
  GYRE_ASSIGN_OR_RETURN(const uint32_t texts, TextsThatFit(welcome));
  GYRE_ASSIGN_OR_RETURN(const auto drafter, ModelDrafter::Open({.model = options_.model,
                                                                .target = std::move(target),
                                                                .target_name = Printable(welcome.model()),
                                                                .device = options_.device,
                                                                .context = welcome.context(),
                                                                .texts = texts}));
  event.set_ready(true);
  if (!stream.Write(event)) return absl::OkStatus();
  Say(fmt::format("drafts for {} at {} as {}", Printable(welcome.model()), at_, name_));
  v1::DraftsCommand command;
  while (stream.Read(&command)) {
    if (command.has_question()) Serve(command.question(), *drafter, stream);
  }
  drafter->Stop();  // its answers use the stream
  return absl::OkStatus();
}

void DraftNode::Serve(const v1::DraftsQuestion& question, ModelDrafter& drafter, Stream& stream) {
  for (const uint64_t text : question.ended()) drafter.End(SeqId{text});
  const auto answer = [this, number = question.number(), &stream](const std::vector<TokenId>& drafts) {
    v1::DraftsEvent event;
    event.mutable_answer()->set_question(number);
    event.mutable_answer()->mutable_tokens()->Assign(drafts.begin(), drafts.end());
    MutexLock lock(&mutex_);
    stream.Write(event);
  };
  const size_t size = static_cast<size_t>(question.tokens_size());
  SamplingParams sampling = DecodeRequest(question.settings()).sampling;
  const bool wrong = size == 0 || !sampling.Validate(options_.model->spec().vocab).ok() || question.assumed() > size ||
                     question.first() > kMostContext ||
                     std::any_of(question.tokens().begin(), question.tokens().end(), [](int32_t id) { return id < 0; });
  if (wrong) return answer({});
  drafter.Draft({.seq = SeqId{question.text()},
                 .first = question.first(),
                 .tokens = {question.tokens().begin(), question.tokens().end()},
                 .assumed = question.assumed(),
                 .prompt = question.prompt(),
                 .most = std::min(question.most(), kMostDrafts),
                 .sampling = std::move(sampling)},
                answer);
}

}  // namespace

Status RunDraftNode(const DraftNodeOptions& options, const std::function<bool()>& stopped) {
  return DraftNode(options, stopped).Run();
}

}  // namespace gyre
