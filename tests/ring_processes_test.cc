// Real processes on loopback that do what they are for: layers move, processes come and go, commands ask the cluster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <thread>

#include "kernels/isa.h"
#include "runtime/runtime.h"
#include "tests/testing/logits_distance.h"
#include "tests/testing/process_ring.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/shared_data.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Ask;
using testing::Clients;
using ::testing::HasSubstr;
using testing::OneProcess;
using testing::Process;
using testing::ProcessesTest;
using testing::Ring;

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
    auto alone = Runtime::Open(OneProcess(model));
    ASSERT_TRUE(alone.ok()) << alone.status();
    for (int i = 0; i < Clients::kTexts; ++i)
      expected.push_back(testing::RunOne((*alone)->engine(), Ask(i, vocab, tokens)).tokens);
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
    return status.ok() && (status->held_in_prefill() > 0 || prefix_cache) && status->held_in_partial_block() > 0 &&
           pages > 100 && clients.ended() > 8;
  };
  int done = 0;
  for (; done < resizes || (!met() && done < 100); ++done) {
    const uint64_t from = clients.tokens();
    for (const uint64_t until = from + 10 + random() % 80; clients.tokens() < until;)
      std::this_thread::sleep_for(milliseconds(1));
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

// Activations that travel rounded: texts are those of one process cut at the same places, whoever has the layers,
// whatever runs beside them, and while the layers change hands.
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
    RuntimeOptions cut = OneProcess(model.path());
    cut.stages = 3;
    cut.wire = wire;
    auto ring = Runtime::Open(cut), alone = Runtime::Open(OneProcess(model.path()));
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
  if (PrefillMatchesDecode(DetectIsa())) {  // tiles of bf16 round what the hops have rounded once more
    EXPECT_GE(distance.rms, 0.7 * rounding);
    EXPECT_LE(distance.rms, 1.8 * rounding);
    EXPECT_LE(distance.most, 10 * rounding);
  }
  if (wire == "f32") EXPECT_EQ(others, 0u);
  if (wire == "q8") EXPECT_GT(others, 0u) << "nothing was rounded";
  Ring ring(model.path(), {"--no-local", "--min-workers", "3", "--wire", wire});
  for (const char* name : {"w1", "w2", "w3"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(3));
  ASSERT_TRUE(AskResize(ring.address(), cuts[1]).ok());
  Clients clients(ring.address(), kVocab, kTokens);
  const int moves = testing::kSanitized ? 3 : 9;
  for (int i = 0; i < moves; ++i) {
    for (const uint64_t until = clients.tokens() + 60; clients.tokens() < until;)
      std::this_thread::sleep_for(milliseconds(1));
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
  EXPECT_TRUE((*target)
                  ->Run(scored,
                        [&](const Event& event) {
                          if (auto* row = std::get_if<LogitsEvent>(&event)) there.push_back(row->logits);
                        })
                  .ok());
  EXPECT_TRUE(there == logits) << "bit for bit those of the same cut in one process";
  std::this_thread::sleep_for(milliseconds(1200));  // two heartbeats
  const auto status = FetchStatus(ring.address());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->wire(), wire);
  // A decode's descriptor has 45 bytes and 4 for each of its 4 positions; a header has 64.
  const auto bytes = static_cast<double>(BytesPerRow(*status));
  EXPECT_GT(bytes, share_of_f32 * 512);
  EXPECT_LT(bytes, share_of_f32 * 512 + 250);
}

TEST(RingProcessesTest, RoundedActivationsWriteTheSameTextOnTheSameCut) {
  SameCutSameText("f32", 1);
  SameCutSameText("f16", 0.5);
  SameCutSameText("q8", 34.0 / 128);
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
  // One that ends in order says so, and is no loss.
  const auto losses = [&ring](size_t i) {
    const std::string said = ring.worker(i).output();
    size_t n = 0;
    for (size_t at = 0; (at = said.find("lost the coordinator", at)) != std::string::npos; ++at) ++n;
    return n;
  };
  ring.serve().Kill(SIGTERM);
  EXPECT_EQ(ring.serve().Wait(seconds(60)), 0);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(ring.worker(i).WaitFor("the coordinator at " + address + " has stopped; waiting for it").has_value())
        << i;
    EXPECT_EQ(losses(i), 1u) << ring.worker(i).output();
  }
}

