#include "worker/node.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "base/inbox.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/mutex.h"
#include "base/ring_address.h"
#include "gyre/v1/cluster.grpc.pb.h"
#include "proto/channel.h"
#include "proto/control_codec.h"
#include "proto/convert.h"
#include "proto/coordinators.h"
#include "proto/credentials.h"
#include "transport/ring_port.h"
#include "transport/tcp_link.h"
#include "weights/link_prober.h"
#include "weights/room_watch.h"
#include "weights/weight_stock.h"
#include "worker/event_outbox.h"
#include "worker/node_identity.h"
#include "worker/node_model.h"
#include "worker/worker.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;

constexpr auto kHeartbeat = milliseconds(250);
constexpr auto kLooksAtDisk = std::chrono::seconds(3);
// The time for which a worker without its coordinator keeps its stage: the coordinator may take it up again. One with a
// state may be started again, which takes longer (NodeOptions::orphan_timeout).
constexpr auto kKeepStage = std::chrono::seconds(5);

// The bytes that the weights of a model may take in the cache; at least 1, as 0 says that there is no limit.
uint64_t RoomIn(const WeightCache& cache, const Hash256& root) { return std::max<uint64_t>(1, cache.Capacity(root)); }

// The address of this machine that packets to the coordinator leave from.
StatusOr<std::string> LocalAddressTo(const HostPort& to) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(to.host.c_str(), std::to_string(to.port).c_str(), &hints, &found); error != 0) {
    return Unavailable("{}: {}", to.host, gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> free(found, freeaddrinfo);
  const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Unavailable("no socket: {}", std::strerror(errno));
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  char text[NI_MAXHOST] = "";
  // A datagram socket's connect sends nothing.
  const bool fine =
      connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
      getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0;
  close(fd);
  if (!fine) return Unavailable("no route to {}", to.host);
  return std::string(text);
}

// The coordinator may listen at all its addresses and then writes ":PORT": its host is where it was joined.
void FillInHost(const std::string& coordinator_host, std::string* address) {
  if (address->empty() || (*address)[0] != ':') return;
  const bool v6 = coordinator_host.find(':') != std::string::npos;
  *address = (v6 ? "[" + coordinator_host + "]" : coordinator_host) + *address;
}

void FillInHost(const std::string& coordinator_host, PrepareRequest* request) {
  const auto fill = [&](std::string* address) { FillInHost(coordinator_host, address); };
  fill(&request->plan.coordinator_address);
  for (StagePlan& stage : request->plan.stages) {
    for (StageMember& member : stage.members) fill(&member.address);
  }
  for (LayerSource& source : request->sources) fill(&source.address);
  for (WeightSource& source : request->weight_sources) fill(&source.address);
}

// Tells this process from others of the same name, and from itself once it was started again.
uint64_t RandomInstance() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;  // 0 means unknown
}

class Node {
 public:
  Node(const NodeOptions& options, const std::function<bool()>& stopped)
      : options_(options),
        stopped_(stopped),
        model_(
            options, [this] { return Ends(); }, [this](const std::string& line) { Say(line); },
            [this] { DropWorker(); }),
        identity_(options.identity, options.join) {}

  Status Run();

 private:
  void Say(const std::string& line) {
    if (options_.say) options_.say(line);
  }
  void Sleep(Duration d) {
    for (const Deadline end = After(d); !Ends() && Clock::now() < end;) std::this_thread::sleep_for(milliseconds(50));
  }
  // The last words of a worker whose thread ended; OK while it lives.
  Status Fatal() {
    MutexLock lock(&fatal_mutex_);
    return fatal_;
  }
  bool Ends() { return stopped_() || !Fatal().ok() || dismissed_ || LeaveIsOver(); }
  bool Leaves() const { return options_.leaves && options_.leaves(); }
  // Whether the worker should leave, and no member can take its layers, or that took too long.
  bool LeaveIsOver();
  // The coordinator has no part of this worker any more: all but the weights goes.
  void EndSession();
  Duration KeepsStageFor() const { return session_->cluster != 0 ? options_.orphan_timeout : Duration(kKeepStage); }
  bool MayJoin(const ClusterFacts& facts);
  // The worker ends, as its model is about to change.
  void DropWorker();
  // A stage that computes can't be dropped before it is done.
  Status WaitForStage();
  Status Listen();
  uint64_t Memory();
  WorkerHello MakeHello();
  // Until the stream ends. OK: it ended, or was stopped. An error: no use to come back.
  Status Attached(v1::Cluster::Stub& stub);
  using Stream = grpc::ClientReaderWriter<v1::WorkerEvent, v1::Command>;
  Status Stay(grpc::ClientContext& context, Stream& stream);
  void OnCommand(const v1::Command& message);

