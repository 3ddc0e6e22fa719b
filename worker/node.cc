#include "worker/node.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "base/inbox.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/mutex.h"
#include "gyre/v1/cluster.grpc.pb.h"
#include "proto/convert.h"
#include "transport/ring_port.h"
#include "transport/tcp_link.h"
#include "worker/worker.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kControlProtocol = 2;
constexpr auto kHeartbeat = milliseconds(500);

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A new channel tries at once; a shared one would wait out the backoff of the last.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

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

StatusOr<PrepareRequest> ReadPrepare(const v1::Command& command, const std::string& coordinator_host) {
  const v1::Prepare& p = command.prepare();
  // The coordinator may listen at all its addresses; then it is where it was joined.
  auto address = [&coordinator_host](const std::string& text) {
    if (text.empty() || text[0] != ':') return text;
    return coordinator_host.find(':') == std::string::npos ? coordinator_host + text
                                                           : "[" + coordinator_host + "]" + text;
  };
  PrepareRequest r;
  r.plan.epoch = {command.epoch().term(), command.epoch().number()};
  r.plan.model = p.plan().model();
  r.plan.model_hash = p.plan().model_hash();
  r.plan.num_layers = p.plan().num_layers();
  r.plan.coordinator_address = address(p.plan().coordinator_address());
  if (p.plan().key().size() != r.plan.key.size()) return DataLoss("a plan's key has {} bytes", p.plan().key().size());
  std::copy(p.plan().key().begin(), p.plan().key().end(), r.plan.key.begin());
  std::vector<Assignment> assignments;
  for (const v1::Stage& s : p.plan().stages()) {
    assignments.push_back({s.worker(), address(s.address()), {s.layers().begin(), s.layers().end()}});
  }
  r.plan.stages = MakeStages(assignments);
  if (p.plan().wire() > 0xFF) return DataLoss("a plan with activations of type {}", p.plan().wire());
  if (p.plan().wire() != 0) r.plan.wire = static_cast<WireType>(p.plan().wire());
  r.stage = p.stage();
  r.block_size = p.block_size();
  r.num_blocks = p.num_blocks();
  if (p.kv_type() >= kKvTypeNames.size()) return DataLoss("KV type {} is unknown", p.kv_type());
  r.kv_type = static_cast<KvType>(p.kv_type());
  for (const v1::LayerSource& s : p.sources()) {
    r.sources.push_back({{s.layers().begin(), s.layers().end()}, s.worker(), address(s.address())});
  }
  return r;
}

v1::WorkerEvent Convert(const StageEvent& event) {
  v1::WorkerEvent out;
  out.mutable_epoch()->set_term(event.epoch.term);
  out.mutable_epoch()->set_number(event.epoch.number);
  if (const auto* p = std::get_if<StageProgress>(&event.what)) {
    out.mutable_progress()->set_done(p->done);
    out.mutable_progress()->set_total(p->total);
  } else if (std::holds_alternative<StageReady>(event.what)) {
    out.mutable_ready();
  } else if (const auto* m = std::get_if<StageMoved>(&event.what)) {
    out.mutable_moved()->set_pages(m->pages);
    out.mutable_moved()->set_bytes(m->bytes);
    out.mutable_moved()->set_last_pages(m->last_pages);
  } else if (std::holds_alternative<StageCommitted>(event.what)) {
    out.mutable_committed();
  } else if (std::holds_alternative<StageAborted>(event.what)) {
    out.mutable_aborted();
  } else if (const auto* f = std::get_if<StageFault>(&event.what)) {
    out.mutable_fault()->set_code(f->status.raw_code());
    out.mutable_fault()->set_message(Message(f->status));
  }
  return out;
}

class Node {
 public:
  Node(const NodeOptions& options, const std::function<bool()>& stopped) : options_(options), stopped_(stopped) {}

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
  bool Ends() { return stopped_() || !Fatal().ok(); }
  Status Listen();
  Status OpenModelFor(const v1::ClusterInfo& info);
  // Until the stream ends. OK: it ended, or was stopped. An error: no use to come back.
  Status Attached(v1::Cluster::Stub& stub);
  void OnCommand(const v1::Command& command, Inbox<StageEvent>* events);

