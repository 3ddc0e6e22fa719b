// A gRPC port in the test's process: a real model, an engine without a ring, and a service whose engine is the test.
// Programs that include it are built with GYRE_DEMO_MODEL.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "coordinator/grpc/server.h"
#include "gyre/v1/admin.grpc.pb.h"
#include "gyre/v1/inference.grpc.pb.h"
#include "proto/channel.h"
#include "tests/testing/fake_engine.h"

namespace gyre::testing {

// Waits for a condition that another thread makes true.
inline bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 4000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return condition();
}

class GrpcServerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = *OpenModel(GYRE_DEMO_MODEL); }
  static void TearDownTestSuite() { model_ = nullptr; }

  void Serve(const ServiceLimits& limits = {}, const GrpcServerOptions& options = {.address = "127.0.0.1:0"}) {
    EngineOptions e;
    e.scheduler.memory[kPageGroup] = 16;
    e.vocab = model_->spec().vocab;
    e.context = kContext;
    auto started = Engine::Start(std::move(e));
    ASSERT_TRUE(started.ok()) << started.status();
    real_ = *std::move(started);
    ClusterOptions c;
    c.model_hash = model_->content_hash();
    c.min_workers = 5;  // no plan begins
    c.sizes.layers.assign(model_->spec().layers.size(), 1);
    cluster_ = std::make_unique<Cluster>(std::move(c));
    auto port = RingPort::Open({.listen = "127.0.0.1:0"});
    ASSERT_TRUE(port.ok()) << port.status();
    port_ = *std::move(port);
    EXPECT_TRUE(cluster_->Start(real_.get(), port_.get()).ok());
    service_ = std::make_unique<Service>(*model_, engine_.Calls(), kContext, limits);
    auto server = GrpcServer::Open(options, *model_, *real_, *cluster_, *service_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = *MakeChannel(server_->address(), {.own_connection = true});
    inference_ = v1::Inference::NewStub(channel_);
    admin_ = v1::Admin::NewStub(channel_);
  }
  void TearDown() override {
    if (cluster_ != nullptr) cluster_->Stop();
    if (server_ != nullptr) server_->Stop();
    server_ = nullptr;
    service_ = nullptr;
    real_ = nullptr;
    cluster_ = nullptr;
  }
  // Starts a call and waits until its request is there.
  std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> Generate(const v1::GenerateRequest& request) {
    const size_t before = engine_.requests().size();
    auto reader = inference_->Generate(&context_, request);
    EXPECT_TRUE(Eventually([&] { return engine_.requests().size() > before; }));
    return reader;
  }
  grpc::Status Refused(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    const auto reader = inference_->Generate(&context, request);
    v1::GenerateEvent event;
    EXPECT_FALSE(reader->Read(&event));
    return reader->Finish();
  }

  static constexpr uint32_t kContext = 256;
  static inline std::shared_ptr<const Model> model_;
  FakeEngine engine_;
  std::unique_ptr<RingPort> port_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Engine> real_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> inference_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  grpc::ClientContext context_;
};

}  // namespace gyre::testing
