// Questions become requests, and their events reach readers that may be slow, within bounds.
#include "coordinator/service/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <thread>

#include "coordinator/engine/sequence.h"
#include "model/weights.h"
#include "tests/testing/cpu_time.h"
#include "tests/testing/demo_model.h"
#include "tests/testing/fake_engine.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FakeEngine;
using ::testing::HasSubstr;

TokenEvent TokenOf(size_t bytes) { return {.token = 5, .probability = 1, .text = std::string(bytes, 'x')}; }

Request AnyRequest() {
  Request r;
  r.prompt = {1};
  return r;
}

// Waits for what another thread does.
bool Soon(const std::function<bool()>& condition) {
  for (int i = 0; i < 4000 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(5));
  return condition();
}

class StreamTest : public ::testing::Test {
 protected:
  std::unique_ptr<EventStream> Open(StreamOptions options = {}) {
    auto stream = streams_->Submit(AnyRequest(), std::move(options));
    EXPECT_TRUE(stream.ok()) << stream.status();
    return stream.ok() ? *std::move(stream) : nullptr;
  }
  void Limit(const StreamLimits& limits) { streams_ = std::make_unique<EventStreams>(engine_.Calls(), limits); }

  FakeEngine engine_;
  std::unique_ptr<EventStreams> streams_ = std::make_unique<EventStreams>(engine_.Calls(), StreamLimits{});
};

TEST_F(StreamTest, EventsComeInOrderAndReadyIsCalledOnce) {
  std::atomic<int> ready{0};
  const auto stream = Open({.ready = [&] { ++ready; }});
  EXPECT_FALSE(stream->TryNext());
  engine_.Send(1, TokenEvent{.token = 7});
  engine_.Send(1, TokenEvent{.token = 8});
  engine_.Send(1, Finished{});
  EXPECT_EQ(ready, 1);
  EXPECT_EQ(std::get<TokenEvent>(*stream->TryNext()).token, 7);
  EXPECT_EQ(std::get<TokenEvent>(*stream->Next(kNoDeadline)).token, 8);
  EXPECT_TRUE(std::holds_alternative<Finished>(*stream->TryNext()));
  EXPECT_FALSE(stream->TryNext());
  EXPECT_FALSE(stream->Next(After(milliseconds(1))));
  EXPECT_EQ(streams_->queued_bytes(), 0u);
}

