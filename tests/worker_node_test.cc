// A worker's process against a coordinator that says what it should not.
#include "worker/node.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "gyre/v1/cluster.grpc.pb.h"
#include "proto/control_codec.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;

// Welcomes whoever attaches, says `commands`, and keeps every event that is no heartbeat until there is one for each.
class ScriptedCoordinator : public v1::Cluster::Service {
 public:
  ScriptedCoordinator(const std::string& model, std::vector<v1::Command> commands)
      : model_(model), commands_(std::move(commands)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  // Joined with the worker, there are no other readers.
  const std::vector<v1::WorkerEvent>& events() const { return events_; }
  bool done() const { return done_; }
  // Says nothing to a hello until `let_go`.
  void Hang() { hangs_ = true; }
  void LetGo() { hangs_ = false; }
  bool hung() const { return hung_; }
  // The hellos of all workers that attached, in order.
  const std::vector<v1::WorkerHello>& hellos() const { return hellos_; }
  // So many streams end before the commands are given, `welcome`: with a name.
  void EndFirst(int streams, bool welcome = false) {
    end_first_ = streams;
    welcome_first_ = welcome;
  }

 private:
  grpc::Status Info(grpc::ServerContext*, const v1::InfoRequest*, v1::ClusterInfo* info) override {
    info->set_protocol(kControlProtocol);
    info->set_term(7);
    info->set_model_path(model_);
    info->set_model_hash((*OpenModel(model_))->content_hash());
    return grpc::Status::OK;
  }
  grpc::Status Attach(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<v1::Command, v1::WorkerEvent>* stream) override {
    v1::WorkerEvent event;
    if (done_ || !stream->Read(&event)) return grpc::Status::OK;
    hellos_.push_back(event.hello());
    while (hangs_) {
      hung_ = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const bool ends = static_cast<int>(hellos_.size()) <= end_first_;
    const grpc::Status come_again{grpc::StatusCode::UNAVAILABLE, "come again"};
    if (ends && !welcome_first_) return come_again;
    v1::Command welcome;
    welcome.mutable_welcome()->set_name("w");
    welcome.mutable_welcome()->set_term(7);
    stream->Write(welcome);
    if (ends) {
      stream->Read(&event);  // a heartbeat: the welcome was read
      context->TryCancel();
      return come_again;
    }
    for (const v1::Command& command : commands_) stream->Write(command);
    while (events_.size() < commands_.size() && stream->Read(&event)) {
      if (!event.has_heartbeat()) events_.push_back(event);
    }
    done_ = true;
    return grpc::Status::OK;
  }

  const std::string model_;
  const std::vector<v1::Command> commands_;
  std::vector<v1::WorkerEvent> events_;
  std::vector<v1::WorkerHello> hellos_;
  int end_first_ = 0;
  bool welcome_first_ = false;
  std::atomic<bool> done_{false}, hangs_{false}, hung_{false};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

v1::Command Prepare(uint64_t number, const std::function<void(v1::Prepare*)>& change) {
  v1::Command command;
  v1::Change* out = command.mutable_change();
  out->set_verb(static_cast<uint32_t>(ChangeVerb::kPrepare));
  out->mutable_epoch()->set_term(7);
  out->mutable_epoch()->set_number(number);
  v1::Prepare* p = out->mutable_prepare();
  p->mutable_plan()->set_key(std::string(16, 'k'));
  change(p);
  return command;
}

TEST(NodeTest, APlanThatCannotBeReadIsAFaultAtOnce) {
  const testing::TinyModelFile model;
  ScriptedCoordinator coordinator(model.path(),
                                  {Prepare(1, [](v1::Prepare* p) { p->mutable_plan()->set_key("short"); }),
                                   Prepare(2, [](v1::Prepare* p) { p->mutable_plan()->set_wire(1000); }),
                                   Prepare(3, [](v1::Prepare* p) { p->set_kv_type(9); })});
  NodeOptions options;
  options.join = coordinator.address();
  options.name = "w";
  const auto began = std::chrono::steady_clock::now();
  auto stopped = [&] {
    return coordinator.done() || std::chrono::steady_clock::now() - began > std::chrono::seconds(30);
  };
  EXPECT_TRUE(RunNode(options, stopped).ok());
  ASSERT_EQ(coordinator.events().size(), 3u);
  const char* said[] = {"a plan's key has 5 bytes", "activations of type 1000", "KV type 9 is unknown"};
  for (size_t i = 0; i < 3; ++i) {
    const v1::WorkerEvent& event = coordinator.events()[i];
    EXPECT_EQ(event.epoch().term(), 7u);
    EXPECT_EQ(event.epoch().number(), i + 1);
    EXPECT_THAT(event.fault().message(), HasSubstr(said[i]));
  }
}

TEST(NodeTest, AWorkerIsTheSameInstanceWhenItComesBackAndAnotherWhenItStartsAgain) {
  const testing::TinyModelFile model;
  std::vector<uint64_t> instances;
  for (int process = 0; process < 2; ++process) {
    ScriptedCoordinator coordinator(model.path(), {Prepare(1, [](v1::Prepare* p) { p->set_kv_type(9); })});
    coordinator.EndFirst(1);
    NodeOptions options;
    options.join = coordinator.address();
    options.name = "w";
    const auto began = std::chrono::steady_clock::now();
    auto stopped = [&] {
      return coordinator.done() || std::chrono::steady_clock::now() - began > std::chrono::seconds(30);
    };
    EXPECT_TRUE(RunNode(options, stopped).ok());
    ASSERT_EQ(coordinator.hellos().size(), 2u);
    EXPECT_EQ(coordinator.hellos()[0].instance(), coordinator.hellos()[1].instance());
    instances.push_back(coordinator.hellos()[0].instance());
  }
  EXPECT_NE(instances[0], 0u);
  EXPECT_NE(instances[0], instances[1]);
}

// Weights are kept for the next coordinator. Would they count as taken, it would find the machine too small for them.
TEST(NodeTest, WhatAWorkerKeepsDoesNotMakeItsMachineSmaller) {
  constexpr uint64_t kMachine = uint64_t{10} << 30, kKept = uint64_t{256} << 20, kSlack = uint64_t{32} << 20;
  const testing::TinyModelFile model;
  ScriptedCoordinator coordinator(model.path(), {Prepare(1, [](v1::Prepare* p) { p->set_kv_type(9); })});
  coordinator.EndFirst(1, true);
  NodeOptions options;
  options.join = coordinator.address();
  options.name = "w";
  std::vector<char> kept;
  uint64_t free = kMachine;
  options.on_worker = [&](Worker&) {
    kept.assign(kKept, 'w');  // in the place of weights
    free -= kKept;
  };
  options.available_memory = [&] { return free; };
  const auto began = std::chrono::steady_clock::now();
  auto stopped = [&] {
    return coordinator.done() || std::chrono::steady_clock::now() - began > std::chrono::seconds(30);
  };
  std::string said;
  options.say = [&](const std::string& line) { said += line + "\n"; };
  EXPECT_TRUE(RunNode(options, stopped).ok());
  EXPECT_THAT(said, HasSubstr("lost the coordinator (it stopped, or heard nothing of this worker for too long)"));
  ASSERT_EQ(coordinator.hellos().size(), 2u);
  const uint64_t first = coordinator.hellos()[0].memory_bytes(), second = coordinator.hellos()[1].memory_bytes();
  // Not equal: what the process has grown by since its start counts as kept, and other threads take memory meanwhile.
  EXPECT_GE(first, kMachine / 10 * 9);
  EXPECT_LE(first, kMachine / 10 * 9 + kSlack);
  EXPECT_GE(second + kSlack, first);
  EXPECT_LE(second, first + kSlack);
}

// A coordinator that is suspended between a hello and its answer: Ctrl-C ends the worker all the same.
TEST(NodeTest, ACoordinatorThatDoesNotAnswerAHelloHoldsNoWorker) {
  const testing::TinyModelFile model;
  ScriptedCoordinator coordinator(model.path(), {});
  coordinator.Hang();
  NodeOptions options;
  options.join = coordinator.address();
  options.name = "w";
  std::atomic<bool> over{false}, late{false};
  std::thread timeout([&] {
    for (int i = 0; i < 6000 && !over; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    late = !over;
    coordinator.LetGo();
  });
  EXPECT_TRUE(RunNode(options, [&] { return coordinator.hung(); }).ok());
  over = true;
  timeout.join();
  EXPECT_FALSE(late);
}

TEST(NodeTest, AnAddressThatIsNoneIsRefusedAtOnce) {
  NodeOptions options;
  options.join = "127.0.0.1:99999";
  const Status status = RunNode(options, [] { return false; });
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(Message(status), HasSubstr("the port is 99999"));
}

}  // namespace
}  // namespace gyre
