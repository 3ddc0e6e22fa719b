// Real processes on loopback: a coordinator, workers that join it, and clients, as a user starts them.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "cli/local_ring.h"
#include "cli/remote.h"
#include "cli/target.h"
#include "gyre/v1/admin.grpc.pb.h"
#include "gyre/v1/cluster.grpc.pb.h"
#include "gyre/v1/inference.grpc.pb.h"
#include "proto/convert.h"
#include "tests/testing/logits_distance.h"
#include "tests/testing/process.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/shared_data.h"
#include "tests/testing/tcp_pair.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Process;
using ::testing::HasSubstr;

// One cluster of processes.
class Ring {
 public:
  // `before`: words in front of the coordinator's command.
  explicit Ring(std::string model, std::vector<std::string> serve_flags = {}, std::vector<std::string> before = {})
      : model_(std::move(model)) {
    std::vector<std::string> command = std::move(before);
    const std::string words[] = {GYRE_BINARY, "serve", model_, "--cluster", "127.0.0.1:0", "--kv-type", "f32",
                                 "--block-size", "4", "--chunk", "8"};
    command.insert(command.end(), std::begin(words), std::end(words));
    command.insert(command.end(), serve_flags.begin(), serve_flags.end());
    Serve(std::move(command));
  }
  void Serve(std::vector<std::string> command) {
    serve_ = std::make_unique<Process>(std::move(command));
    const auto at = serve_->WaitFor("listening ");
    EXPECT_TRUE(at.has_value()) << serve_->output();
    address_ = at.value_or("");
  }
  Process& AddWorker(const std::string& name, std::vector<std::string> flags = {}) {
    std::vector<std::string> command{GYRE_BINARY, "worker", "--join", address_, "--name", name, "-t", "1"};
    command.insert(command.end(), flags.begin(), flags.end());
    return *workers_.emplace_back(std::make_unique<Process>(std::move(command)));
  }
  // Waits until a plan of `stages` stages serves.
  bool Serves(int stages) {
    for (int i = 0; i < 4000; ++i) {
      auto status = FetchStatus(address_);
      if (status.ok() && status->state() == "serving" && status->has_epoch()) {
        int owners = 0;
        for (const auto& m : status->members()) owners += m.has_layers();
        if (owners == stages) return true;
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
    ADD_FAILURE() << serve_->output();
    return false;
  }
  Process& serve() { return *serve_; }
  Process& worker(size_t i) { return *workers_[i]; }
  const std::string& address() const { return address_; }

 private:
  const std::string model_;
  std::unique_ptr<Process> serve_;
  std::vector<std::unique_ptr<Process>> workers_;
  std::string address_;
};

RingOptions OneProcess(const std::string& model) {
  RingOptions o;
  o.model = model;
  o.threads = 1;
  o.kv_type = "f32";
  o.block_size = 4;
  o.quiet = true;
  return o;
}

Request Ask(int seed, int vocab, uint32_t tokens) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  Request r;
  const size_t length = 3 + random() % 120;
  for (size_t i = 0; i < length; ++i) r.prompt.push_back(static_cast<TokenId>(3 + random() % static_cast<uint32_t>(vocab - 3)));
  r.max_new_tokens = tokens;
  r.sampling.temperature = seed % 2 == 0 ? 0 : 0.8f;
  r.sampling.seed = static_cast<uint64_t>(seed);
  r.ignore_end = true;
  return r;
}

// Eight clients that ask again and again.
class Clients {
 public:
  struct Text {
    int seed;
    std::vector<TokenId> tokens;
    Status status;
    int finished = 0;
  };
  Clients(const std::string& address, int vocab, uint32_t tokens) {
    for (int c = 0; c < 8; ++c) {
      threads_.emplace_back([this, address, vocab, tokens, c] {
        auto target = OpenRemote(address);
        if (!target.ok()) return;
        for (int i = 0; !stop_; ++i) {
          Text text{.seed = (c + 8 * i) % kTexts, .tokens = {}, .status = {}};
          text.status = (*target)->Run(Ask(text.seed, vocab, tokens), [&](const Event& event) {
            if (auto* t = std::get_if<TokenEvent>(&event)) {
              text.tokens.push_back(t->token);
              ++tokens_;
            }
            text.finished += std::holds_alternative<Finished>(event) ? 1 : 0;
          });
          const bool failed = !text.status.ok();
          {
            std::lock_guard lock(mutex_);
            texts_.push_back(std::move(text));
          }
          if (failed) return;
        }
      });
    }
  }
  ~Clients() { Stop(); }
  std::vector<Text> Stop() {
    stop_ = true;
    for (auto& t : threads_) t.join();
    threads_.clear();
    return texts_;
  }
  // All have ended by themselves, as they do after an error.
  bool Ended(size_t n) {
    std::lock_guard lock(mutex_);
    size_t failed = 0;
    for (const Text& t : texts_) failed += !t.status.ok();
    return failed == n;
  }
  uint64_t tokens() const { return tokens_; }
  size_t ended() {
    std::lock_guard lock(mutex_);
    return texts_.size();
  }
  static constexpr int kTexts = 16;