  const NodeOptions& options_;
  const std::function<bool()>& stopped_;
  Mutex fatal_mutex_;
  Status fatal_ GYRE_GUARDED_BY(fatal_mutex_);
  const uint64_t instance_ = RandomInstance();
  Coordinators coordinators_;
  std::string at_;  // the one that is asked, or that it is attached to
  HostPort coordinator_;
  std::unique_ptr<RingPort> port_;
  std::unique_ptr<WeightStock> stock_;  // its server uses the port
  std::unique_ptr<LinkProber> prober_;  // uses the stock
  MachineSpeed speed_;
  NodeModel model_;
  NodeIdentity identity_;
  std::shared_ptr<Worker> worker_;
  std::string name_;
  bool waits_to_attach_ = false;  // and it was said
  // The membership, which a stream may take up again.
  struct Session {
    uint64_t term = 0;
    uint64_t received = 0;  // the number of the last command
    uint64_t cluster = 0;   // the id of a cluster whose coordinator has a state; 0 = it has none
    bool replaced = false;  // another coordinator of the cluster is there: it gets the stage, not the membership
  };
  std::optional<Session> session_;
  uint64_t cluster_ = 0;     // the id of the cluster that is joined
  bool told_older_ = false;  // that a coordinator is there which was replaced
  Deadline detached_at_{};
  std::shared_ptr<EventOutbox> events_ = std::make_shared<EventOutbox>();
  std::atomic<bool> attached_{false}, dismissed_{false};
  std::atomic<Deadline::rep> leaves_since_{0};
  uint64_t bytes_without_layers_ = 0;  // of this process's memory
};

bool Node::LeaveIsOver() {
  if (!Leaves()) return false;
  const Deadline now = Clock::now();
  Deadline::rep never = 0;
  leaves_since_.compare_exchange_strong(never, now.time_since_epoch().count());
  return !attached_ || now.time_since_epoch() - Duration(leaves_since_.load()) > options_.drain_timeout;
}

void Node::EndSession() {
  session_.reset();
  events_->Clear();
  if (worker_ != nullptr) worker_->Reset();
}

// Whether the coordinator with these facts may have this worker. What the one before gave it stays for one that takes
// its place in the same cluster, and goes for any other.
bool Node::MayJoin(const ClusterFacts& facts) {
  cluster_ = facts.cluster_id;
  if (!session_ || session_->term == facts.term) return true;
  if (session_->cluster == 0 || session_->cluster != facts.cluster_id) {
    EndSession();
    return true;
  }
  if (facts.term < session_->term) {
    if (!std::exchange(told_older_, true)) {
      Say(fmt::format("waiting for another coordinator: {} has term {}, and has been replaced by one with term {}", at_,
                      facts.term, session_->term));
    }
    return false;
  }
  told_older_ = false;
  if (!std::exchange(session_->replaced, true)) worker_->AwaitTakeover();
  return true;
}

void Node::DropWorker() {
  session_.reset();
  if (worker_ != nullptr) worker_->Stop();
  worker_ = nullptr;
}

