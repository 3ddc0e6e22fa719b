// Rings of processes of which some compute on an emulated GPU: mixed rings, resizes, copies of pages, losses, memory
// that does not suffice. GYRE_BINARY is the program for tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/process_ring.h"
#include "tests/testing/tiny_hybrid.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using std::chrono::seconds;
using testing::Ask;
using ::testing::HasSubstr;
using testing::Process;
using testing::Ring;
using testing::RunOver;
using testing::TinyModelFile;

constexpr int kVocab = 96;
constexpr uint32_t kTokens = 24;

std::vector<std::string> OnGpu(std::vector<std::string> more = {}) {
  std::vector<std::string> flags{"--device", "cuda-emulated"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}
const std::vector<std::string> kOnCpu{"--device", "cpu", "--isa", "ref"};

// The most likely text, so that a text does not hang on the last bits of two kinds of arithmetic.
Request Greedy(int seed) {
  Request r = Ask(seed, kVocab, kTokens);
  r.sampling.temperature = 0;
  r.prompt.resize(std::min<size_t>(r.prompt.size(), 40));
  return r;
}

class GpuRingTest : public ::testing::Test {
 protected:
  // The texts that a coordinator computes alone.
  std::vector<std::vector<TokenId>> Texts(const std::string& model, int n) {
    Ring alone(model, {"--device", "cpu", "--isa", "ref", "--no-prefix-cache"});
    std::vector<std::vector<TokenId>> texts;
    EXPECT_TRUE(alone.Serves(1));
    for (int i = 0; i < n; ++i) texts.push_back(RunOver(alone.at(), Greedy(i)).tokens);
    return texts;
  }
  const TinyModelFile model_{testing::TinyOptions{.layers = 6}};
};

TEST_F(GpuRingTest, LayersMoveBetweenAGpuAndProcessorsWithTheirPages) {
  const auto expected = Texts(model_.path(), 4);
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2", "--no-prefix-cache"});
  ring.AddWorker("gpu", OnGpu());
  ring.AddWorker("cpu", kOnCpu);
  ASSERT_TRUE(ring.Serves(2));
  const char* const cuts[] = {"gpu=0-2,cpu=3-5", "cpu=0-1,gpu=2-5", "gpu=0-4,cpu=5", "cpu=0-5", "gpu=0-5"};
  std::vector<testing::Answer> answers(4);
  uint64_t pages = 0;
  for (const char* cut : cuts) {
    std::vector<std::thread> clients;
    for (int i = 0; i < 4; ++i)
      clients.emplace_back([&, i] { answers[static_cast<size_t>(i)] = RunOver(ring.at(), Greedy(i)); });
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    const auto change = AskResize(ring.at(), cut);
    EXPECT_TRUE(change.ok()) << cut << ": " << change.status() << ring.serve().output();
    if (change.ok()) pages += change->pages_moved();
    for (auto& client : clients) client.join();
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(answers[i].tokens, expected[i]) << cut << ", text " << i;
  }
  const auto status = FetchStatus(ring.at());
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->failed(), 0u);
  EXPECT_EQ(status->rows_replayed(), 0u) << "tokens were computed again";
  EXPECT_GT(pages, 0u);
  std::string isas;
  for (const auto& m : status->members()) isas += m.isa() + " ";
  EXPECT_THAT(isas, HasSubstr("cuda-exact"));
}

TEST_F(GpuRingTest, AStateOfEachKindMovesToAGpuAndBack) {
  const TinyModelFile hybrid(testing::BuildTinyHybrid("qwen3next"));
  const auto expected = Texts(hybrid.path(), 1);
  Ring ring(hybrid.path(), {"--no-local", "--min-workers", "2"});
  ring.AddWorker("gpu", OnGpu());
  ring.AddWorker("cpu", kOnCpu);
  ASSERT_TRUE(ring.Serves(2));
  EXPECT_EQ(RunOver(ring.at(), Greedy(0)).tokens, expected[0]);
  for (const char* cut : {"gpu=0-4,cpu=5", "cpu=0-2,gpu=3-5"}) {
    ASSERT_TRUE(ring.AsksFor(cut));
    EXPECT_EQ(RunOver(ring.at(), Greedy(0)).tokens, expected[0]) << cut;
  }
}