 private:
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> tokens_{0};
  std::mutex mutex_;
  std::vector<Text> texts_;
  std::vector<std::thread> threads_;
};

std::string RandomRanges(std::mt19937& random, int layers, const std::vector<std::string>& names) {
  std::vector<std::string> order = names;
  std::shuffle(order.begin(), order.end(), random);
  const size_t n = 1 + random() % order.size();
  std::set<int> cuts;
  while (cuts.size() + 1 < n) cuts.insert(1 + static_cast<int>(random() % static_cast<uint32_t>(layers - 1)));
  cuts.insert(layers);
  std::string out;
  int begin = 0;
  auto name = order.begin();
  for (int cut : cuts) {
    out += fmt::format("{}{}={}-{}", out.empty() ? "" : ",", *name++, begin, cut - 1);
    begin = cut;
  }
  return out;
}

// The main proof: sentences go on while layers move between processes.
// Without the prefix cache prompts take their time, and some are found half done.
void ResizeUnderLoad(const std::string& model, int layers, int vocab, int resizes, uint32_t tokens, bool prefix_cache) {
  std::vector<std::vector<TokenId>> expected;
  {
    auto alone = LocalRing::Open(OneProcess(model));
    ASSERT_TRUE(alone.ok()) << alone.status();
    for (int i = 0; i < Clients::kTexts; ++i) expected.push_back(testing::RunOne((*alone)->engine(), Ask(i, vocab, tokens)).tokens);
  }
  std::vector<std::string> flags{"--no-local", "--min-workers", "3"};
  if (!prefix_cache) flags.emplace_back("--no-prefix-cache");
  Ring ring(model, flags);
  for (const char* name : {"w1", "w2", "w3"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(3));
  Clients clients(ring.address(), vocab, tokens);
  std::mt19937 random(5);
  uint64_t pages = 0;
  int between_tokens = 0;
  // Until enough was met on the way to prove something.
  auto met = [&] {
    const auto status = FetchStatus(ring.address());
    return status.ok() && (status->held_in_prefill() > 0 || prefix_cache) && status->held_in_partial_block() > 0 && pages > 100 && clients.ended() > 8;
  };
  int done = 0;
  for (; done < resizes || (!met() && done < 100); ++done) {
    const uint64_t from = clients.tokens();
    for (const uint64_t until = from + 10 + random() % 80; clients.tokens() < until;) std::this_thread::sleep_for(milliseconds(1));
    const uint64_t before = clients.tokens();
    const std::string ranges = RandomRanges(random, layers, {"w1", "w2", "w3"});
    const auto change = AskResize(ring.address(), ranges);
    ASSERT_TRUE(change.ok()) << ranges << ": " << change.status() << '\n' << ring.serve().output();
    pages += change->pages_moved();
    between_tokens += clients.tokens() > before;
  }
  const auto texts = clients.Stop();
  EXPECT_GT(texts.size(), 8u);
  for (const auto& text : texts) {
    EXPECT_TRUE(text.status.ok()) << text.status;
    EXPECT_EQ(text.finished, 1);
    EXPECT_EQ(text.tokens, expected[static_cast<size_t>(text.seed)]) << "text " << text.seed;
  }
  const auto status = FetchStatus(ring.address());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->rows_replayed(), 0u) << "tokens were computed again";
  EXPECT_EQ(status->failed(), 0u);
  EXPECT_EQ(status->plans(), static_cast<uint64_t>(done) + 1);
  EXPECT_GT(pages, 100u);
  EXPECT_GT(between_tokens, done / 4);
  if (!prefix_cache) EXPECT_GT(status->held_in_prefill(), 0u);
  EXPECT_GT(status->held_in_partial_block(), 0u);
  // Ctrl-C ends all of them cleanly.
  for (size_t i = 0; i < 3; ++i) ring.worker(i).Kill(SIGINT);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(ring.worker(i).Wait(seconds(10)), 0) << ring.worker(i).output();
  ring.serve().Kill(SIGINT);
  EXPECT_EQ(ring.serve().Wait(seconds(10)), 0) << ring.serve().output();
}

TEST(RingProcessesTest, TinyModelResizesUnderLoad) {
  testing::TinyModelFile model{testing::TinyOptions{.layers = 6}};
  ResizeUnderLoad(model.path(), 6, 96, testing::kSanitized ? 6 : 20, 100, false);
}

TEST(RingProcessesTest, StoriesResizeUnderLoad) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: the trained model is not there";
  ResizeUnderLoad(testing::SharedData("models/stories260K.gguf"), 5, 512, testing::kSanitized ? 4 : 20, 200, true);
}

TEST(RingProcessesTest, QuantizedGoldenModelResizesUnderLoad) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: the golden models are not there";
  auto model = OpenModel(testing::SharedData("golden/tiny-llama-s0-Q8_0.gguf"));
  ASSERT_TRUE(model.ok()) << model.status();
  ResizeUnderLoad((*model)->path(), static_cast<int>((*model)->spec().layers.size()), (*model)->spec().vocab,
                  testing::kSanitized ? 4 : 10, 100, true);
}

