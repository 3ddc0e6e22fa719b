#include "worker/node.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/memory.h"
#include "base/ring_address.h"
#include "base/thread.h"
#include "gyre/v1/cluster.grpc.pb.h"
#include "proto/channel.h"
#include "proto/control_codec.h"
#include "proto/convert.h"
#include "proto/coordinators.h"
#include "proto/credentials.h"
#include "worker/catch_exhausted.h"
#include "worker/device_room.h"
#include "worker/event_outbox.h"
#include "worker/node_identity.h"
#include "worker/node_membership.h"
#include "worker/node_model.h"
#include "worker/node_port.h"
#include "worker/node_reports.h"
#include "worker/node_worker.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;

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
        identity_(options.identity, options.join),
        worker_(options) {}

  Status Run();

 private:
  void Say(const std::string& line) {
    if (options_.say) options_.say(line);
  }
  void Sleep(Duration d) {
    for (const Deadline end = After(d); !Ends() && Clock::now() < end;) std::this_thread::sleep_for(milliseconds(50));
  }
  bool Ends() { return stopped_() || !worker_.Fatal().ok() || dismissed_ || LeaveIsOver(); }
  bool Leaves() const { return options_.leaves && options_.leaves(); }
  // Whether the worker should leave, and no member can take its layers, or that took too long.
  bool LeaveIsOver();
  // The coordinator has no part of this worker any more: all but the weights goes.
  void EndSession();
  bool MayJoin(const ClusterFacts& facts);
  // The worker ends, as its model is about to change.
  void DropWorker();
  uint64_t Memory();
  WorkerHello MakeHello();
  // Until the stream ends. OK: it ended, or was stopped. An error: no use to come back.
  Status Attached(v1::Cluster::Stub& stub);
  Status Stay(grpc::ClientContext& context, NodeReports::Stream& stream);
  void OnCommand(const v1::Command& message);

  const NodeOptions& options_;
  const std::function<bool()>& stopped_;
  const uint64_t instance_ = RandomInstance();
  Coordinators coordinators_;
  std::string at_;  // the one that is asked, or that it is attached to
  HostPort coordinator_;
  std::unique_ptr<NodePort> port_;  // from the first coordinator on
  MachineSpeed speed_;
  NodeModel model_;
  NodeIdentity identity_;
  NodeWorker worker_;  // uses the port
  std::string name_;
  bool waits_to_attach_ = false;  // and it was said
  NodeMembership membership_;
  bool told_replaced_ = false;  // that a coordinator is there which was replaced
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
  membership_.End();
  events_->Clear();
  if (Worker* worker = worker_.get()) worker->Reset();
}

// Whether the coordinator with these facts may have this worker. What the one before gave it stays for one that takes
// its place in the same cluster, and goes for any other.
bool Node::MayJoin(const ClusterFacts& facts) {
  switch (membership_.Meet(facts)) {
    case NodeMembership::Meeting::kMayJoin: break;
    case NodeMembership::Meeting::kOtherCluster: EndSession(); break;
    case NodeMembership::Meeting::kSuccessor:
      told_replaced_ = false;
      if (membership_.AwaitSuccessor()) worker_.get()->AwaitTakeover();
      break;
    case NodeMembership::Meeting::kReplaced:
      if (!std::exchange(told_replaced_, true)) {
        Say(fmt::format("waiting for another coordinator: {} has term {}, and has been replaced by one with term {}",
                        at_, facts.term, membership_.term()));
      }
      return false;
  }
  return true;
}

void Node::DropWorker() {
  membership_.End();
  worker_.Drop();
}