// A worker with little memory joins: the KV cache is cut, the running texts begin again on it and go on unchanged.
TEST_F(ProcessesTest, TheCacheIsCutToTheFirstWorkersMemory) {
  std::vector<std::vector<TokenId>> expected;
  {
    auto alone = Runtime::Open(OneProcess(model_.path()));
    ASSERT_TRUE(alone.ok()) << alone.status();
    for (int i = 0; i < Clients::kTexts; ++i)
      expected.push_back(testing::RunOne((*alone)->engine(), Ask(i, 96, 150)).tokens);
  }
  Ring ring(model_.path(), {"--min-workers", "1"});
  ASSERT_TRUE(ring.Serves(1));
  Clients clients(ring.address(), 96, 150);
  clients.WaitUntilTokens(100);
  const uint64_t before = FetchStatus(ring.address())->memory(0).units();
  ring.AddWorker("small", {"--memory", "500k"});
  uint64_t after = before;
  for (int i = 0; i < 2000 && after == before; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    after = FetchStatus(ring.address())->memory(0).units();
  }
  EXPECT_LT(after, before) << ring.serve().output();
  EXPECT_THAT(ring.serve().output(), HasSubstr("the KV cache is cut"));
  for (const uint64_t until = clients.tokens() + 500; clients.tokens() < until;)
    std::this_thread::sleep_for(milliseconds(1));
  for (const auto& text : clients.Stop()) {
    EXPECT_TRUE(text.status.ok()) << text.status;
    EXPECT_EQ(text.tokens, expected[static_cast<size_t>(text.seed)]) << "text " << text.seed;
  }
  const auto status = FetchStatus(ring.address());
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->failed(), 0u);
  EXPECT_EQ(status->members(0).name(), "small");
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
  // Ranges that no ring could have are a wrong word of the command.
  std::tie(code, text) = run({"resize", "--cluster", ring.address(), "0-1,3-5"});
  EXPECT_EQ(code, 2);
  EXPECT_THAT(text, HasSubstr("RANGES: nobody has layer 2"));
  std::tie(code, text) = run({"resize", "--cluster", ring.address(), "0-x"});
  EXPECT_EQ(code, 2);
  std::tie(code, text) = run({"resize", "--cluster", ring.address(), "w1=0-5,w3=-"});
  EXPECT_EQ(code, 1);
  EXPECT_THAT(text, HasSubstr("no worker 'w3'; there are "));
  std::tie(code, text) = run({"resize", "--cluster", ring.address(), "2"});
  EXPECT_EQ(code, 0);
  EXPECT_THAT(text, HasSubstr("0-1,2-5"));
  std::tie(code, text) = run({"status", "--cluster", "127.0.0.1:1"});
  EXPECT_EQ(code, 1);
  EXPECT_THAT(text, HasSubstr("no coordinator answers at 127.0.0.1:1"));
  // Logits of the cluster are the process's own, bit for bit; pages alike, as attention by tiles takes pages of whole
  // tiles only.
  char ids[] = "/tmp/gyre-ids-XXXXXX";
  const int fd = mkstemp(ids);
  ASSERT_EQ(write(fd, "3 4 5 6 7 8", 11), 11);
  close(fd);
  const std::string here = std::string(ids) + ".here", there = std::string(ids) + ".there";
  EXPECT_EQ(run({"logits", model_.path(), "--block-size", "4", "--ids", ids, "--out", here}).first, 0);
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