// Bytes of a row of activations between the stages, frames and descriptors counted; 0 = none travelled.
uint64_t BytesPerRow(const v1::StatusReply& status) {
  uint64_t rows = 0, bytes = 0;
  for (const auto& m : status.members()) {
    rows += m.rows_sent();
    bytes += m.row_bytes_sent();
  }
  return rows == 0 ? 0 : bytes / rows;
}

// Activations that travel rounded: texts are those of one process cut at the same places, whoever has the layers, whatever
// runs beside them, and while the layers change hands.
void SameCutSameText(const std::string& wire, double share_of_f32) {
  SCOPED_TRACE(wire);
  constexpr int kVocab = 96;
  constexpr uint32_t kTokens = 60;
  Request scored = Ask(3, kVocab, 0);
  scored.prompt_logits = true;
  testing::Logits logits, exact;
  const char* const cuts[] = {"0-1,2-3,4-5", "w1=0-1,w2=2-3,w3=4-5", "w3=0-1,w1=2-3,w2=4-5", "w2=0-1,w3=2-3,w1=4-5"};
  testing::TinyModelFile model{testing::TinyOptions{.dim = 128, .layers = 6}};
  std::vector<std::vector<TokenId>> expected;
  uint64_t others = 0;  // texts that f32 would write otherwise
  {
    RingOptions cut = OneProcess(model.path());
    cut.stages = 3;
    cut.wire = wire;
    auto ring = LocalRing::Open(cut), alone = LocalRing::Open(OneProcess(model.path()));
    ASSERT_TRUE(ring.ok() && alone.ok()) << ring.status() << alone.status();
    const auto change = (*ring)->cluster().ResizeAndWait(cuts[0]);
    ASSERT_TRUE(change.ok()) << change.status();
    for (int i = 0; i < Clients::kTexts; ++i) {
      expected.push_back(testing::RunOne((*ring)->engine(), Ask(i, kVocab, kTokens)).tokens);
      others += testing::RunOne((*alone)->engine(), Ask(i, kVocab, kTokens)).tokens != expected.back();
    }
    logits = testing::RunOne((*ring)->engine(), scored).logits;
    exact = testing::RunOne((*alone)->engine(), scored).logits;
    ASSERT_EQ(logits.size(), scored.prompt.size());
  }
  const testing::Distance distance = testing::Between(exact, logits);
  const double rounding = testing::RoundingOf(*ParseWireType(wire), 2);
  EXPECT_GE(distance.rms, 0.7 * rounding);
  EXPECT_LE(distance.rms, 1.8 * rounding);
  EXPECT_LE(distance.most, 10 * rounding);
  if (wire == "f32") EXPECT_EQ(others, 0u);
  if (wire == "q8") EXPECT_GT(others, 0u) << "nothing was rounded";
  Ring ring(model.path(), {"--no-local", "--min-workers", "3", "--wire", wire});
  for (const char* name : {"w1", "w2", "w3"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(3));
  ASSERT_TRUE(AskResize(ring.address(), cuts[1]).ok());
  Clients clients(ring.address(), kVocab, kTokens);
  const int moves = testing::kSanitized ? 3 : 9;
  for (int i = 0; i < moves; ++i) {
    for (const uint64_t until = clients.tokens() + 60; clients.tokens() < until;) std::this_thread::sleep_for(milliseconds(1));
    const auto change = AskResize(ring.address(), cuts[1 + (i + 1) % 3]);
    ASSERT_TRUE(change.ok()) << change.status() << ring.serve().output();
  }
  const auto texts = clients.Stop();
  EXPECT_GE(texts.size(), 8u);
  for (const auto& text : texts) {
    EXPECT_TRUE(text.status.ok()) << text.status;
    EXPECT_EQ(text.tokens, expected[static_cast<size_t>(text.seed)]) << "text " << text.seed;
  }
  testing::Logits there;
  auto target = OpenRemote(ring.address());
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_TRUE((*target)->Run(scored, [&](const Event& event) {
    if (auto* row = std::get_if<LogitsEvent>(&event)) there.push_back(row->logits);
  }).ok());
  EXPECT_TRUE(there == logits) << "bit for bit those of the same cut in one process";
  std::this_thread::sleep_for(milliseconds(1200));  // two heartbeats
  const auto status = FetchStatus(ring.address());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->wire(), wire);
  // A decode's descriptor has 45 bytes and 4 for each of its 4 positions; a header has 64.
  const auto bytes = static_cast<double>(BytesPerRow(*status));
  EXPECT_GT(bytes, share_of_f32 * 512);
  EXPECT_LT(bytes, share_of_f32 * 512 + 250);
  EXPECT_THAT(FormatStatus(*status), HasSubstr("activations as " + wire + ";"));
}

TEST(RingProcessesTest, RoundedActivationsWriteTheSameTextOnTheSameCut) {
  SameCutSameText("f32", 1);
  SameCutSameText("f16", 0.5);
  SameCutSameText("q8", 34.0 / 128);
}

class ProcessesTest : public ::testing::Test {
 protected:
  testing::TinyModelFile model_{testing::TinyOptions{.layers = 6}};
};

