// A worker's process against a coordinator that says what it should not.
#include "worker/node.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "gyre/v1/cluster.grpc.pb.h"
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

 private:
  grpc::Status Info(grpc::ServerContext*, const v1::InfoRequest*, v1::ClusterInfo* info) override {
    info->set_protocol(2);
    info->set_term(7);
    info->set_model_path(model_);
    info->set_model_hash((*OpenModel(model_))->content_hash());
    return grpc::Status::OK;
  }
  grpc::Status Attach(grpc::ServerContext*, grpc::ServerReaderWriter<v1::Command, v1::WorkerEvent>* stream) override {
    v1::WorkerEvent event;
    if (done_ || !stream->Read(&event)) return grpc::Status::OK;
    v1::Command welcome;
    welcome.mutable_welcome()->set_name("w");
    welcome.mutable_welcome()->set_term(7);
    stream->Write(welcome);
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
  std::atomic<bool> done_{false};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

v1::Command Prepare(uint64_t number, const std::function<void(v1::Prepare*)>& change) {
  v1::Command command;
  command.mutable_epoch()->set_term(7);
  command.mutable_epoch()->set_number(number);
  v1::Prepare* p = command.mutable_prepare();
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

}  // namespace
}  // namespace gyre
