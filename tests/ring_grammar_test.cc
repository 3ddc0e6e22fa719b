// Texts of a grammar in a ring of real processes: bit-equal to those of one process, through resizes and a killed
// worker, over UDP and where the context is too small; valid whatever the hops round and whoever computes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "client/remote.h"
#include "kernels/isa.h"
#include "runtime/local_target.h"
#include "runtime/runtime.h"
#include "tests/testing/process_ring.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/schema_texts.h"

namespace gyre::grammar_test {
namespace {

using std::chrono::milliseconds;
using testing::AskForList;
using ::testing::HasSubstr;
using testing::IsAList;
using testing::Ring;
using testing::RunForText;
using testing::SchemaText;

// Clients of a ring, each of which asks for its text again and again.
class Askers {
 public:
  // check: called with the request's index and what came of it, on the client's thread.
  Askers(const Ring& ring, const std::vector<Request>& requests, std::function<void(size_t, const SchemaText&)> check)
      : check_(std::move(check)) {
    for (size_t i = 0; i < requests.size(); ++i) {
      threads_.emplace_back([this, at = ring.address(), request = requests[i], i] {
        const auto there = OpenRemote(at);
        ASSERT_TRUE(there.ok()) << there.status();
        do {
          check_(i, RunForText(**there, request, [this](size_t) { ++tokens_; }));
          ++texts_;
        } while (!done_);
      });
    }
  }
  ~Askers() {
    done_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  void WaitForTexts(int more) { WaitFor(texts_, more); }
  void WaitForTokens(int more) { WaitFor(tokens_, more); }

 private:
  static void WaitFor(const std::atomic<int>& count, int more) {
    const int until = count + more;
    for (int k = 0; k < 6000 && count < until; ++k) std::this_thread::sleep_for(milliseconds(5));
    EXPECT_GE(count, until);
  }

  const std::function<void(size_t, const SchemaText&)> check_;
  std::atomic<bool> done_{false};
  std::atomic<int> texts_{0}, tokens_{0};
  std::vector<std::thread> threads_;
};

class RingGrammarTest : public ::testing::Test {
 protected:
  static constexpr char kModel[] = GYRE_DEMO_MODEL;

  static RuntimeOptions OneProcess() { return testing::OneProcess(kModel); }
  // The texts of these options in this process, each alone, in a ring cut like this ("": as it comes).
  std::vector<SchemaText> TextsHere(const RuntimeOptions& options, const std::string& cut = "") {
    std::vector<SchemaText> texts;
    auto runtime = Runtime::Open(options);
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    if (!runtime.ok()) return texts;
    if (!cut.empty()) {
      const auto change = (*runtime)->cluster().ResizeAndWait(cut);
      EXPECT_TRUE(change.ok()) << change.status();
    }
    Runtime& here = **runtime;
    const auto target = MakeLocalTarget(*std::move(runtime), "test");
    requests_.clear();
    for (uint64_t seed = 0; seed < kRequests; ++seed) {
      requests_.push_back(AskForList(*target, seed));
      texts.push_back(RunForText(*target, requests_.back()));
      EXPECT_TRUE(IsAList(texts.back())) << "text " << seed;
      EXPECT_GT(texts.back().tokens.size(), 40u);
    }
    EXPECT_GT(here.engine().stats().forced_tokens, 0u) << "by their bytes: the kinds have several tokenizations";
    return texts;
  }
  static std::function<void(size_t, const SchemaText&)> Same(const std::vector<SchemaText>& expected) {
    return [&expected](size_t i, const SchemaText& came) {
      EXPECT_EQ(came.tokens, expected[i].tokens) << "text " << i;
      EXPECT_TRUE(IsAList(came)) << "text " << i;
      EXPECT_EQ(came.usage.context_shifts, expected[i].usage.context_shifts) << "text " << i;
    };
  }
  static void ExpectStatus(const Ring& ring, uint64_t lost) {
    const auto status = FetchStatus(ring.address());
    ASSERT_TRUE(status.ok()) << status.status();
    EXPECT_EQ(status->failed(), 0u);
    EXPECT_EQ(status->lost(), lost);
  }