Status Node::Run() {
  GYRE_ASSIGN_OR_RETURN(coordinators_, Coordinators::Parse(options_.join));
  GYRE_ASSIGN_OR_RETURN(name_, identity_.WorkerName(options_.name));
  std::string waiting;  // why, as it was said; empty: it does not wait
  Status end;
  while (!Ends()) {
    if (membership_.RunsOut(Clock::now(), options_.orphan_timeout)) EndSession();
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
      if (!coordinators_.several() && SpeaksNoGrpc(status)) {
        end = FailedPrecondition("no coordinator answers at {}: {}", at_, WhyNotReached(status));
        break;
      }
      // Several coordinators are asked in turn, each with a reason of its own: the first one is enough.
      const bool several = coordinators_.several();
      if (const std::string why = WhyNotReached(status); waiting.empty() || (!several && waiting != why)) {
        waiting = why;
        Say(several ? fmt::format("waiting for a coordinator that leads, at {}; {}: {}", options_.join, at_, why)
                    : fmt::format("waiting for the coordinator at {}: {}", at_, why));
      }
      Sleep(milliseconds(500));
      continue;
    }
    waiting.clear();
    const StatusOr<ClusterFacts> facts = Decode(info);
    end = facts.status();
    if (end.ok() && !MayJoin(*facts)) {
      if (!coordinators_.Next("")) Sleep(milliseconds(500));
      continue;
    }
    coordinators_.Found();
    if (end.ok() && port_ == nullptr) {
      StatusOr<std::unique_ptr<NodePort>> port = NodePort::Open(options_, coordinator_, events_);
      end = port.status();
      if (port.ok()) port_ = *std::move(port);
    }
    if (end.ok()) {
      end = model_.OpenFor(*facts, *stub, port_->stock(), worker_.get() != nullptr);
      if (model_.TakePassing() || absl::IsCancelled(end)) {  // that is waited for, or this worker stops
        end = absl::OkStatus();
        if (!Ends()) Sleep(milliseconds(500));
        continue;
      }
    }
    if (end.ok() && options_.measure && worker_.get() == nullptr && speed_ == MachineSpeed{}) {
      // Before it has layers, so that no step is slowed.
      speed_ = options_.measure(model_.store() == nullptr ? model_.model()->path() : "");
    }
    if (end.ok() && !membership_.active()) worker_.WaitForStage([this] { return Ends(); });
    if (end.ok() && !Ends()) end = Attached(*stub);
    if (!end.ok()) break;
    if (!Ends()) Sleep(milliseconds(membership_.active() ? 50 : 200));
  }
  if (Worker* worker = worker_.get()) worker->Stop();
  if (end.ok()) end = worker_.Fatal();
  return end;
}

void Node::OnCommand(const v1::Command& message) {
  StageControl& control = worker_.get()->control();
  StatusOr<WorkerCommand> command = Decode(message);
  if (!command.ok()) {
    Log(LogLevel::kError, "{}", Message(command.status()));
    const v1::Epoch& epoch = message.change().epoch();
    events_->Push({control.name(), {epoch.term(), epoch.number()}, StageFault{command.status()}});
    return;
  }
  if (auto* change = std::get_if<Change>(&command->what)) {
    FillInHost(coordinator_.host, &change->prepare);
    control.Apply(*change);
  } else if (const auto* trace = std::get_if<TraceCommand>(&command->what)) {
    control.Trace(trace->asked);
  } else if (const auto* revoked = std::get_if<RevokedCommand>(&command->what)) {
    identity_.TakeRevoked(revoked->crl);
  } else if (auto* probe = std::get_if<ProbeCommand>(&command->what)) {
    for (WeightSource& peer : probe->peers) FillInHost(coordinator_.host, &peer.address);
    port_->prober().Ask(std::move(probe->peers), control.name(), options_.transport);
  } else if (std::holds_alternative<DismissCommand>(command->what)) {
    Say("dismissed by the coordinator");
    dismissed_ = true;
  }
  membership_.Received(command->number);
}

// The memory for layers. A process that comes back still has weights, and pages that are being freed: they do not
// make its machine smaller.
uint64_t Node::Memory() {
  if (options_.memory != 0) return options_.memory;
  if (const std::optional<DeviceRoom> room = options_.device->room()) return RoomForLayers(*room);
  if (worker_.get() == nullptr) bytes_without_layers_ = PrivateBytes();
  const uint64_t free = options_.available_memory ? options_.available_memory() : AvailableMemory();
  if (free == 0) return 0;  // unknown
  const uint64_t own = PrivateBytes();
  return (free + own - std::min(own, bytes_without_layers_)) / 10 * 9;
}

