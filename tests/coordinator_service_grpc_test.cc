// Calls over gRPC: what clients write reaches the engine, what it answers reaches them, and callers that are slow, gone
// or wrong harm nobody.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>

#include "gyre/v1/cluster.grpc.pb.h"
#include "proto/control_codec.h"
#include "tests/testing/demo_model.h"
#include "tests/testing/grpc_server_test.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using testing::Eventually;
using ::testing::HasSubstr;

class GrpcTest : public testing::GrpcServerTest {};

v1::GenerateRequest RequestOf(std::vector<TokenId> ids) {
  v1::GenerateRequest r;
  r.mutable_ids()->Add(ids.begin(), ids.end());
  return r;
}

TEST_F(GrpcTest, EverySettingReachesTheEngine) {
  Serve();
  v1::GenerateRequest r = RequestOf({1, 2});
  r.set_max_new_tokens(3);
  r.add_stops("end");
  r.add_stops(std::string("\xFF\x00", 2));  // any bytes
  r.set_ignore_end(true);
  r.set_priority(4);
  r.add_stop_ids(5);
  r.add_stop_ids(6);
  r.set_cache_salt(12);
  r.set_tenant(13);
  r.set_logprobs(2);
  r.set_prompt_logprobs(0);
  v1::Sampling* s = r.mutable_sampling();
  s->set_temperature(0.25f);
  s->set_top_k(7);
  s->set_top_p(0.5f);
  s->set_min_p(0.125f);
  s->set_repetition_penalty(1.5f);
  s->set_frequency_penalty(0.75f);
  s->set_presence_penalty(-0.5f);
  s->set_penalty_last_n(8);
  s->set_seed(9);
  (*s->mutable_logit_bias())[10] = -2;
  const auto reader = Generate(r);
  const Request got = engine_.requests()[0];
  EXPECT_EQ(got.prompt, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(got.max_new_tokens, 3u);
  EXPECT_EQ(got.stops, (std::vector<std::string>{"end", std::string("\xFF\x00", 2)}));
  EXPECT_TRUE(got.ignore_end);
  EXPECT_EQ(got.priority, 4);
  EXPECT_EQ(got.stop_ids, (std::vector<TokenId>{5, 6}));
  EXPECT_EQ(got.sampling.temperature, 0.25f);
  EXPECT_EQ(got.sampling.top_k, 7);
  EXPECT_EQ(got.sampling.top_p, 0.5f);
  EXPECT_EQ(got.sampling.min_p, 0.125f);
  EXPECT_EQ(got.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(got.sampling.frequency_penalty, 0.75f);
  EXPECT_EQ(got.sampling.presence_penalty, -0.5f);
  EXPECT_EQ(got.sampling.penalty_last_n, 8);
  EXPECT_EQ(got.sampling.seed, 9u);
  EXPECT_EQ(got.sampling.logit_bias, (std::vector<std::pair<TokenId, float>>{{10, -2.0f}}));
  EXPECT_EQ(got.cache_salt, 12u);
  EXPECT_EQ(got.tenant, 13u);
  EXPECT_EQ(got.logprobs, std::optional<uint32_t>(2));
  EXPECT_EQ(got.prompt_logprobs, std::optional<uint32_t>(0));
  // And what the engine says reaches the client, in bytes of any kind.
  engine_.Send(1, PromptTokenEvent{.position = 1, .token = 2, .logprob = -1.5f, .top = {{2, -1.5f}}});
  engine_.Send(
      1, TokenEvent{
             .token = 11, .probability = 0.5f, .text = "\xC3", .logprob = -0.5f, .top = {{11, -0.5f}, {12, -2.0f}}});
  engine_.Send(1, Finished{.reason = FinishReason::kLength,
                           .text = "\xFF",
                           .usage = {.prompt_tokens = 2,
                                     .cached_tokens = 1,
                                     .generated_tokens = 3,
                                     .context_shifts = 6,
                                     .to_first_token = milliseconds(4),
                                     .total = milliseconds(5)},
                           .stop = "\xFE",
                           .stop_id = 0});
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.prompt_token().ShortDebugString(), "position: 1 id: 2 logprob: -1.5 top { id: 2 logprob: -1.5 }");
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.token().logprob(), -0.5f);
  ASSERT_EQ(event.token().top_size(), 2);
  EXPECT_EQ(event.token().top(1).id(), 12);
  EXPECT_EQ(event.token().top(1).logprob(), -2.0f);
  EXPECT_EQ(event.token().id(), 11);
  EXPECT_EQ(event.token().probability(), 0.5f);
  EXPECT_EQ(event.token().text(), "\xC3");
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.finished().reason(), "length");
  EXPECT_EQ(event.finished().text(), "\xFF");
  EXPECT_EQ(event.finished().prompt_tokens(), 2u);
  EXPECT_EQ(event.finished().cached_tokens(), 1u);
  EXPECT_EQ(event.finished().generated_tokens(), 3u);
  EXPECT_EQ(event.finished().to_first_token_us(), 4000);
  EXPECT_EQ(event.finished().total_us(), 5000);
  EXPECT_EQ(event.finished().context_shifts(), 6u);
  EXPECT_EQ(event.finished().stop(), "\xFE");
  EXPECT_TRUE(event.finished().has_stop_id());
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_TRUE(reader->Finish().ok());
  const auto id = context_.GetServerInitialMetadata().find("x-request-id");
  ASSERT_NE(id, context_.GetServerInitialMetadata().end());
  EXPECT_EQ(std::string(id->second.data(), id->second.size()), got.id);
  EXPECT_EQ(got.id.size(), 18u);
}