Status Node::WaitForStage() {
  if (worker_ == nullptr) return absl::OkStatus();
  const auto free = std::make_shared<std::atomic<bool>>(false);
  worker_->OnStageThread([free] { *free = true; });
  // A step takes no longer, as the coordinator sees it too (EngineOptions::step_timeout).
  const Deadline give_up = After(std::chrono::minutes(10));
  while (!*free && !Ends()) {
    if (Clock::now() > give_up) {
      Log(LogLevel::kError, "the stage does not come to an end of its step, so this process ends");
      std::_Exit(1);  // its thread can't be joined
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  return absl::OkStatus();
}

Status Node::Listen() {
  RingPortOptions port;
  port.transport = options_.transport;
  port.listen = options_.listen;
  port.identity = options_.identity;
  if (port.listen.empty()) {
    GYRE_ASSIGN_OR_RETURN(const std::string own, LocalAddressTo(coordinator_));
    port.listen = FormatHostPort(own, 0);
  }
  GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(port.listen));
  if (!IsLoopback(at.host) && !options_.insecure && options_.identity == nullptr) {
    return FailedPrecondition(
        "the ring would listen at {}, which is not loopback, without TLS: give an --identity, or say --insecure on a "
        "network that you trust",
        at.host);
  }
  GYRE_ASSIGN_OR_RETURN(port_, RingPort::Open(port));
  stock_ = std::make_unique<WeightStock>(WeightCache(options_.cache, options_.cache_limit), port_.get());
  stock_->server().SetRate(options_.weights_rate);
  prober_ = std::make_unique<LinkProber>(stock_.get(), [events = events_](StageProbed probed) {
    events->Push({.worker = "", .epoch = {}, .what = std::move(probed)});
  });
  return absl::OkStatus();
}

Status Node::Run() {
  GYRE_ASSIGN_OR_RETURN(coordinators_, Coordinators::Parse(options_.join));
  name_ = options_.name;
  if (options_.identity != nullptr) {
    const Principal self = options_.identity->current()->self();
    if (self.role != Role::kWorker) {
      return FailedPrecondition("{} is the identity of {}, expected a worker's", options_.identity->folder(),
                                Describe(self));
    }
    if (!name_.empty() && name_ != self.name) {
      return FailedPrecondition("--name {}: {} is the identity of {}", name_, options_.identity->folder(),
                                Describe(self));
    }
    name_ = self.name;
  }
  if (name_.empty()) name_ = HostName();
  bool waiting = false;
  Status end;
  while (!Ends()) {
    if (session_ && Clock::now() - detached_at_ > KeepsStageFor()) EndSession();
    at_ = coordinators_.current();
    GYRE_ASSIGN_OR_RETURN(coordinator_, ParseHostPort(at_));
    GYRE_ASSIGN_OR_RETURN(const auto channel, MakeChannel(at_, {.own_connection = true,
                                                                .keepalive = true,
                                                                .impatient = coordinators_.several(),
                                                                .identity = identity_.current()}));
    const auto stub = v1::Cluster::NewStub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(coordinators_.several() ? 1 : 2));
    v1::InfoRequest request;
    request.set_protocol(kControlProtocol);
    v1::ClusterInfo info;
    const grpc::Status status = stub->Info(&context, request, &info);
    if (!status.ok()) {
      const LeaderAnswer answer = ReadLeader(context);
      if (coordinators_.Next(answer.leader)) continue;
      if (!std::exchange(waiting, true)) {
        const bool several = coordinators_.several();
        Say(several ? fmt::format("waiting for a coordinator that leads, at {}; {}: {}", options_.join, at_,
                                  WhyNotReached(status))
                    : fmt::format("waiting for the coordinator at {}: {}", at_, WhyNotReached(status)));
      }
      Sleep(milliseconds(500));
      continue;
    }
    waiting = false;
    const StatusOr<ClusterFacts> facts = Decode(info);
    end = facts.status();
    if (end.ok() && !MayJoin(*facts)) {
      if (!coordinators_.Next("")) Sleep(milliseconds(500));
      continue;
    }
    coordinators_.Found();
    if (end.ok() && port_ == nullptr) end = Listen();
    if (end.ok()) {
      end = model_.OpenFor(*facts, *stub, *stock_, worker_ != nullptr);
      if (model_.TakePassing() || absl::IsCancelled(end)) {  // that is waited for, or this worker stops
        end = absl::OkStatus();
        if (!Ends()) Sleep(milliseconds(500));
        continue;
      }
    }
    if (end.ok() && options_.measure && worker_ == nullptr && speed_ == MachineSpeed{}) {
      // Before it has layers, so that no step is slowed.
      speed_ = options_.measure(model_.store() == nullptr ? model_.model()->path() : "");
    }
    if (end.ok() && !session_) end = WaitForStage();
    if (end.ok() && !Ends()) end = Attached(*stub);
    if (!end.ok()) break;
    if (!Ends()) Sleep(milliseconds(session_ ? 50 : 200));
  }
  if (worker_ != nullptr) worker_->Stop();
  if (end.ok()) end = Fatal();
  return end;
}