TEST_F(ProcessesTest, AKilledWorkerEndsEveryRequestOnceAndTheNextIsTold) {
  Ring ring(model_.path(), {"--no-local", "--min-workers", "3"});
  for (const char* name : {"w1", "w2", "w3"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(3));
  Clients clients(ring.address(), 96, 400);
  while (clients.tokens() < 100) std::this_thread::sleep_for(milliseconds(1));
  ring.worker(1).Kill(SIGKILL);
  const auto killed = std::chrono::steady_clock::now();
  while (!clients.Ended(8) && std::chrono::steady_clock::now() - killed < seconds(10)) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_LT(std::chrono::steady_clock::now() - killed, seconds(3));
  for (const auto& text : clients.Stop()) {
    EXPECT_EQ(text.finished, text.status.ok() ? 1 : 0);
    if (!text.status.ok()) EXPECT_THAT(Message(text.status), HasSubstr("w2 with layers"));
  }
  auto target = OpenRemote(ring.address());
  ASSERT_TRUE(target.ok()) << target.status();
  const Status next = (*target)->Run(Ask(1, 96, 5), [](const Event&) {});
  EXPECT_THAT(Message(next), HasSubstr("w2 with layers"));
  EXPECT_THAT(Message(next), HasSubstr("2 of 3 workers"));
  // Another takes its place.
  ring.AddWorker("w4");
  ASSERT_TRUE(ring.Serves(3));
  EXPECT_TRUE((*target)->Run(Ask(1, 96, 5), [](const Event&) {}).ok());
}

TEST_F(ProcessesTest, AStoppedWorkerIsFoundByItsSilence) {
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  Clients clients(ring.address(), 96, 400);
  while (clients.tokens() < 100) std::this_thread::sleep_for(milliseconds(1));
  ring.worker(1).Kill(SIGSTOP);
  const auto stopped = std::chrono::steady_clock::now();
  while (!clients.Ended(8) && std::chrono::steady_clock::now() - stopped < seconds(10)) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_LT(std::chrono::steady_clock::now() - stopped, seconds(4));
  for (const auto& text : clients.Stop()) {
    if (!text.status.ok()) EXPECT_THAT(Message(text.status), HasSubstr("nothing was heard"));
  }
  // It comes back as a member when it goes on.
  ring.worker(1).Kill(SIGCONT);
  ASSERT_TRUE(ring.Serves(2));
}

TEST_F(ProcessesTest, WorkersOutliveTheirCoordinator) {
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  const std::string address = ring.address();
  ring.serve().Kill(SIGKILL);
  ring.serve().Wait(seconds(5));
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(ring.worker(i).WaitFor("lost the coordinator").has_value());
  ring.Serve({GYRE_BINARY, "serve", model_.path(), "--cluster", address, "--no-local", "--min-workers", "2"});
  ASSERT_TRUE(ring.Serves(2));
  auto target = OpenRemote(address);
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_TRUE((*target)->Run(Ask(1, 96, 5), [](const Event&) {}).ok());
}

TEST_F(ProcessesTest, LocalServesUntilWorkersAreThere) {
  Ring ring(model_.path(), {"--min-workers", "2"});
  ASSERT_TRUE(ring.Serves(1));
  Clients clients(ring.address(), 96, 200);
  while (clients.tokens() < 50) std::this_thread::sleep_for(milliseconds(1));
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  for (const auto& text : clients.Stop()) EXPECT_TRUE(text.status.ok()) << text.status;
  // And again where they go.
  const auto drained = AskDrain(ring.address(), "w1");
  ASSERT_TRUE(drained.ok()) << drained.status();
  EXPECT_EQ(drained->ranges(), "0-5");
  EXPECT_THAT(Message(AskDrain(ring.address(), "w1").status()), HasSubstr("has no layers"));
}

// A worker with little memory joins: the KV cache is cut, the running texts begin again on it and go on unchanged.
TEST_F(ProcessesTest, TheCacheIsCutToTheFirstWorkersMemory) {
  std::vector<std::vector<TokenId>> expected;
  {
    auto alone = LocalRing::Open(OneProcess(model_.path()));
    ASSERT_TRUE(alone.ok()) << alone.status();
    for (int i = 0; i < Clients::kTexts; ++i) expected.push_back(testing::RunOne((*alone)->engine(), Ask(i, 96, 150)).tokens);
  }
  Ring ring(model_.path(), {"--min-workers", "1"});
  ASSERT_TRUE(ring.Serves(1));
  Clients clients(ring.address(), 96, 150);
  while (clients.tokens() < 100) std::this_thread::sleep_for(milliseconds(1));
  const uint64_t before = FetchStatus(ring.address())->blocks();
  ring.AddWorker("small", {"--memory", "800k"});
  uint64_t after = before;
  for (int i = 0; i < 2000 && after == before; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    after = FetchStatus(ring.address())->blocks();
  }
  EXPECT_LT(after, before) << ring.serve().output();
  EXPECT_THAT(ring.serve().output(), HasSubstr("the KV cache is cut"));
  for (const uint64_t until = clients.tokens() + 500; clients.tokens() < until;) std::this_thread::sleep_for(milliseconds(1));
  for (const auto& text : clients.Stop()) {
    EXPECT_TRUE(text.status.ok()) << text.status;
    EXPECT_EQ(text.tokens, expected[static_cast<size_t>(text.seed)]) << "text " << text.seed;
  }
  const auto status = FetchStatus(ring.address());
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->failed(), 0u);
  EXPECT_EQ(status->members(0).name(), "small");
}