TEST_F(GrpcTest, WhatIsNotSetHasItsDefault) {
  Serve();
  v1::GenerateRequest r = RequestOf({1});
  r.mutable_sampling()->set_temperature(0);
  const auto reader = Generate(r);
  const Request got = engine_.requests()[0];
  const SamplingParams defaults;
  EXPECT_EQ(got.max_new_tokens, kContext - 1);  // until the context is full
  EXPECT_EQ(got.sampling.temperature, 0);
  EXPECT_EQ(got.sampling.top_k, defaults.top_k);
  EXPECT_EQ(got.sampling.top_p, defaults.top_p);
  EXPECT_EQ(got.sampling.min_p, defaults.min_p);
  EXPECT_EQ(got.sampling.repetition_penalty, defaults.repetition_penalty);
  EXPECT_EQ(got.sampling.penalty_last_n, defaults.penalty_last_n);
  // A field that is set to 0 is 0.
  r.mutable_sampling()->set_top_p(0);
  const grpc::Status status = Refused(r);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("top_p"));
  context_.TryCancel();
  reader->Finish();
}

TEST_F(GrpcTest, ACallerThatLeavesCancels) {
  Serve();
  const auto reader = Generate(RequestOf({1}));
  EXPECT_FALSE(engine_.cancelled(1));
  context_.TryCancel();
  EXPECT_TRUE(Eventually([&] { return engine_.cancelled(1); }));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return service_->streams().streams() == 0; }));
}