TEST_F(GpuRingTest, AGpuThatIsLostEndsItsWorkerAndTheTextGoesOn) {
  const auto expected = Texts(model_.path(), 2);
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2", "--replicate-kv"});
  // Some steps are computed, then it is gone. Launches are counted, and a graph is one of them only when it is made.
  Process& gpu =
      ring.AddProgram({"/usr/bin/env", "GYRE_EMULATED_GPU_LOST=400", GYRE_BINARY, "worker", "--join", ring.address(),
                       "--name", "gpu", "-t", "1", "--device", "cuda-emulated", "--no-graphs"});
  ring.AddWorker("cpu", kOnCpu);
  ASSERT_TRUE(ring.Serves(2));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(RunOver(ring.at(), Greedy(i)).tokens, expected[static_cast<size_t>(i)]) << i;
  const auto code = gpu.Wait(seconds(20));
  ASSERT_TRUE(code.has_value()) << "the worker still runs: " << gpu.output();
  EXPECT_NE(*code, 0);
  EXPECT_THAT(gpu.output(), HasSubstr("the emulated GPU is lost"));
}

// The other GPU takes all layers of the one that is gone, so each layer is computed on the kind of device as before,
// and what was cached is still valid.
TEST_F(GpuRingTest, AKilledGpuWorkersPagesComeFromTheirCopies) {
  const auto expected = Texts(model_.path(), 2);
  Ring ring(model_.path(), {"--no-local", "--min-workers", "3", "--replicate-kv"});
  ring.AddWorker("cpu", {"--device", "cpu", "--isa", "ref", "--layers", "0-1"});
  ring.AddWorker("gpu1", OnGpu());
  ring.AddWorker("gpu2", OnGpu());
  ASSERT_TRUE(ring.Serves(3));
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(RunOver(ring.at(), Greedy(static_cast<int>(i))).tokens, expected[i]);
  ASSERT_TRUE(testing::Replicated(ring, 3));
  ring.worker(2).Kill(SIGKILL);
  ASSERT_TRUE(testing::Lost(ring, 1));
  ASSERT_TRUE(ring.Serves(2));
  for (size_t i = 0; i < 2; ++i) {
    const Request request = Greedy(static_cast<int>(i));
    const testing::Answer again = RunOver(ring.at(), request);
    EXPECT_EQ(again.tokens, expected[i]);
    EXPECT_EQ(again.cached, (request.prompt.size() - 1) / 4 * 4) << ring.serve().output() << ring.worker(1).output();
  }
}

// Layers also go from one kind of device to the other: copies of pages are of no use then (docs/bits.md), and the text
// is computed again.
TEST_F(GpuRingTest, ATextIsTheSameAfterAGpuWorkerIsKilled) {
  const auto expected = Texts(model_.path(), 2);
  Ring ring(model_.path(), {"--no-local", "--min-workers", "3", "--replicate-kv"});
  ring.AddWorker("cpu", kOnCpu);
  ring.AddWorker("gpu1", OnGpu());
  ring.AddWorker("gpu2", OnGpu());
  ASSERT_TRUE(ring.Serves(3));
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(RunOver(ring.at(), Greedy(static_cast<int>(i))).tokens, expected[i]);
  ASSERT_TRUE(testing::Replicated(ring, 3));
  ring.worker(2).Kill(SIGKILL);
  ASSERT_TRUE(testing::Lost(ring, 1));
  ASSERT_TRUE(ring.Serves(2));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(RunOver(ring.at(), Greedy(static_cast<int>(i))).tokens, expected[i]);
  }
}