TEST_F(StreamTest, ASlowReaderHoldsItsSequenceBack) {
  Limit({.stream_bytes = 10'000});
  const auto stream = Open();
  int sent = 0;
  for (; !engine_.held(1) && sent < 1000; ++sent) engine_.Send(1, TokenOf(1000));
  EXPECT_LE(sent, 10);
  EXPECT_GT(streams_->queued_bytes(), 10'000u);
  int read = 0;
  for (; engine_.held(1) && read < 1000; ++read) ASSERT_TRUE(stream->TryNext());
  EXPECT_LT(read, sent);  // before all of it was read
  EXPECT_LE(streams_->queued_bytes(), 5'000u);
  EXPECT_FALSE(engine_.cancelled(1));
}

TEST_F(StreamTest, AReaderThatStandsStillIsDropped) {
  Limit({.stall = milliseconds(50)});
  std::atomic<int> ready{0};
  const auto stream = Open({.ready = [&] { ++ready; }});
  engine_.Send(1, TokenOf(1'000'000));
  ASSERT_TRUE(Soon([&] { return stream->dropped() && ready > 0; }));
  EXPECT_TRUE(engine_.cancelled(1));
  EXPECT_LT(streams_->queued_bytes(), 1000u);
  engine_.Send(1, TokenOf(1000));  // what comes late is nothing
  engine_.Send(1, Cancelled{});
  const std::optional<Event> last = stream->TryNext();
  ASSERT_TRUE(last && std::holds_alternative<Failed>(*last));
  EXPECT_THAT(Message(std::get<Failed>(*last).status), HasSubstr("reads too slowly"));
  EXPECT_FALSE(stream->TryNext());
}

TEST_F(StreamTest, AFinishedStreamThatNobodyReadsGoesToo) {
  Limit({.stall = milliseconds(50)});
  const auto unread = Open();
  engine_.Send(1, TokenOf(1'000'000));
  engine_.Send(1, Finished{});
  EXPECT_TRUE(Soon([&] { return unread->dropped(); }));
  EXPECT_LT(streams_->queued_bytes(), 1000u);
  // So does one whose reader took all and never ended its call.
  const auto taken = Open();
  engine_.Send(2, Finished{});
  EXPECT_TRUE(taken->TryNext());
  EXPECT_TRUE(Soon([&] { return taken->dropped(); }));
  EXPECT_FALSE(taken->TryNext());
}

TEST_F(StreamTest, AReaderThatWaitsIsNotDropped) {
  Limit({.stall = milliseconds(50)});
  const auto waiting = Open();
  const auto own = Open({.may_stall = true});
  EXPECT_FALSE(waiting->TryNext());
  engine_.Send(2, TokenOf(10));
  const auto late = Open();  // it stands still: once it is dropped the others would have been, too
  engine_.Send(3, TokenOf(10));
  EXPECT_TRUE(Soon([&] { return late->dropped(); }));
  EXPECT_FALSE(waiting->dropped());
  EXPECT_FALSE(own->dropped());
}

TEST_F(StreamTest, AllStreamsTogetherAreBounded) {
  Limit({.stream_bytes = 10'000, .total_bytes = 100'000});
  std::vector<std::unique_ptr<EventStream>> streams;
  for (uint64_t n = 1; n <= 20; ++n) {
    streams.push_back(Open());
    for (int i = 0; i < 12; ++i) engine_.Send(n, TokenOf(1000));  // as many as an engine sends that holds too late
  }
  EXPECT_LE(streams_->queued_bytes(), 120'000u);
  size_t dropped = 0;
  for (const auto& s : streams) dropped += s->dropped();
  EXPECT_GT(dropped, 5u);
  EXPECT_LT(dropped, 20u);
}

TEST_F(StreamTest, AsManyStreamsAsAllowed) {
  Limit({.streams = 3, .scoring_streams = 1});
  Request scoring = AnyRequest();
  scoring.prompt_logits = true;
  auto first = streams_->Submit(scoring, {});
  ASSERT_TRUE(first.ok());
  const auto second = streams_->Submit(scoring, {});
  EXPECT_TRUE(absl::IsResourceExhausted(second.status()));
  EXPECT_THAT(Message(second.status()), HasSubstr("at most 1"));
  const auto b = Open(), c = Open();
  EXPECT_TRUE(absl::IsResourceExhausted(streams_->Submit(AnyRequest(), {}).status()));
  first->reset();
  EXPECT_TRUE(engine_.cancelled(1));  // its reader left
  EXPECT_TRUE(streams_->Submit(scoring, {}).ok());
  engine_.refusal = Unavailable("no plan yet");
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(absl::IsUnavailable(streams_->Submit(AnyRequest(), {}).status()));
  engine_.refusal = absl::OkStatus();
  EXPECT_TRUE(streams_->Submit(AnyRequest(), {}).ok());
}

TEST_F(StreamTest, CancelEndsInCancelled) {
  const auto stream = Open();
  stream->Cancel();
  EXPECT_TRUE(engine_.cancelled(1));
  engine_.Send(1, Cancelled{});
  EXPECT_TRUE(std::holds_alternative<Cancelled>(*stream->Next(kNoDeadline)));
}

class ServiceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = *OpenModel(GYRE_DEMO_MODEL); }
  static void TearDownTestSuite() { model_ = nullptr; }
  Status Refused(Question q) { return service_.MakeRequest(std::move(q)).status(); }

  static std::shared_ptr<const Model> model_;
  FakeEngine engine_;
  Service service_{*model_,
                   engine_.Calls(),
                   100,
                   {.prompt_bytes = 1000, .requests = {.max_stops = 2, .max_stop_bytes = 10, .max_stop_ids = 3}}};
};
std::shared_ptr<const Model> ServiceTest::model_;

Conversation Saying(const std::string& text) {
  Conversation c;
  c.messages = {boost::json::object{{"role", "user"}, {"content", text}}};
  return c;
}

TEST_F(ServiceTest, AllSettingsReachTheRequest) {
  Question q{{.sampling = {.temperature = 0.5f, .seed = 9},
              .stops = {"a", "b"},
              .stop_ids = {4, 5},
              .ignore_end = true,
              .priority = 2,
              .tenant = 8,
              .cache_salt = 9,
              .deadline = Deadline() + seconds(5)},
             IdsInput{1, 2, 3},
             7};
  const auto r = service_.MakeRequest(q);
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ(r->prompt, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(r->sampling.temperature, 0.5f);
  EXPECT_EQ(r->sampling.seed, 9u);
  EXPECT_EQ(r->max_new_tokens, 7u);
  EXPECT_EQ(r->stops, q.stops);
  EXPECT_EQ(r->stop_ids, q.stop_ids);
  EXPECT_TRUE(r->ignore_end);
  EXPECT_FALSE(r->prompt_logits);
  EXPECT_EQ(r->priority, 2);
  EXPECT_EQ(r->tenant, 8u);
  EXPECT_EQ(r->cache_salt, 9u);
  EXPECT_EQ(r->deadline, q.deadline);
  // Until the context is full.
  EXPECT_EQ(service_.MakeRequest({.input = IdsInput{1, 2, 3}})->max_new_tokens, 97u);
  const auto scored = service_.MakeRequest({{.prompt_logits = true}, IdsInput{1, 2, 3}});
  EXPECT_TRUE(scored->prompt_logits);
  EXPECT_EQ(scored->max_new_tokens, 0u);
  const auto logprobs = service_.MakeRequest({{.logprobs = 5, .prompt_logprobs = 0}, IdsInput{1, 2}});
  EXPECT_EQ(logprobs->logprobs, 5u);
  EXPECT_EQ(logprobs->prompt_logprobs, 0u);
  EXPECT_EQ(logprobs->max_new_tokens, 98u);
  const auto embedding = service_.MakeRequest({{.embedding = Pooling::kLast}, IdsInput{1, 2}});
  EXPECT_EQ(embedding->embedding, Pooling::kLast);
  EXPECT_EQ(embedding->max_new_tokens, 0u);
}

// docs/wire.md has these numbers.
TEST(RequestLimitsTest, ARequestHasAtMost64StopsOf4096BytesAnd4096StopIds) {
  const auto fits = [](size_t stops, size_t bytes, size_t ids) {
    return CheckStops(std::vector<std::string>(stops, std::string(bytes, 'x')), ids, {}).ok();
  };
  EXPECT_TRUE(fits(64, 4096, 4096));
  EXPECT_FALSE(fits(65, 1, 0));
  EXPECT_FALSE(fits(1, 4097, 0));
  EXPECT_FALSE(fits(0, 0, 4097));
}

// What the model's maker recommends is the default of each request; the rest is as for any model.
TEST(DefaultSamplingTest, FollowsTheModel) {
  testing::TinyOptions options;
  const auto plain = testing::BuildTinyModel(options);
  EXPECT_EQ(DefaultSampling(**OpenModelFromBytes(plain)), SamplingParams{});
  options.more = [](testing::GgufWriter& w) {
    w.Float("general.sampling.temp", 0.6f);
    w.Uint("general.sampling.top_k", 20);
    w.Float("general.sampling.top_p", 7);  // out of its range, so it counts for nothing
  };
  const auto bytes = testing::BuildTinyModel(options);
  const auto model = OpenModelFromBytes(bytes);
  ASSERT_TRUE(model.ok()) << model.status();
  SamplingParams expected;
  expected.temperature = 0.6f;
  expected.top_k = 20;
  EXPECT_EQ(DefaultSampling(**model), expected);
}

TEST_F(ServiceTest, IdsBecomeBytesAgain) {
  const Tokenizer& t = *model_->tokenizer();
  const std::string text = "Gyre \xE2\x82\xAC and\n more";
  const std::vector<TokenId> ids = t.Encode(text, {.add_special = true});
  EXPECT_EQ(*service_.Detokenize(ids), text);
  EXPECT_EQ(*service_.Detokenize({}), "");
  std::string joined;
  for (TokenId id : ids) joined += *service_.TokenBytes(id);
  EXPECT_THAT(joined, ::testing::EndsWith(text));
  ASSERT_EQ(t.type(t.eos()), TokenType::kControl);
  EXPECT_EQ(*service_.TokenBytes(t.eos()), "");
  EXPECT_EQ(*service_.TokenBytes(t.eos(), true), t.Text(t.eos()));
  std::vector<TokenId> ended = t.Encode("a b", {});
  const std::string plain = *service_.Detokenize(ended);
  ended.push_back(t.eos());
  EXPECT_EQ(*service_.Detokenize(ended), plain);
  EXPECT_EQ(*service_.Detokenize(ended, true), plain + t.Text(t.eos()));
  const int vocab = model_->spec().vocab;
  for (TokenId id : {-1, vocab}) {
    EXPECT_THAT(Message(service_.TokenBytes(id).status()), HasSubstr("out of range, the vocabulary has 0-"));
    EXPECT_TRUE(absl::IsInvalidArgument(service_.Detokenize({5, id}).status()));
  }
  EXPECT_TRUE(service_.TokenBytes(vocab - 1).ok());
  const std::vector<TokenId> many(1001, t.Encode("a", {}).back());
  EXPECT_THAT(Message(service_.Detokenize(many).status()), HasSubstr("1001 ids has more than 1000 bytes"));
}

// The end of a text names its cause: a stop string, an id, or neither.
TEST_F(ServiceTest, FinishedSaysWhatEndedTheText) {
  const Tokenizer& t = *model_->tokenizer();
  const auto ended = [&](Request request, std::vector<TokenId> ids) {
    request.prompt = {1};
    request.stops = {"xyz", "", "two", "twofold"};
    Sequence s(SeqId{1}, std::move(request), {}, Deadline());
    for (TokenId id : ids) {
      if (s.Accept({.token = id}, &t, Deadline()).stopped) break;
    }
    return s.MakeFinished(FinishReason::kStop, Deadline());
  };
  const Finished by_text = ended({}, t.Encode("one two three", {}));
  EXPECT_EQ(by_text.stop, "two");
  EXPECT_EQ(by_text.stop_id, -1);
  const Finished by_end = ended({}, {t.Encode("one", {})[0], t.eos()});
  EXPECT_EQ(by_end.stop, "");
  EXPECT_EQ(by_end.stop_id, t.eos());
  Request stop_ids;
  stop_ids.stop_ids = {t.Encode("one", {}).back()};
  EXPECT_EQ(ended(stop_ids, t.Encode("one", {})).stop_id, stop_ids.stop_ids[0]);
  stop_ids.ignore_end = true;
  const Finished neither = ended(stop_ids, t.Encode("one", {}));
  EXPECT_EQ(neither.stop, "");
  EXPECT_EQ(neither.stop_id, -1);
}

TEST_F(ServiceTest, TextsAndConversationsBecomeTheSameIdsAsByTheirTools) {
  const std::string text = "What is Gyre?";
  const auto by_text = service_.MakeRequest({.input = TextInput{.text = text}});
  ASSERT_TRUE(by_text.ok()) << by_text.status();
  EXPECT_EQ(by_text->prompt, model_->tokenizer()->Encode(text, {.add_special = true}));
  const auto by_chat = service_.MakeRequest({{.stop_ids = {3}}, ChatInput{Saying(text), ""}});
  ASSERT_TRUE(by_chat.ok()) << by_chat.status();
  const auto expected = ChatPrompts(*model_).Make("", Saying(text));
  EXPECT_EQ(by_chat->prompt, expected->ids);
  std::vector<TokenId> ends{3};
  ends.insert(ends.end(), expected->stop_ids.begin(), expected->stop_ids.end());
  EXPECT_EQ(by_chat->stop_ids, ends);
  const auto parsed = service_.ParseConversation(R"([{"role":"user","content":"What is Gyre?"}])", "");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(service_.Prompt({*parsed, ""})->ids, expected->ids);
}

TEST_F(ServiceTest, AnInputGoesOnBehindTheTokensOfAnEarlierAnswer) {
  const std::vector<TokenId> before{1, 40, 41};
  const auto behind = [&](std::vector<TokenId> ids) {
    if (!ids.empty() && ids.front() == model_->tokenizer()->bos()) ids.erase(ids.begin());
    ids.insert(ids.begin(), before.begin(), before.end());
    return ids;
  };
  const std::string text = "What is Gyre?";
  const auto by_text = service_.MakeRequest({.input = TextInput{.text = text}, .before = before});
  ASSERT_TRUE(by_text.ok()) << by_text.status();
  EXPECT_EQ(by_text->prompt, behind(model_->tokenizer()->Encode(text, {.add_special = false})));
  const auto by_chat = service_.MakeRequest({.input = ChatInput{Saying(text), ""}, .before = before});
  ASSERT_TRUE(by_chat.ok()) << by_chat.status();
  const auto chat = ChatPrompts(*model_).Make("", Saying(text));
  EXPECT_EQ(by_chat->prompt, behind(chat->ids));
  EXPECT_EQ(by_chat->stop_ids, chat->stop_ids);
  EXPECT_EQ(service_.MakeRequest({.input = IdsInput{7, 8}, .before = before})->prompt, behind({7, 8}));
  EXPECT_EQ(service_.MakeRequest({.input = TextInput{}, .before = before})->prompt, before);
  EXPECT_TRUE(absl::IsOutOfRange(Refused({.input = IdsInput(50, 1), .before = IdsInput(51, 1)})));
}

TEST_F(ServiceTest, WhatIsTooMuchIsRefusedWithItsNumber) {
  const std::string big(1001, 'x');
  EXPECT_THAT(Message(Refused({.input = TextInput{big}})), HasSubstr("1001 bytes, a prompt may have 1000"));
  EXPECT_THAT(Message(Refused({.input = ChatInput{Saying(big), ""}})), HasSubstr("the conversation"));
  EXPECT_TRUE(absl::IsOutOfRange(service_.ParseConversation(big, "").status()));
  EXPECT_TRUE(absl::IsOutOfRange(Refused({.input = TextInput{big}})));
  EXPECT_THAT(Message(service_.ParseConversation("{}", "").status()), HasSubstr("not a JSON array"));
  EXPECT_THAT(Message(service_.ParseConversation("[\"\xFF\"]", "").status()), HasSubstr("not JSON"));
  EXPECT_THAT(Message(service_.ParseConversation("[]", "{").status()), HasSubstr("tools: not JSON"));
  EXPECT_TRUE(absl::IsInvalidArgument(Refused({.input = IdsInput{}})));
  const Status long_prompt = Refused({.input = IdsInput(101, 1)});
  EXPECT_TRUE(absl::IsOutOfRange(long_prompt));
  EXPECT_THAT(Message(long_prompt), HasSubstr("101 tokens, the context holds 100"));
  EXPECT_TRUE(service_.MakeRequest({.input = IdsInput(100, 1)}).ok());
  EXPECT_THAT(Message(Refused({{.stops = {"a", "b", "c"}}, IdsInput{1}})), HasSubstr("3 stop strings"));
  EXPECT_THAT(Message(Refused({{.stops = {std::string(11, 'a')}}, IdsInput{1}})), HasSubstr("11 bytes"));
  EXPECT_THAT(Message(Refused({{.stop_ids = {1, 2, 3, 4}}, IdsInput{1}})), HasSubstr("4 stop ids"));
  EXPECT_TRUE(absl::IsInvalidArgument(Refused({{.sampling = {.top_p = 0}}, IdsInput{1}})));
}

TEST_F(ServiceTest, RunHandsEventsOverAndCancels) {
  std::thread engine([&] {
    while (engine_.requests().empty()) std::this_thread::sleep_for(milliseconds(1));
    engine_.Send(1, TokenEvent{.token = 3});
    while (!engine_.cancelled(1)) std::this_thread::sleep_for(milliseconds(1));
    engine_.Send(1, Cancelled{});
  });
  int tokens = 0, ends = 0;
  const Status status = service_.Run(
      AnyRequest(),
      [&](const Event& e) {
        tokens += std::holds_alternative<TokenEvent>(e);
        ends += std::holds_alternative<Cancelled>(e);
      },
      [&] { return tokens > 0; });
  engine.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(tokens, 1);
  EXPECT_EQ(ends, 1);
}

TEST_F(ServiceTest, WorkIsBounded) {
  Service small(*model_, engine_.Calls(), 100, {.queued_work = 2, .queued_bytes = 100, .work_threads = 1});
  std::atomic<bool> go{false}, began{false};
  std::atomic<int> done{0};
  ASSERT_TRUE(small
                  .Post([&] {
                    began = true;
                    while (!go) std::this_thread::sleep_for(milliseconds(1));
                    throw std::runtime_error("no exception leaves the thread");
                  })
                  .ok());
  ASSERT_TRUE(Soon([&] { return began.load(); }));
  EXPECT_TRUE(small.Post([&] { ++done; }, 60).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(small.Post([&] { ++done; }, 41)));
  EXPECT_TRUE(small.Post([&] { ++done; }, 40).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(small.Post([&] { ++done; })));
  go = true;
  EXPECT_TRUE(Soon([&] { return done == 2; }));
  EXPECT_TRUE(small.Post([&] { ++done; }, 100).ok()) << "what ran waits no longer";
  EXPECT_TRUE(Soon([&] { return done == 3; }));
}

// The conversations that are tried out take long with this template, and all others do not.
TEST(ChatPromptsTest, WhatATemplateReadsIsFoundOnce) {
  const testing::TinyModelFile file(testing::DemoModelWithTemplate(
      "{%for m in messages%}{%if 'gyre4' in m|tojson%}{%for i in range(100)%}{%for j in range(100)%}{%endfor%}"
      "{%endfor%}{%endif%}[{{m.role}}:{{m.reasoning_content}}|{{m.content}}{{m.tool_calls|default([])|tojson}}]{%"
      "endfor%}"));
  const auto model = OpenModel(file.path());
  ASSERT_TRUE(model.ok()) << model.status();
  const ChatPrompts chats(**model);
  Conversation conversation;
  conversation.messages = boost::json::parse(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b",
          "reasoning_content": "c", "tool_calls": [{"id": "d", "type": "function", "function": {"name": "e",
          "arguments": "{\"f\": 1}"}}]}, {"role": "tool", "tool_call_id": "d", "name": "e", "content": "g"}])")
                              .as_array();
  const auto seconds_of_one = [&] {
    const double begun = testing::ThreadSeconds();
    const auto prompt = chats.Make("", conversation);
    EXPECT_TRUE(prompt.ok()) << prompt.status();
    return testing::ThreadSeconds() - begun;
  };
  const double first = seconds_of_one();
  EXPECT_LT(seconds_of_one(), first / 4);
  const auto text = chats.Text("", conversation);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr(R"([assistant:c|b[{"id": "d", "type": "function", "function": {"name": "e", )"
                               R"("arguments": {"f": 1}}}]])"));
}

}  // namespace
}  // namespace gyre