TEST_F(GrpcTest, AClientThatReadsNothingIsHeldBackAndDropped) {
  ServiceLimits limits;
  limits.streams = {.stream_bytes = 1 << 20, .stall = milliseconds(300)};
  Serve(limits);
  const auto reader = Generate(RequestOf({1}));
  // More than gRPC's own buffers take in.
  const TokenEvent token{.token = 1, .text = std::string(100'000, 'x')};
  int sent = 0;
  size_t most = 0;
  EXPECT_TRUE(Eventually([&] {
    for (; !engine_.held(1) && !engine_.cancelled(1) && sent < 10'000; ++sent) engine_.Send(1, token);
    most = std::max(most, service_->streams().queued_bytes());
    return engine_.cancelled(1);
  }));
  EXPECT_LT(sent, 1000);
  EXPECT_GT(most, size_t{1} << 20);
  EXPECT_LT(most, size_t{2} << 20);
  engine_.Send(1, Cancelled{});
  EXPECT_TRUE(Eventually([&] { return service_->streams().streams() == 0; }));
  EXPECT_EQ(service_->streams().queued_bytes(), 0u);
  for (v1::GenerateEvent event; reader->Read(&event);) {
  }
  EXPECT_THAT(Message(FromGrpcAt(reader->Finish(), "h:1")), HasSubstr("the coordinator at h:1 ended the call"));
}

TEST_F(GrpcTest, AFinishedStreamThatNobodyReadsGoes) {
  ServiceLimits limits;
  limits.streams.stall = milliseconds(300);
  Serve(limits);
  const auto reader = Generate(RequestOf({1}));
  for (int i = 0; i < 10; ++i) engine_.Send(1, TokenEvent{.token = 1, .text = std::string(1'000'000, 'x')});
  engine_.Send(1, Finished{});
  EXPECT_GT(service_->streams().streams(), 0u);
  EXPECT_TRUE(Eventually([&] { return service_->streams().streams() == 0; }));
  context_.TryCancel();
  reader->Finish();
}

TEST_F(GrpcTest, ScoringStreamsAreLimited) {
  ServiceLimits limits;
  limits.streams.scoring_streams = 2;
  Serve(limits);
  v1::ScoreRequest request;
  request.add_ids(1);
  grpc::ClientContext contexts[3];
  std::vector<std::unique_ptr<grpc::ClientReader<v1::ScoreEvent>>> readers;
  for (size_t i = 0; i < 2; ++i) {  // one after the other, so that the first reader has the first request
    readers.push_back(inference_->Score(&contexts[i], request));
    ASSERT_TRUE(Eventually([&] { return engine_.requests().size() == i + 1; }));
  }
  EXPECT_TRUE(engine_.requests()[0].prompt_logits);
  const grpc::Status third = inference_->Score(&contexts[2], request)->Finish();
  EXPECT_EQ(third.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(third.error_message(), HasSubstr("at most 2"));
  engine_.Send(1, LogitsEvent{.position = 3, .logits = {1, 2}});
  engine_.Send(1, Finished{});
  v1::ScoreEvent event;
  ASSERT_TRUE(readers[0]->Read(&event));
  EXPECT_EQ(event.position(), 3u);
  EXPECT_EQ(event.logits().size(), 8u);
  EXPECT_FALSE(readers[0]->Read(&event));
  EXPECT_TRUE(readers[0]->Finish().ok());
  contexts[1].TryCancel();
  readers[1]->Finish();
}

TEST_F(GrpcTest, AScoreHasWhatWasAsked) {
  Serve();
  v1::ScoreRequest request;
  for (const int id : {1, 2, 3}) request.add_ids(id);
  request.set_score_from(2);
  request.set_top(1);
  request.set_logits(true);
  request.set_half(true);
  request.set_generated(true);
  request.add_named()->add_ids(7);
  grpc::ClientContext context;
  const auto reader = inference_->Score(&context, request);
  ASSERT_TRUE(Eventually([&] { return engine_.requests().size() == 1; }));
  const ScoreSettings expected{.from = 2, .top = 1, .logits = true, .generated = true, .named = {{7}}};
  EXPECT_EQ(engine_.requests()[0].score, expected);
  EXPECT_FALSE(engine_.requests()[0].prompt_logits);
  EXPECT_EQ(engine_.requests()[0].max_new_tokens, 0u);
  engine_.Send(1, PromptTokenEvent{.position = 2,
                                   .token = 3,
                                   .logprob = -1.5f,
                                   .top = {{9, -0.5f}},
                                   .rest = -0.75,
                                   .named = {{7, -2.5f}},
                                   .logits = {1, -2}});
  engine_.Send(1, Finished{.usage = {.prompt_tokens = 3, .cached_tokens = 1}});
  v1::ScoreEvent event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.position(), 2u);
  EXPECT_EQ(event.id(), 3);
  EXPECT_EQ(event.logprob(), -1.5f);
  EXPECT_EQ(event.top(0).id(), 9);
  EXPECT_EQ(event.rest(), -0.75);
  EXPECT_EQ(event.named(0).logprob(), -2.5f);
  EXPECT_EQ(event.logits(), std::string("\x00\x3c\x00\xc0", 4));
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.finished().cached_tokens(), 1u);
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(GrpcTest, WrongTextsHaveTheirSentence) {
  Serve();
  auto drained = [&](const std::string& worker) {
    grpc::ClientContext context;
    v1::DrainRequest request;
    request.set_worker(worker);
    v1::ChangeReply reply;
    return admin_->Drain(&context, request, &reply);
  };
  auto resized = [&](const std::string& ranges) {
    grpc::ClientContext context;
    v1::ResizeRequest request;
    request.set_ranges(ranges);
    v1::ChangeReply reply;
    return admin_->Resize(&context, request, &reply);
  };
  for (const grpc::Status& status : {drained("w\xFF"), resized("0-3\xC3")}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("is not UTF-8"));
  }
  EXPECT_THAT(drained("nobody").error_message(), HasSubstr("no worker 'nobody'"));
  const grpc::Status cut = resized("0-1" + std::string(200'000, ' '));
  EXPECT_EQ(cut.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(cut.error_message(), HasSubstr("200003 bytes, at most 100000"));
  // An error as long as the ranges would not fit into gRPC's metadata.
  const grpc::Status lengthy = resized(std::string(50'000, 'z'));
  EXPECT_EQ(lengthy.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_GT(lengthy.error_message().size(), 20u);
  grpc::ClientContext prompt_context, text_context;
  v1::PromptRequest prompt;
  prompt.set_messages("[\"\xFF\"]");
  v1::PromptReply prompt_reply;
  EXPECT_THAT(inference_->Prompt(&prompt_context, prompt, &prompt_reply).error_message(), HasSubstr("not JSON"));
  v1::TokenizeRequest text;
  text.set_text("a\xFFz");
  v1::TokenizeReply text_reply;
  EXPECT_TRUE(inference_->Tokenize(&text_context, text, &text_reply).ok());
  EXPECT_EQ(std::vector<TokenId>(text_reply.ids().begin(), text_reply.ids().end()),
            model_->tokenizer()->Encode("a\xFFz", {}));
}

// A client that has no tokenizer can part the answer.
TEST_F(GrpcTest, APromptSaysHowTheAnswerIsMarked) {
  const auto file = testing::DemoModelWithTemplate("{{ messages[0]['content'] + '<think>' }}{# </think> #}");
  const testing::TinyModelFile written(file);
  const auto before = std::exchange(model_, *OpenModel(written.path()));
  Serve();
  grpc::ClientContext context;
  v1::PromptRequest request;
  request.set_messages(R"([{"role": "user", "content": "Hi"}])");
  v1::PromptReply reply;
  ASSERT_TRUE(inference_->Prompt(&context, request, &reply).ok());
  EXPECT_EQ(reply.answer().open(), "<think>");
  EXPECT_EQ(reply.answer().close(), "</think>");
  EXPECT_EQ(reply.answer().begins(), v1::AnswerFormat::IN_REASONING);
  EXPECT_FALSE(reply.answer().channels());
  TearDown();
  model_ = before;
}

// Long texts take a bounded pool of threads, so that the threads that read heartbeats stay free.
TEST_F(GrpcTest, LongTextsLeaveHeartbeatsAlone) {
  ServiceLimits limits;
  limits.prompt_bytes = 1000;
  limits.work_threads = 1;
  limits.queued_work = 1;
  Serve(limits);
  std::atomic<bool> go{false}, began{false};
  ASSERT_TRUE(service_
                  ->Post([&] {
                    began = true;
                    while (!go) std::this_thread::sleep_for(milliseconds(1));
                  })
                  .ok());
  ASSERT_TRUE(Eventually([&] { return began.load(); }));
  ASSERT_TRUE(service_->Post([] {}).ok());  // and this waits behind it, so the queue is full
  auto tokenize = [&](size_t bytes) {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    request.set_text(std::string(bytes, 'a'));
    v1::TokenizeReply reply;
    return inference_->Tokenize(&context, request, &reply);
  };
  EXPECT_EQ(tokenize(1000).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  {
    grpc::ClientContext context;
    v1::ModelReply reply;
    EXPECT_TRUE(inference_->Model(&context, {}, &reply).ok()) << "what needs no text is answered meanwhile";
  }
  go = true;
  EXPECT_TRUE(Eventually([&] { return tokenize(1000).ok(); }));
  EXPECT_EQ(tokenize(2000).error_code(), grpc::StatusCode::OUT_OF_RANGE);
}

TEST_F(GrpcTest, AWorkerThatFallsSilentIsNamed) {
  Serve({}, {.address = "127.0.0.1:0", .heartbeat_timeout = milliseconds(1200)});
  const auto stub = v1::Cluster::NewStub(channel_);
  const auto stream = stub->Attach(&context_);
  const WorkerHello hello{
      .name = "w7", .ring_address = "127.0.0.1:9", .model_hash = model_->content_hash(), .threads = 1, .instance = 42};
  ASSERT_TRUE(stream->Write(Encode(hello)));
  v1::Command welcome;
  ASSERT_TRUE(stream->Read(&welcome));
  EXPECT_EQ(welcome.welcome().name(), "w7");
  ASSERT_TRUE(Eventually([&] {
    const auto members = cluster_->status().members;
    return members.size() == 1 && members[0].info.instance == 42;
  }));
  EXPECT_EQ(cluster_->status().members[0].info.host, "127.0.0.1");
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(stream->Read(&welcome));
  stream->Finish();
  EXPECT_TRUE(Eventually([&] { return cluster_->status().members.empty(); }));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("w7 is gone: nothing was heard of w7 for 1.2 s"));
}

}  // namespace
}  // namespace gyre