TEST_F(ProcessesTest, RefusalsHaveTheirSentence) {
  testing::TinyModelFile other{testing::TinyOptions{.seed = 9, .layers = 6}};
  Ring ring(model_.path(), {"--no-local", "--min-workers", "1", "--bit-equal", "--isa", "avx2"});
  Process& stranger = ring.AddWorker("stranger", {"--model", other.path(), "--isa", "avx2"});
  EXPECT_EQ(stranger.Wait(seconds(10)), 1);
  EXPECT_THAT(stranger.output(), HasSubstr("is another model file"));
  Process& lost = ring.AddWorker("lost", {"--model", "/nowhere.gguf", "--isa", "avx2"});
  EXPECT_EQ(lost.Wait(seconds(10)), 1);
  EXPECT_THAT(lost.output(), HasSubstr("/nowhere.gguf"));
  Process& ref = ring.AddWorker("plain", {"--isa", "ref"});
  EXPECT_EQ(ref.Wait(seconds(10)), 1);
  EXPECT_THAT(ref.output(), HasSubstr("computes with ref, the cluster asks for avx2"));
  ring.AddWorker("small", {"--isa", "avx2", "--memory", "1k"});
  std::string state;
  for (int i = 0; i < 1000 && state.find("needs") == std::string::npos; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    auto target = OpenRemote(ring.address());
    if (target.ok()) state = Message((*target)->Run(Ask(1, 96, 5), [](const Event&) {}));
  }
  EXPECT_THAT(state, HasSubstr("small needs"));
  EXPECT_THAT(state, HasSubstr("GiB"));
}

TEST_F(ProcessesTest, AnotherTypeOfActivationsIsRefused) {
  Process serve({GYRE_BINARY, "serve", model_.path(), "--cluster", "127.0.0.1:0", "--bit-equal", "--wire", "f16"});
  EXPECT_EQ(serve.Wait(seconds(10)), 1);
  EXPECT_THAT(serve.output(), HasSubstr("--bit-equal with --wire f16: it rounds at every hop"));
  {
    Ring ring(model_.path(), {"--no-local", "--min-workers", "1", "--bit-equal"});
    Process& other = ring.AddWorker("other", {"--wire", "q8"});
    EXPECT_EQ(other.Wait(seconds(10)), 1);
    EXPECT_THAT(other.output(), HasSubstr("other sends activations as q8, the cluster asks for f32 (--bit-equal)"));
    ring.AddWorker("same", {"--wire", "f32"});
    EXPECT_TRUE(ring.Serves(1));
  }
  Ring ring(model_.path(), {"--no-local", "--min-workers", "1", "--wire", "q8"});
  Process& exact = ring.AddWorker("exact", {"--wire", "f32"});
  EXPECT_EQ(exact.Wait(seconds(10)), 1);
  EXPECT_THAT(exact.output(), HasSubstr("exact sends activations as f32, the cluster asks for q8 (--wire)"));
  // A version that knows no types says nothing of them, and would send f32.
  const auto stub = v1::Cluster::NewStub(grpc::CreateChannel(ring.address(), grpc::InsecureChannelCredentials()));
  auto attach = [&](uint32_t types) {
    grpc::ClientContext context;
    const auto stream = stub->Attach(&context);
    v1::WorkerEvent event;
    v1::WorkerHello* h = event.mutable_hello();
    h->set_protocol(1);
    h->set_name("old");
    h->set_ring_address("127.0.0.1:1");
    h->set_model_hash((*OpenModel(model_.path()))->content_hash());
    h->set_threads(1);
    h->set_wire_types(types);
    stream->Write(event);
    v1::Command command;
    EXPECT_FALSE(stream->Read(&command)) << command.DebugString();
    return Message(FromGrpc(stream->Finish()));
  };
  EXPECT_THAT(attach(0), HasSubstr("old sends activations as f32, the cluster asks for q8 (--wire)"));
  EXPECT_THAT(attach(4 + 8), HasSubstr("old sends activations as f32 or f16, the cluster asks for q8 (--wire)"));
  EXPECT_THAT(attach(1u << 31), HasSubstr("old sends activations as nothing known, the cluster asks for q8"));
  ring.AddWorker("fine");
  EXPECT_TRUE(ring.Serves(1));
}

TEST_F(ProcessesTest, NothingButLoopbackWithoutInsecure) {
  Process serve({GYRE_BINARY, "serve", model_.path(), "--cluster", "0.0.0.0:0"});
  EXPECT_EQ(serve.Wait(seconds(10)), 1);
  EXPECT_THAT(serve.output(), HasSubstr("--insecure"));
}