  const NodeOptions& options_;
  const std::function<bool()>& stopped_;
  Mutex fatal_mutex_;
  Status fatal_ GYRE_GUARDED_BY(fatal_mutex_);
  HostPort coordinator_;
  std::unique_ptr<RingPort> port_;
  std::shared_ptr<const Model> model_;
  bool exact_ = false;
  std::shared_ptr<Worker> worker_;
  std::string name_;
};

Status Node::Listen() {
  RingPortOptions port;
  port.listen = options_.listen;
  if (port.listen.empty()) {
    GYRE_ASSIGN_OR_RETURN(const std::string own, LocalAddressTo(coordinator_));
    port.listen = FormatHostPort(own, 0);
  }
  GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(port.listen));
  if (!IsLoopback(at.host) && !options_.insecure) {
    return FailedPrecondition(
        "the ring would listen at {}, which is not loopback, without encryption: say --insecure on a network that you "
        "trust",
        at.host);
  }
  GYRE_ASSIGN_OR_RETURN(port_, RingPort::Open(port));
  return absl::OkStatus();
}

Status Node::OpenModelFor(const v1::ClusterInfo& info) {
  if (worker_ != nullptr && model_->content_hash() == info.model_hash() && exact_ == info.exact())
    return absl::OkStatus();
  const std::string path = options_.model.empty() ? info.model_path() : options_.model;
  OpenOptions open = options_.open;
  if (open.rope_base == 0) open.rope_base = info.rope_base();
  if (open.norm_eps == 0) open.norm_eps = info.norm_eps();
  open.context = info.context();
  StatusOr<std::shared_ptr<const Model>> model = OpenModel(path, open);
  if (!model.ok()) {
    if (!options_.model.empty()) return model.status();
    return Annotate(model.status(),
                    "the coordinator's model can't be opened here; name this machine's with --model FILE");
  }
  if ((*model)->content_hash() != info.model_hash()) {
    return FailedPrecondition("{} is another model file than the coordinator's {} (hash {:016x}, expected {:016x})",
                              path, info.model_path(), (*model)->content_hash(), info.model_hash());
  }
  if (worker_ != nullptr) worker_->Stop();
  worker_ = nullptr;
  model_ = *std::move(model);
  exact_ = info.exact();
  return absl::OkStatus();
}

Status Node::Run() {
  GYRE_ASSIGN_OR_RETURN(coordinator_, ParseHostPort(options_.join));
  name_ = options_.name;
  if (name_.empty()) {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    name_ = host;
  }
  bool waiting = false;
  Status end;
  while (!Ends()) {
    const auto stub = v1::Cluster::NewStub(Connect(options_.join));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
    v1::InfoRequest request;
    request.set_protocol(kControlProtocol);
    v1::ClusterInfo info;
    const grpc::Status status = stub->Info(&context, request, &info);
    if (!status.ok()) {
      if (!waiting) Say(fmt::format("waiting for the coordinator at {}: {}", options_.join, Cause(status)));
      waiting = true;
      Sleep(milliseconds(500));
      continue;
    }
    waiting = false;
    if (info.protocol() != kControlProtocol) {
      end =
          FailedPrecondition("the coordinator (Gyre {}) speaks control protocol {}, this worker {}: update one of them",
                             info.version(), info.protocol(), kControlProtocol);
      break;
    }
    if (port_ == nullptr) end = Listen();
    if (end.ok()) end = OpenModelFor(info);
    if (end.ok()) end = Attached(*stub);
    if (!end.ok()) break;
    if (!Ends()) Sleep(milliseconds(200));
  }
  if (worker_ != nullptr) worker_->Stop();
  if (end.ok()) end = Fatal();
  return end;
}

void Node::OnCommand(const v1::Command& command, Inbox<StageEvent>* events) {
  StageControl& control = worker_->control();
  const Epoch epoch{command.epoch().term(), command.epoch().number()};
  switch (command.what_case()) {
    case v1::Command::kPrepare: {
      StatusOr<PrepareRequest> request = ReadPrepare(command, coordinator_.host);
      if (request.ok()) return control.Prepare(*request);
      Log(LogLevel::kError, "{}", Message(request.status()));
      events->Push({control.name(), epoch, StageFault{request.status()}});
      return;
    }
    case v1::Command::kMove:
      return control.Move(epoch, {command.move().blocks().begin(), command.move().blocks().end()});
    case v1::Command::kCommit: return control.Commit(epoch);
    case v1::Command::kRelease: return control.Release(epoch);
    case v1::Command::kAbort: return control.Abort(epoch);
    default: return;  // of a later version: what must be answered times out there
  }
}