  static constexpr uint64_t kRequests = testing::kSanitized ? 3 : 6;
  static constexpr int kOfEach = static_cast<int>(kRequests) * 2;
  std::vector<Request> requests_;
};

// As after a restart: it goes on behind any of its tokens.
TEST_F(RingGrammarTest, ATextGoesOnBehindEachOfItsTokens) {
  auto runtime = Runtime::Open(OneProcess());
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const auto here = MakeLocalTarget(*std::move(runtime), "test");
  const Request whole = AskForList(*here, 20);
  const SchemaText expected = RunForText(*here, whole);
  EXPECT_TRUE(IsAList(expected));
  for (size_t n = 0; n + 1 < expected.tokens.size(); n += 3) {
    Request rest = whole;
    for (size_t i = 0; i < n; ++i) rest.generated.push_back({.token = expected.tokens[i]});
    EXPECT_EQ(RunForText(*here, rest).tokens, expected.tokens) << "behind " << n;
  }
}

TEST_F(RingGrammarTest, ResizesAndAKilledWorkerChangeNoText) {
  const auto expected = TextsHere(OneProcess());
  Ring ring(kModel, {"--no-local", "--min-workers", "3"});
  for (const char* name : {"w0", "w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(3));
  {
    Askers askers(ring, requests_, Same(expected));
    for (const char* cut : {"1 2", "2 3", "1 3"}) {
      askers.WaitForTexts(2);
      const auto resized = AskResize(ring.address(), cut);
      EXPECT_TRUE(resized.ok()) << cut << ": " << resized.status();
    }
    askers.WaitForTexts(2);
    ring.worker(1).Kill(SIGKILL);
    askers.WaitForTexts(kOfEach);
  }
  ExpectStatus(ring, 1);
}

TEST_F(RingGrammarTest, OverUdpATextIsThatOfOneProcess) {
  const auto expected = TextsHere(OneProcess());
  Ring ring(kModel, {"--no-local", "--min-workers", "2", "--transport", "udp"});
  for (const char* name : {"w0", "w1"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  {
    Askers askers(ring, requests_, Same(expected));
    askers.WaitForTexts(2);
    const auto resized = AskResize(ring.address(), "w1=0-2,w0=3-7");
    EXPECT_TRUE(resized.ok()) << resized.status();
    askers.WaitForTexts(kOfEach);
  }
  const auto status = FetchStatus(ring.address());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->first_hop_transport(), "udp");
  ExpectStatus(ring, 0);
}

// What a hop carries is rounded: a text is that of the same cut in one process, and may be another than without.
TEST_F(RingGrammarTest, RoundedActivationsWriteTheTextOfTheSameCut) {
  const auto exact = TextsHere(OneProcess());
  RuntimeOptions options = OneProcess();
  options.stages = 2;
  options.wire = "q8";
  const auto expected = TextsHere(options, "0-3,4-7");
  size_t others = 0;
  for (size_t i = 0; i < exact.size(); ++i) others += exact[i].tokens != expected[i].tokens;
  EXPECT_GT(others, 0u) << "nothing was rounded";
  Ring ring(kModel, {"--no-local", "--min-workers", "2", "--wire", "q8"});
  for (const char* name : {"w0", "w1"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  ASSERT_TRUE(ring.AsksFor("w0=0-3,w1=4-7"));
  {
    Askers askers(ring, requests_, Same(expected));
    askers.WaitForTexts(2);
    const auto resized = AskResize(ring.address(), "w1=0-3,w0=4-7");
    EXPECT_TRUE(resized.ok()) << resized.status();
    askers.WaitForTexts(kOfEach);
  }
  ExpectStatus(ring, 0);
}

// Layers of one text are computed by different instruction sets, and by others again when a worker is lost: the text
// may be another one then, but it is whole and valid.
TEST_F(RingGrammarTest, WorkersOfDifferentInstructionSetsWriteValidTexts) {
  std::vector<std::string> isas;
  for (const Isa isa : BuiltIsas()) {
    if (IsaMissing(isa).empty()) isas.emplace_back(IsaName(isa));
  }
  if (isas.size() < 2) GTEST_SKIP() << "this processor has no instruction set beside the scalar code";
  const auto here = TextsHere(OneProcess());
  Ring ring(kModel, {"--no-local", "--min-workers", "3"});
  const std::string of_workers[] = {isas.front(), isas.back(), isas[isas.size() / 2]};
  for (int i : {0, 1, 2}) ring.AddWorker(fmt::format("w{}", i), {"--isa", of_workers[i]});
  ASSERT_TRUE(ring.Serves(3));
  const auto status = FetchStatus(ring.address());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_THAT(status->replay_note(), HasSubstr("instruction sets"));
  std::vector<SchemaText> first(requests_.size());
  {
    Askers askers(ring, requests_, [&](size_t i, const SchemaText& came) {
      EXPECT_TRUE(IsAList(came)) << "text " << i;
      // The same members compute it with the same bits.
      if (!first[i].tokens.empty()) EXPECT_EQ(came.tokens, first[i].tokens) << "text " << i;
      first[i] = came;
    });
    askers.WaitForTexts(kOfEach);
  }
  {
    Askers askers(ring, requests_,
                  [](size_t i, const SchemaText& came) { EXPECT_TRUE(IsAList(came)) << "text " << i; });
    askers.WaitForTokens(50);
    ring.worker(1).Kill(SIGKILL);
    askers.WaitForTexts(kOfEach);
  }
  ExpectStatus(ring, 1);
}

// The context is too small for a text: the grammar's place is that of the whole text, not of what is left of it.
TEST_F(RingGrammarTest, AContextThatIsShiftedChangesNoTextInAnotherRing) {
  RuntimeOptions options = OneProcess();
  options.ctx = 48;
  options.context_shift = true;
  const auto expected = TextsHere(options);
  uint32_t shifts = 0;
  for (const SchemaText& text : expected) shifts += text.usage.context_shifts;
  EXPECT_GE(shifts, 2 * expected.size());
  Ring ring(kModel, {"--no-local", "--min-workers", "3", "--ctx", "48", "--context-shift"});
  for (const char* name : {"w0", "w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(3));
  {
    Askers askers(ring, requests_, Same(expected));
    askers.WaitForTexts(2);
    const auto resized = AskResize(ring.address(), "1 3");
    EXPECT_TRUE(resized.ok()) << resized.status();
    askers.WaitForTokens(100);
    ring.worker(1).Kill(SIGKILL);
    askers.WaitForTexts(kOfEach);
  }
  ExpectStatus(ring, 1);
}

}  // namespace
}  // namespace gyre::grammar_test