void Node::OnCommand(const v1::Command& message) {
  StageControl& control = worker_->control();
  const Epoch epoch{message.epoch().term(), message.epoch().number()};
  StatusOr<WorkerCommand> command = Decode(message);
  if (!command.ok()) {
    Log(LogLevel::kError, "{}", Message(command.status()));
    events_->Push({control.name(), epoch, StageFault{command.status()}});
    return;
  }
  if (auto* prepare = std::get_if<PrepareRequest>(&command->what)) {
    FillInHost(coordinator_.host, prepare);
    control.Prepare(*prepare);
  } else if (const auto* move = std::get_if<MoveCommand>(&command->what)) {
    control.Move(epoch, move->list);
  } else if (std::holds_alternative<CommitCommand>(command->what)) {
    control.Commit(epoch);
  } else if (std::holds_alternative<ReleaseCommand>(command->what)) {
    control.Release(epoch);
  } else if (std::holds_alternative<AbortCommand>(command->what)) {
    control.Abort(epoch);
  } else if (const auto* trace = std::get_if<TraceCommand>(&command->what)) {
    control.Trace(trace->asked);
  } else if (const auto* revoked = std::get_if<RevokedCommand>(&command->what)) {
    identity_.TakeRevoked(revoked->crl);
  } else if (auto* probe = std::get_if<ProbeCommand>(&command->what)) {
    for (WeightSource& peer : probe->peers) FillInHost(coordinator_.host, &peer.address);
    prober_->Ask(std::move(probe->peers), control.name(), options_.transport);
  } else if (std::holds_alternative<DismissCommand>(command->what)) {
    Say("dismissed by the coordinator");
    dismissed_ = true;
  }
  if (session_) session_->received = std::max(session_->received, command->number);
}

// The memory for layers. A process that comes back still has weights, and pages that are being freed: they do not
// make its machine smaller.
uint64_t Node::Memory() {
  if (options_.memory != 0) return options_.memory;
  if (worker_ == nullptr) bytes_without_layers_ = PrivateBytes();
  const uint64_t free = options_.available_memory ? options_.available_memory() : AvailableMemory();
  if (free == 0) return 0;  // unknown
  const uint64_t own = PrivateBytes();
  return (free + own - std::min(own, bytes_without_layers_)) / 10 * 9;
}

WorkerHello Node::MakeHello() {
  const PieceStore* store = model_.store();
  const bool resumes = session_ && !session_->replaced;
  const bool keeps = session_ && session_->replaced;
  // Under another name the stage would be another worker's.
  return {.name = keeps ? worker_->control().name() : name_,
          .ring_address = port_->address(),
          .model_hash = model_.model()->content_hash(),
          .isa = options_.device->isa(),
          .threads = static_cast<uint32_t>(options_.threads),
          .memory = Memory(),
          .wish = options_.wish,
          .version = options_.version,
          .wire_types = options_.wire_types,
          .prefill_matches_decode = options_.device->prefill_matches_decode(),
          .instance = instance_,
          .transport = options_.transport,
          .resumes_term = resumes ? session_->term : 0,
          .received = resumes ? session_->received : 0,
          .fetches = store != nullptr,
          .disk = store != nullptr ? RoomIn(stock_->cache(), store->manifest().root) : 0,
          .holds = keeps ? std::optional(worker_->running_layers()) : std::nullopt,
          .speed = speed_,
          .last_step = worker_ != nullptr ? worker_->last_step() : 0};
}

Status Node::Attached(v1::Cluster::Stub& stub) {
  grpc::ClientContext context;
  const auto stream = stub.Attach(&context);
  // From the hello on, as the coordinator may be there and say nothing.
  std::atomic<bool> ended{false};
  std::thread watcher([&] {
    std::shared_ptr<const Identity> checked = identity_.current();
    while (!ended && !Ends()) {
      std::this_thread::sleep_for(milliseconds(50));
      identity_.RenewIfDue(stub);
      // Only then is the caller's certificate known for sure.
      const std::shared_ptr<const Identity> now = identity_.current();
      if (!attached_ || now == checked) continue;
      checked = now;
      const Status accepted = CheckCaller(*context.auth_context(), *now).status();
      if (accepted.ok()) continue;
      Say(fmt::format("{} is left: {}", at_, Message(accepted)));
      break;
    }
    if (!ended) context.TryCancel();
  });
  const Status status = Stay(context, *stream);
  ended = true;
  watcher.join();
  return status;
}