TEST_F(ProcessesTest, AHostilePeerOnTheRingPortChangesNothing) {
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  const auto status = FetchStatus(ring.address());
  ASSERT_TRUE(status.ok());
  Clients clients(ring.address(), 96, 200);
  std::mt19937 random(1);
  std::vector<int> silent;
  for (int i = 0; i < 120; ++i) {
    const auto& member = status->members(static_cast<int>(random() % 2));
    auto fd = ConnectTcp(member.address(), After(seconds(2)));
    if (!fd.ok()) continue;  // its queue of connections is full for a moment
    std::vector<std::byte> bytes(random() % 300);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    if (i % 3 == 0) {  // a right header with a huge length, or cut
      const auto header = EncodeHeader({.kind = FrameKind::kHello, .length = uint64_t{1} << (random() % 40)});
      bytes.assign(header.begin(), header.begin() + 1 + static_cast<int>(random() % 64));
    }
    (void)!write(*fd, bytes.data(), bytes.size());
    if (i % 2 == 0) {
      close(*fd);
    } else {
      silent.push_back(*fd);
    }
  }
  const uint64_t from = clients.tokens();
  while (clients.tokens() < from + 200) std::this_thread::sleep_for(milliseconds(1));
  for (const auto& text : clients.Stop()) EXPECT_TRUE(text.status.ok()) << text.status;
  EXPECT_TRUE(AskResize(ring.address(), "w2=0-2,w1=3-5").ok());
  for (int fd : silent) close(fd);
  for (size_t i = 0; i < 2; ++i) {  // one line, not a hundred
    const std::string text = ring.worker(i).output();
    size_t refused = 0;
    for (size_t at = 0; (at = text.find("refused", at)) != std::string::npos; ++at) ++refused;
    EXPECT_LE(refused, 2u) << text;
    EXPECT_GE(refused, 1u) << text;
  }
}

size_t OpenFiles(pid_t pid) {
  size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) ++n;
  return n;
}

TEST_F(ProcessesTest, AbsurdAttachesAreRefusedAndLoggedOnce) {
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  Clients clients(ring.address(), 96, 200);
  const uint64_t hash = (*OpenModel(model_.path()))->content_hash();
  auto attach = [&](const std::function<void(v1::WorkerEvent&)>& change) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto stub =
        v1::Cluster::NewStub(grpc::CreateCustomChannel(ring.address(), grpc::InsecureChannelCredentials(), arguments));
    grpc::ClientContext context;
    const auto stream = stub->Attach(&context);
    v1::WorkerEvent event;
    v1::WorkerHello* h = event.mutable_hello();
    h->set_protocol(1);
    h->set_name("mallory");
    h->set_ring_address("127.0.0.1:1");
    h->set_model_hash(hash);
    h->set_threads(1);
    change(event);
    stream->Write(event);
    v1::Command command;
    EXPECT_FALSE(stream->Read(&command)) << command.DebugString();
    return Message(FromGrpc(stream->Finish()));
  };
  EXPECT_THAT(attach([](auto& e) { e.mutable_hello()->set_protocol(99); }), HasSubstr("protocol 99"));
  EXPECT_THAT(attach([](auto& e) { e.mutable_hello()->set_name(std::string(100000, 'x')); }), HasSubstr("1 to 64 characters"));
  EXPECT_THAT(attach([](auto& e) { e.mutable_hello()->set_name("a\nb"); }), HasSubstr("letters"));
  EXPECT_THAT(attach([](auto& e) { e.mutable_hello()->set_name("local"); }), HasSubstr("own"));
  EXPECT_THAT(attach([](auto& e) { e.mutable_hello()->set_ring_address("nowhere"); }), HasSubstr("HOST:PORT"));
  EXPECT_THAT(attach([](auto& e) { e.mutable_hello()->set_threads(4000000000u); }), HasSubstr("threads"));
  EXPECT_THAT(attach([](auto& e) { e.mutable_hello()->set_model_hash(1); }), HasSubstr("another model"));
  EXPECT_THAT(attach([](auto& e) { e.mutable_hello()->mutable_wish()->set_end(1 << 30); }), HasSubstr("wants layers"));
  EXPECT_THAT(attach([](auto& e) { e.mutable_ready(); }), HasSubstr("no hello"));
  const size_t files = OpenFiles(ring.serve().pid());
  for (int i = 0; i < 60; ++i) attach([](auto& e) { e.mutable_hello()->set_name(""); });
  for (int i = 0; i < 200 && OpenFiles(ring.serve().pid()) > files; ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_LE(OpenFiles(ring.serve().pid()), files + 2);
  const std::string text = ring.serve().output();
  size_t refused = 0;
  for (size_t at = 0; (at = text.find("refused a worker", at)) != std::string::npos; ++at) ++refused;
  EXPECT_EQ(refused, 1u) << text;
  const uint64_t from = clients.tokens();
  while (clients.tokens() < from + 100) std::this_thread::sleep_for(milliseconds(1));
  for (const auto& t : clients.Stop()) EXPECT_TRUE(t.status.ok()) << t.status;
}

// Of a process, in bytes: the least of a second, as what a call took may come back a little later.
uint64_t ResidentBytes(pid_t pid) {
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < 20; ++i) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("VmRSS:", 0) == 0) least = std::min<uint64_t>(least, std::stoull(line.substr(6)) << 10);
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
  return least;
}