WorkerHello Node::MakeHello() {
  const PieceStore* store = model_.store();
  Worker* const worker = worker_.get();
  const bool keeps = membership_.awaits_successor();
  // Under another name the stage would be another worker's.
  return {.name = keeps ? worker->control().name() : name_,
          .ring_address = port_->ring().address(),
          .model_hash = model_.model()->content_hash(),
          .isa = options_.device->isa(),
          .threads = static_cast<uint32_t>(options_.threads),
          .memory = Memory(),
          .preference = options_.preference,
          .version = options_.version,
          .wire_types = options_.wire_types,
          .prefill_matches_decode = options_.device->prefill_matches_decode(),
          .instance = instance_,
          .transport = options_.transport,
          .resumes_term = membership_.resumes_term(),
          .received = membership_.received(),
          .fetches = store != nullptr,
          .disk = store != nullptr ? port_->RoomFor(store->manifest().root) : 0,
          .holds = keeps ? std::optional(worker->running_layers()) : std::nullopt,
          .speed = speed_,
          .last_step = worker != nullptr ? worker->last_step() : 0,
          .own_memory = options_.device->room().has_value()};
}

Status Node::Attached(v1::Cluster::Stub& stub) {
  grpc::ClientContext context;
  const auto stream = stub.Attach(&context);
  // From the hello on, as the coordinator may be there and say nothing.
  std::atomic<bool> ended{false};
  StatusOr<std::thread> watcher = StartThread("attached", [&] {
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
  GYRE_RETURN_IF_ERROR(watcher.status());
  const Status status = CatchExhausted([&] { return Stay(context, *stream); });
  ended = true;
  watcher->join();
  return status;
}

Status Node::Stay(grpc::ClientContext& context, NodeReports::Stream& stream) {
  v1::Command message;
  const bool answered = stream.Write(Encode(MakeHello())) && stream.Read(&message);
  const StatusOr<WorkerCommand> first = answered ? Decode(message) : WorkerCommand{};
  const Welcome* welcome = first.ok() ? std::get_if<Welcome>(&first->what) : nullptr;
  if (welcome == nullptr) {
    if (answered) context.TryCancel();
    const Status status = FromGrpc(stream.Finish());
    // The membership is over: it begins anew.
    if (membership_.active() && absl::IsNotFound(status)) EndSession();
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
  if (welcome->weights_key) port_->stock().SetKey(*welcome->weights_key);
  Worker& worker = worker_.Become(name, model_, *port_);
  if (welcome->resumed) {
    events_->SendAgain(welcome->received);
    Say(fmt::format("joined {} again as {}, as nothing had been lost", at_, name));
  } else {
    events_->Clear();
    const LayerRange kept = membership_.active() ? worker.running_layers() : LayerRange{};
    membership_.Begin(welcome->term);
    Say(fmt::format("joined {} as {}, ring at {}", at_, name, TcpPart(port_->ring().address())));
    if (kept.size() > 0) Say(fmt::format("{} {} still here", LayersText(kept), kept.size() == 1 ? "is" : "are"));
  }
  worker.control().SetEventSink([events = events_](StageEvent e) { events->Push(std::move(e)); });
  attached_ = true;
  NodeReports::Sources sources{.events = *events_,
                               .worker = worker,
                               .room = {},
                               .leaves = [this] { return Leaves(); },
                               .say = [this](const std::string& line) { Say(line); }};
  if (const PieceStore* store = model_.store()) {
    sources.room = [port = port_.get(), root = store->manifest().root] { return port->RoomFor(root); };
  }
  NodeReports reports(stream, std::move(sources));
  while (!dismissed_ && stream.Read(&message)) OnCommand(message);
  if (dismissed_) context.TryCancel();
  attached_ = false;
  reports.Stop();
  Status status = FromGrpcAt(stream.Finish(), at_);
  if (absl::IsCancelled(status)) status = Unavailable("it stopped, or heard nothing of this worker for too long");
  membership_.Detach(Clock::now());
  GYRE_RETURN_IF_ERROR(worker_.Fatal());
  if (stopped_() || dismissed_) return absl::OkStatus();
  Say(Message(status) == kCoordinatorStops ? fmt::format("the coordinator at {} has stopped; waiting for it", at_)
                                           : fmt::format("lost the coordinator ({}); waiting for it", Message(status)));
  return absl::OkStatus();
}

}  // namespace

Status RunNode(const NodeOptions& options, const std::function<bool()>& stopped) {
  return CatchExhausted([&] { return Node(options, stopped).Run(); });
}

}  // namespace gyre