Status Node::Stay(grpc::ClientContext& context, Stream& stream) {
  v1::Command message;
  const bool answered = stream.Write(Encode(MakeHello())) && stream.Read(&message);
  const StatusOr<WorkerCommand> first = answered ? Decode(message) : WorkerCommand{};
  const Welcome* welcome = first.ok() ? std::get_if<Welcome>(&first->what) : nullptr;
  if (welcome == nullptr) {
    if (answered) context.TryCancel();
    const Status status = FromGrpc(stream.Finish());
    // The membership is over: it begins anew.
    if (session_ && absl::IsNotFound(status)) EndSession();
    const bool refused = absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status) ||
                         status.code() == absl::StatusCode::kPermissionDenied;
    if (refused) return Annotate(status, "the coordinator refuses this worker");
    if (!waits_to_attach_ && !status.ok()) Say(fmt::format("waiting to join {}: {}", at_, Message(status)));
    waits_to_attach_ = true;
    return absl::OkStatus();
  }
  waits_to_attach_ = false;
  const std::string name = welcome->name;
  // At once, as others may fetch weights here before it is in a plan.
  if (welcome->weights_key) stock_->SetKey(*welcome->weights_key);
  if (worker_ == nullptr || worker_->control().name() != name) {
    // Another name is another worker; the weights would be the same, but the bulk links find it by its name.
    if (worker_ != nullptr) worker_->Stop();
    WorkerOptions w{.name = name,
                    .model = model_.model(),
                    .device = options_.device,
                    .threads = options_.threads,
                    .exact = model_.exact(),
                    .port = port_.get(),
                    .weights = stock_.get()};
    w.on_fatal = [this](const Status& why) {
      MutexLock lock(&fatal_mutex_);
      fatal_ = why;
    };
    worker_ = std::make_shared<Worker>(std::move(w));
    if (options_.on_worker) options_.on_worker(*worker_);
    port_->SetBulkHandler(name, [weak = std::weak_ptr<Worker>(worker_)](std::unique_ptr<Link> link) {
      if (const auto alive = weak.lock()) alive->ServeBulk(std::move(link));
    });
  }
  if (welcome->resumed) {
    events_->SendAgain(welcome->received);
    Say(fmt::format("joined {} again as {}, as nothing had been lost", at_, name));
  } else {
    events_->Clear();
    const LayerRange kept = session_ ? worker_->running_layers() : LayerRange{};
    session_ = Session{.term = welcome->term, .cluster = cluster_};
    Say(fmt::format("joined {} as {}, ring at {}", at_, name, TcpPart(port_->address())));
    if (kept.size() > 0) Say(fmt::format("layers {} are still here", FormatRange(kept)));
  }
  worker_->control().SetEventSink([events = events_](StageEvent e) { events->Push(std::move(e)); });
  attached_ = true;
  std::atomic<bool> ended{false};
  std::optional<RoomWatch> room;
  if (const PieceStore* store = model_.store()) {
    room.emplace([cache = &stock_->cache(), root = store->manifest().root] { return RoomIn(*cache, root); },
                 kLooksAtDisk);
  }
  // The heartbeat has a thread of its own: a worker that computes or loads is not dead.
  std::thread writer([&] {
    Deadline beat = Clock::now();
    bool told = false;
    while (!ended) {
      if (const auto item = events_->Next(beat)) {
        v1::WorkerEvent event = Encode(item->event);
        event.set_number(item->number);
        if (!stream.Write(event)) break;
      }
      if (Leaves() && !std::exchange(told, true)) {
        Say("leaving: the others take its layers");
        if (!stream.Write(Encode(LeavingEvent{}))) break;
      }
      if (Clock::now() < beat) continue;
      beat = After(kHeartbeat);
      MemberLoad load = worker_->TakeLoad();
      if (room) load.weights_room = room->bytes();
      if (!stream.Write(Encode(load))) break;
    }
  });
  while (!dismissed_ && stream.Read(&message)) OnCommand(message);
  if (dismissed_) context.TryCancel();
  ended = true;
  attached_ = false;
  events_->Wake();
  writer.join();
  Status status = FromGrpcAt(stream.Finish(), at_);
  if (absl::IsCancelled(status)) status = Unavailable("it stopped, or heard nothing of this worker for too long");
  detached_at_ = Clock::now();
  GYRE_RETURN_IF_ERROR(Fatal());
  if (!stopped_() && !dismissed_) Say(fmt::format("lost the coordinator ({}); waiting for it", Message(status)));
  return absl::OkStatus();
}

}  // namespace

Status RunNode(const NodeOptions& options, const std::function<bool()>& stopped) {
  return Node(options, stopped).Run();
}

}  // namespace gyre
