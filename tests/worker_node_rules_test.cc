// A worker's process: where it may listen, and what it keeps without a coordinator.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>

#include "gyre/v1/cluster.grpc.pb.h"
#include "tests/testing/tiny_model.h"
#include "transport/fd.h"
#include "worker/layer.h"
#include "worker/node.h"
#include "worker/worker.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr auto kNodeTimeout = seconds(30);

bool Within(std::chrono::nanoseconds timeout, const std::function<bool()>& holds) {
  for (const Deadline end = After(timeout); Clock::now() < end; std::this_thread::sleep_for(milliseconds(5))) {
    if (holds()) return true;
  }
  return holds();
}

// Gives whoever attaches one stage, whose neighbours never come, and hangs up when it is told to.
class OnePlanCoordinator : public v1::Cluster::Service {
 public:
  OnePlanCoordinator() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    // The next hop's end: connections are taken in, nobody answers their hello.
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    EXPECT_EQ(bind(silent_.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    EXPECT_EQ(listen(silent_.get(), 8), 0);
    getsockname(silent_.get(), reinterpret_cast<sockaddr*>(&at), &size);
    next_hop_ = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void HangUp() { hang_up_ = true; }
  int attached() const { return attached_; }

 private:
  grpc::Status Info(grpc::ServerContext*, const v1::InfoRequest* request, v1::ClusterInfo* info) override {
    info->set_protocol(request->protocol());
    info->set_term(7);
    info->set_model_path(file_.path());
    info->set_model_hash(hash_);
    return grpc::Status::OK;
  }
  grpc::Status Attach(grpc::ServerContext*, grpc::ServerReaderWriter<v1::Command, v1::WorkerEvent>* stream) override {
    v1::WorkerEvent event;
    if (!stream->Read(&event)) return grpc::Status::OK;
    if (attached_++ > 0) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
    v1::Command welcome, command;
    welcome.mutable_welcome()->set_name("w");
    welcome.mutable_welcome()->set_term(7);
    stream->Write(welcome);
    v1::Change* change = command.mutable_change();
    change->set_verb(static_cast<uint32_t>(ChangeVerb::kPrepare));
    change->mutable_epoch()->set_term(7);
    change->mutable_epoch()->set_number(1);
    v1::Prepare* p = change->mutable_prepare();
    p->mutable_plan()->set_key(std::string(16, 'k'));
    p->mutable_plan()->set_model_hash(hash_);
    p->mutable_plan()->set_num_layers(5);
    p->mutable_plan()->set_coordinator_address(next_hop_);
    v1::Stage* stage = p->mutable_plan()->add_stages();
    stage->set_worker("w");
    stage->set_address("127.0.0.1:1");
    stage->mutable_layers()->set_begin(0);
    stage->mutable_layers()->set_end(5);
    p->set_block_size(4);
    p->add_memory()->set_units(8);
    stream->Write(command);
    while (!hang_up_) std::this_thread::sleep_for(milliseconds(5));
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
  }

  const testing::TinyModelFile file_;
  const uint64_t hash_ = (*OpenModel(file_.path()))->content_hash();
  std::atomic<int> attached_{0};
  std::atomic<bool> hang_up_{false};
  const Fd silent_{socket(AF_INET, SOCK_STREAM, 0)};
  std::string next_hop_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST(NodeRulesTest, TheRingListensAtLoopbackOnly) {
  OnePlanCoordinator coordinator;
  coordinator.HangUp();
  const Deadline end = After(kNodeTimeout);
  for (const char* listen : {"0.0.0.0:0", "[::]:0"}) {
    NodeOptions options{.join = coordinator.address(), .name = "w", .listen = listen};
    const Status status = RunNode(options, [end] { return Clock::now() >= end; });
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(Message(status), HasSubstr("say --insecure"));
  }
  // The word, or an address of loopback, is enough.
  NodeOptions options{.join = coordinator.address(), .name = "w", .listen = "0.0.0.0:0", .insecure = true};
  EXPECT_TRUE(RunNode(options, [&] { return coordinator.attached() > 0 || Clock::now() >= end; }).ok());
  EXPECT_GT(coordinator.attached(), 0);
}

TEST(NodeRulesTest, WithoutItsCoordinatorAWorkerKeepsNoPages) {
  OnePlanCoordinator coordinator;
  std::atomic<bool> stop{false};
  NodeOptions options{.join = coordinator.address(), .name = "w", .listen = "127.0.0.1:0"};
  auto node = std::async(std::launch::async, [&] { return RunNode(options, [&stop] { return stop.load(); }); });
  EXPECT_TRUE(Within(kNodeTimeout, [] { return PagePool::Live() > 0; })) << "of the plan that is being prepared";
  coordinator.HangUp();
  EXPECT_TRUE(Within(kNodeTimeout, [] { return PagePool::Live() == 0; }));
  stop = true;
  EXPECT_TRUE(node.get().ok());
}

// Heartbeats have a thread of their own, so the coordinator would take it for a worker for ever.
TEST(NodeRulesTest, AWorkersThreadThatEndsIsTheEndOfTheProcess) {
  OnePlanCoordinator coordinator;
  NodeOptions options{.join = coordinator.address(), .name = "w", .listen = "127.0.0.1:0"};
  options.on_worker = [](Worker& worker) { worker.OnStageThread([] { throw std::logic_error("a bug"); }); };
  const Deadline end = After(kNodeTimeout);
  const Status status = RunNode(options, [end] { return Clock::now() >= end; });
  coordinator.HangUp();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_EQ(Message(status), "w: the stage thread ended by an exception: a bug");
}

}  // namespace
}  // namespace gyre