Status Node::Attached(v1::Cluster::Stub& stub) {
  grpc::ClientContext context;
  const auto stream = stub.Attach(&context);
  v1::WorkerEvent hello;
  v1::WorkerHello* h = hello.mutable_hello();
  h->set_protocol(kControlProtocol);
  h->set_name(name_);
  h->set_ring_address(port_->address());
  h->set_model_hash(model_->content_hash());
  h->set_isa(IsaName(options_.isa));
  h->set_prefill_matches_decode(PrefillMatchesDecode(options_.isa));
  h->set_threads(static_cast<uint32_t>(options_.threads));
  h->set_memory_bytes(options_.memory != 0 ? options_.memory : AvailableMemory() / 10 * 9);
  h->set_version(options_.version);
  h->set_wire_types(options_.wire_types);
  if (options_.wish) {
    h->mutable_wish()->set_begin(options_.wish->begin);
    h->mutable_wish()->set_end(options_.wish->end);
  }
  v1::Command welcome;
  if (!stream->Write(hello) || !stream->Read(&welcome) || welcome.what_case() != v1::Command::kWelcome) {
    const Status status = FromGrpc(stream->Finish());
    const bool refused = absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status);
    return refused ? Annotate(status, "the coordinator refuses this worker") : absl::OkStatus();
  }
  const std::string name = welcome.welcome().name();
  if (worker_ == nullptr || worker_->control().name() != name) {
    // Another name is another worker; the weights would be the same, but the bulk links find it by its name.
    if (worker_ != nullptr) worker_->Stop();
    WorkerOptions w{.name = name,
                    .model = model_,
                    .isa = options_.isa,
                    .threads = options_.threads,
                    .cpus = options_.cpus,
                    .exact = exact_,
                    .port = port_.get()};
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
  Say(fmt::format("joined {} as {}, ring at {}", options_.join, name, port_->address()));

  auto events = std::make_shared<Inbox<StageEvent>>();
  worker_->control().SetEventSink([events](StageEvent e) { events->Push(std::move(e)); });
  std::atomic<bool> ended{false};
  // The heartbeat has a thread of its own: a worker that computes or loads is not dead.
  std::thread writer([&] {
    Deadline beat = Clock::now();
    while (!ended) {
      if (std::optional<StageEvent> event = events->Pop(beat)) {
        if (!stream->Write(Convert(*event))) break;
      }
      if (Clock::now() < beat) continue;
      beat = After(kHeartbeat);
      v1::WorkerEvent heartbeat;
      heartbeat.mutable_heartbeat()->set_busy(worker_->TakeBusyShare());
      heartbeat.mutable_heartbeat()->set_steps(worker_->stats().steps);
      heartbeat.mutable_heartbeat()->set_resident_bytes(ResidentBytes());
      heartbeat.mutable_heartbeat()->set_busy_us(
          static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(worker_->busy_time()).count()));
      heartbeat.mutable_heartbeat()->set_rows_sent(worker_->stats().rows_sent);
      heartbeat.mutable_heartbeat()->set_row_bytes_sent(worker_->stats().row_bytes_sent);
      if (!stream->Write(heartbeat)) break;
    }
  });
  std::thread watcher([&] {
    while (!ended && !Ends()) std::this_thread::sleep_for(milliseconds(50));
    if (!ended) context.TryCancel();
  });
  v1::Command command;
  while (stream->Read(&command)) OnCommand(command, events.get());
  ended = true;
  events->Close();
  writer.join();
  watcher.join();
  worker_->control().SetEventSink({});
  const Status status = FromGrpc(stream->Finish());
  // Without its coordinator a worker keeps its weights and nothing else.
  worker_->Reset();
  GYRE_RETURN_IF_ERROR(Fatal());
  if (!stopped_()) Say(fmt::format("lost the coordinator ({}); waiting for it", Message(status)));
  return absl::OkStatus();
}

}  // namespace

Status RunNode(const NodeOptions& options, const std::function<bool()>& stopped) {
  return Node(options, stopped).Run();
}

}  // namespace gyre