TEST_F(GpuRingTest, APlanThatAGpuDoesNotHoldIsRefusedWithTheNumbersAndThePlanBeforeStays) {
  const auto expected = Texts(model_.path(), 1);
  Ring ring(model_.path(), {"--device", "cpu", "--isa", "ref", "--kv-tokens", "65536"});
  ASSERT_TRUE(ring.Serves(1));
  ring.AddWorker("gpu", OnGpu({"--device-memory", "20M"}));
  StatusOr<v1::ChangeReply> change = absl::UnknownError("");
  for (int i = 0; i < 200; ++i) {
    change = AskResize(ring.at(), "gpu=0-5");
    // The GPU's worker has to join first, and no plan may be under way.
    if (!absl::IsNotFound(change.status()) && Message(change.status()).find("try again") == std::string::npos) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  ASSERT_FALSE(change.ok());
  EXPECT_THAT(Message(change.status()), HasSubstr("gpu needs"));
  EXPECT_THAT(Message(change.status()), HasSubstr("and has 18.0 MiB"));
  EXPECT_TRUE(ring.Serves(2));
  EXPECT_EQ(RunOver(ring.at(), Greedy(0)).tokens, expected[0]);
}

// The first plan over workers decides how large the cache is: pools on the GPU are as large as that, and no larger.
TEST_F(GpuRingTest, ACacheThatIsCutForAGpuFitsIntoItsMemory) {
  const auto expected = Texts(model_.path(), 1);
  Ring ring(model_.path(), {"--no-local", "--min-workers", "1", "--kv-tokens", "65536"});
  ring.AddWorker("gpu", OnGpu({"--device-memory", "20M"}));
  ASSERT_TRUE(ring.Serves(1)) << ring.worker(0).output();
  EXPECT_EQ(RunOver(ring.at(), Greedy(0)).tokens, expected[0]);
  EXPECT_THAT(ring.serve().output(), HasSubstr("the KV cache is cut"));
  ring.AddWorker("cpu", kOnCpu);
  ASSERT_TRUE(ring.AsksFor("cpu=0-4,gpu=5"));
  EXPECT_EQ(RunOver(ring.at(), Greedy(0)).tokens, expected[0]) << "the cache must not grow beyond the GPU's pools";
}

class GpuRunTest : public GpuRingTest {
 protected:
  static std::string Output(std::vector<std::string> command, int expected_code) {
    Process process(std::move(command));
    EXPECT_EQ(process.Wait(seconds(60)).value_or(-1), expected_code) << process.output();
    return process.output();
  }
};

TEST_F(GpuRunTest, LayersThatDoNotFitStayOnTheProcessors) {
  const TinyModelFile wide(testing::TinyOptions{.dim = 128, .layers = 12, .ffn = 256});
  const std::vector<std::string> bench{
      GYRE_BINARY, "bench", wide.path(), "--prompt", "8",     "--tokens", "4",        "--streams",    "1",
      "--runs",    "1",     "--kv-type", "f32",      "--ctx", "64",       "--device", "cuda-emulated"};
  auto small = bench;
  small.insert(small.end(), {"--device-memory", "6M"});
  const std::string text = Output(small, 0);
  EXPECT_THAT(text, HasSubstr("this machine's processors compute layers 0-"));
  auto none = bench;
  none.insert(none.end(), {"--device-memory", "300K"});
  EXPECT_THAT(Output(none, 1), HasSubstr("--device cuda-emulated: it has 2"));
}

TEST_F(GpuRunTest, DevicesAreListedAndMissingOnesHaveAReason) {
  const std::string text = Output({GYRE_BINARY, "devices"}, 0);
  EXPECT_THAT(text, HasSubstr("cpu "));
  EXPECT_THAT(text, HasSubstr("cuda-emulated"));
  EXPECT_THAT(text, HasSubstr("1.00 GiB"));
  EXPECT_THAT(Output({GYRE_BINARY, "devices", "--json"}, 0), HasSubstr("\"memory_bytes_per_second\":"));
  EXPECT_THAT(Output({GYRE_BINARY, "bench", model_.path(), "--device", "cuda:0"}, 2), HasSubstr("no CUDA"));
  EXPECT_THAT(Output({GYRE_BINARY, "bench", model_.path(), "--device", "quantum"}, 2), HasSubstr("this build has cpu"));
}

}  // namespace
}  // namespace gyre