// Calls that nobody should make, each with a message of `bytes`: every one is refused, cut off or given up by its caller.
class HostileCaller {
 public:
  HostileCaller(std::string address, uint64_t model_hash, size_t bytes)
      : address_(std::move(address)), model_hash_(model_hash), big_(bytes, 'x'), ids_(bytes, 5) {}

  // A stranger's hello with an endless name, over a connection of its own.
  void AttachWithEndlessName() {
    Peer peer(address_);
    peer.event.mutable_hello()->set_name(big_);
    EXPECT_THAT(peer.Refused(), HasSubstr("1 to 64 characters"));
  }
  // The stream's first event is no hello.
  void AttachWithoutHello() {
    Peer peer(address_);
    peer.event.mutable_fault()->set_message(big_);
    EXPECT_THAT(peer.Refused(), HasSubstr("no hello"));
  }
  // Opened, and never a word.
  void AttachAndSayNothing() {
    Peer peer(address_);
    peer.context.TryCancel();
    EXPECT_FALSE(peer.stream->Finish().ok());
  }
  // A member that joins, tells long stories and vanishes.
  void JoinAndTellStories(int stories) {
    Peer peer(address_);
    peer.Hello(model_hash_);
    v1::Command command;
    ASSERT_TRUE(peer.stream->Write(peer.event) && peer.stream->Read(&command)) << Message(FromGrpc(peer.stream->Finish()));
    peer.event.mutable_epoch()->set_number(1 << 20);
    peer.event.mutable_fault()->set_message(big_);
    for (int i = 0; i < stories; ++i) EXPECT_TRUE(peer.stream->Write(peer.event));
    peer.context.TryCancel();
    EXPECT_FALSE(peer.stream->Finish().ok());
  }
  void GenerateFromAnEndlessPrompt() {
    v1::GenerateRequest request;
    request.mutable_ids()->Add(ids_.begin(), ids_.end());
    grpc::ClientContext context;
    const auto reader = inference_->Generate(&context, request);
    v1::GenerateEvent event;
    EXPECT_FALSE(reader->Read(&event));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  // A request that runs, whose caller goes away.
  void GenerateAndLeave() {
    v1::GenerateRequest request;
    request.mutable_ids()->Add(5);
    request.set_max_new_tokens(400);
    request.set_ignore_end(true);
    request.add_stops(big_);
    grpc::ClientContext context;
    const auto reader = inference_->Generate(&context, request);
    v1::GenerateEvent event;
    EXPECT_TRUE(reader->Read(&event));
    context.TryCancel();
    EXPECT_FALSE(reader->Finish().ok());
  }
  void ScoreAnEndlessPrompt() {
    v1::ScoreRequest request;
    request.mutable_ids()->Add(ids_.begin(), ids_.end());
    grpc::ClientContext context;
    const auto reader = inference_->Score(&context, request);
    v1::ScoreEvent event;
    EXPECT_FALSE(reader->Read(&event));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  void ResizeToNonsense() {
    v1::ResizeRequest request;
    request.set_ranges(big_);
    v1::ChangeReply reply;
    grpc::ClientContext context;
    EXPECT_FALSE(admin_->Resize(&context, request, &reply).ok());
  }
  // Past the limit of a message.
  void SendTooMuch() {
    v1::ResizeRequest request;
    request.set_ranges(std::string(size_t{17} << 20, 'x'));
    v1::ChangeReply reply;
    grpc::ClientContext context;
    EXPECT_EQ(admin_->Resize(&context, request, &reply).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  // No HTTP/2 at all, or half a call: the preface, settings and the beginning of a frame of `big_`. It stays open until Hang up.
  void SpeakGarbage() {
    auto fd = ConnectTcp(address_, After(seconds(2)));
    ASSERT_TRUE(fd.ok()) << fd.status();
    const bool half = open_.size() % 2 == 0;
    std::string bytes = half ? std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string("\0\0\0\4\0\0\0\0\0", 9) +
                                   std::string("\0\x40\0\1\4\0\0\0\1", 9)
                             : std::string();
    bytes += big_.substr(0, half ? 8000 : big_.size());
    (void)!send(*fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);  // it may be closed meanwhile
    open_.push_back(*fd);
  }
  void HangUp() {
    for (int fd : open_) close(fd);
    open_.clear();
  }

 private:
  struct Peer {
    explicit Peer(const std::string& address) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      stub = v1::Cluster::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
      stream = stub->Attach(&context);
    }
    void Hello(uint64_t model_hash) {
      v1::WorkerHello* h = event.mutable_hello();
      h->set_protocol(1);
      h->set_name("mallory");
      h->set_ring_address("127.0.0.1:1");
      h->set_model_hash(model_hash);
      h->set_threads(1);
    }
    std::string Refused() {
      if (event.has_hello()) event.mutable_hello()->set_protocol(1);
      stream->Write(event);
      v1::Command command;
      EXPECT_FALSE(stream->Read(&command)) << command.DebugString();
      return Message(FromGrpc(stream->Finish()));
    }
    std::unique_ptr<v1::Cluster::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerEvent, v1::Command>> stream;
    v1::WorkerEvent event;
  };

  const std::string address_;
  const uint64_t model_hash_;
  const std::string big_;
  const std::vector<int32_t> ids_;
  const std::shared_ptr<grpc::Channel> channel_ = grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
  const std::unique_ptr<v1::Inference::Stub> inference_ = v1::Inference::NewStub(channel_);
  const std::unique_ptr<v1::Admin::Stub> admin_ = v1::Admin::NewStub(channel_);
  std::vector<int> open_;
};

TEST_F(ProcessesTest, HostileCallsLeaveNoMemoryBehind) {
  // With glibc's own habits freed messages stay in pools, 15 MiB more or less by chance; so, what is freed goes back at once,
  // and every kind of call was seen to leave the same memory behind to a tenth of a MiB, SendTooMuch to one.
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2"},
            {"/usr/bin/env", "MALLOC_ARENA_MAX=1", "MALLOC_MMAP_THRESHOLD_=65536"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  constexpr size_t kBytes = size_t{256} << 10;
  constexpr int kCalls = 6;  // of each kind in a round
  HostileCaller caller(ring.address(), (*OpenModel(model_.path()))->content_hash(), kBytes);
  auto round = [&] {
    for (int i = 0; i < kCalls; ++i) {
      caller.AttachWithEndlessName();
      caller.AttachWithoutHello();
      caller.AttachAndSayNothing();
      caller.GenerateFromAnEndlessPrompt();
      caller.GenerateAndLeave();
      caller.ScoreAnEndlessPrompt();
      caller.ResizeToNonsense();
      caller.SpeakGarbage();
    }
    caller.JoinAndTellStories(kCalls);
    caller.SendTooMuch();
    caller.HangUp();
  };
  constexpr int kWarm = 2, kRounds = testing::kSanitized ? 1 : 5;
  for (int i = 0; i < kWarm; ++i) round();
  const size_t files = OpenFiles(ring.serve().pid());
  const uint64_t before = ResidentBytes(ring.serve().pid());
  for (int i = 0; i < kRounds; ++i) round();
  const uint64_t after = ResidentBytes(ring.serve().pid());
  for (int i = 0; i < 200 && OpenFiles(ring.serve().pid()) > files; ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_LE(OpenFiles(ring.serve().pid()), files + 2);
  // A message kept by each call of one kind would be 7.5 MiB. A sanitizer keeps what is freed, on purpose.
  if (!testing::kSanitized) {
    EXPECT_LT(after, before + kBytes * kCalls * kRounds / 2) << "from " << before << " to " << after;
  }
  auto target = OpenRemote(ring.address());
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_TRUE((*target)->Run(Ask(1, 96, 20), [](const Event&) {}).ok());
  EXPECT_EQ(FetchStatus(ring.address())->state(), "serving");
}

TEST_F(ProcessesTest, CommandsAskTheCluster) {
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  auto run = [&](std::vector<std::string> words) {
    words.insert(words.begin(), GYRE_BINARY);
    Process p(words);
    const auto code = p.Wait(seconds(20));
    return std::pair{code.value_or(-1), p.output()};
  };
  auto [code, text] = run({"layers", "--cluster", ring.address()});
  EXPECT_EQ(code, 0);
  EXPECT_THAT(text, HasSubstr("w1"));
  std::tie(code, text) = run({"status", "--cluster", ring.address(), "--json"});
  EXPECT_EQ(code, 0);
  EXPECT_THAT(text, HasSubstr("\"state\":\"serving\""));
  std::tie(code, text) = run({"resize", "--cluster", ring.address(), "0-1,3-5"});
  EXPECT_EQ(code, 1);
  EXPECT_THAT(text, HasSubstr("nobody has layers 2"));
  std::tie(code, text) = run({"resize", "--cluster", ring.address(), "2"});
  EXPECT_EQ(code, 0);
  EXPECT_THAT(text, HasSubstr("0-1,2-5"));
  std::tie(code, text) = run({"status", "--cluster", "127.0.0.1:1"});
  EXPECT_EQ(code, 1);
  EXPECT_THAT(text, HasSubstr("no coordinator answers at 127.0.0.1:1"));
  // Logits of the cluster are the process's own, bit for bit.
  char ids[] = "/tmp/gyre-ids-XXXXXX";
  const int fd = mkstemp(ids);
  ASSERT_EQ(write(fd, "3 4 5 6 7 8", 11), 11);
  close(fd);
  const std::string here = std::string(ids) + ".here", there = std::string(ids) + ".there";
  EXPECT_EQ(run({"logits", model_.path(), "--ids", ids, "--out", here}).first, 0);
  EXPECT_EQ(run({"logits", "--cluster", ring.address(), "--ids", ids, "--out", there}).first, 0);
  auto slurp = [](const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
  };
  EXPECT_EQ(slurp(here).size(), 6u * 96 * 4);
  EXPECT_EQ(slurp(here), slurp(there));
  for (const std::string& path : {std::string(ids), here, there}) unlink(path.c_str());
}

}  // namespace
}  // namespace gyre
