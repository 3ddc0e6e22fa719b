// Texts of a grammar in a ring of real processes: bit-equal to those of one process, through resizes and a killed
// worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "client/remote.h"
#include "runtime/local_target.h"
#include "runtime/runtime.h"
#include "tests/testing/process_ring.h"
#include "tests/testing/sanitized.h"

namespace gyre::grammar_test {
namespace {

using std::chrono::milliseconds;
using testing::Ring;

constexpr char kSchema[] = R"({"type": "array", "minItems": 5, "maxItems": 7, "items": {"type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "string", "pattern": "^-?[1-9][0-9]?$"},
                   "kind": {"enum": ["a worker", "a coordinator", "another machine"]}},
    "required": ["name", "n", "kind"], "additionalProperties": false}})";

std::vector<TokenId> TextOf(Target& target, const Request& request) {
  std::vector<TokenId> tokens;
  const Status status = target.Run(request, [&](const Event& event) {
    if (const auto* t = std::get_if<TokenEvent>(&event)) tokens.push_back(t->token);
  });
  EXPECT_TRUE(status.ok()) << status;
  return tokens;
}

TEST(RingGrammarTest, ResizesAndAKilledWorkerChangeNoText) {
  const std::string model = GYRE_DEMO_MODEL;
  auto alone = Runtime::Open(testing::OneProcess(model));
  ASSERT_TRUE(alone.ok()) << alone.status();
  Runtime& runtime = **alone;
  const auto here = MakeLocalTarget(*std::move(alone), "test");
  std::vector<Request> requests(testing::kSanitized ? 3 : 6);
  std::vector<std::vector<TokenId>> expected;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = *here->Encode("What is Gyre?", {.add_special = true});
    requests[i].sampling = {.temperature = 0.7f, .seed = i};
    requests[i].max_new_tokens = 800;
    requests[i].grammar_source = grammar::Source{.kind = grammar::SourceKind::kJsonSchema, .text = kSchema};
    expected.push_back(TextOf(*here, requests[i]));
    EXPECT_GT(expected.back().size(), 40u);
  }
  EXPECT_GT(runtime.engine().stats().forced_tokens, 0u) << "by their bytes: the kinds have several tokenizations";
  Ring ring(model, {"--no-local", "--min-workers", "3"});
  for (const char* name : {"w0", "w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(3));
  std::atomic<bool> done{false};
  std::atomic<int> texts{0};
  std::vector<std::thread> clients;
  for (size_t i = 0; i < requests.size(); ++i) {
    clients.emplace_back([&, i] {
      const auto there = OpenRemote(ring.address());
      ASSERT_TRUE(there.ok()) << there.status();
      do {
        EXPECT_EQ(TextOf(**there, requests[i]), expected[i]) << "text " << i;
        ++texts;
      } while (!done);
    });
  }
  const auto wait_for = [&](int more) {
    const int until = texts + more;
    for (int k = 0; k < 6000 && texts < until; ++k) std::this_thread::sleep_for(milliseconds(5));
    EXPECT_GE(texts, until);
  };
  for (const char* cut : {"1 2", "2 3", "1 3"}) {
    wait_for(2);
    const auto resized = AskResize(ring.address(), cut);
    EXPECT_TRUE(resized.ok()) << cut << ": " << resized.status();
  }
  wait_for(2);
  ring.worker(1).Kill(SIGKILL);
  wait_for(static_cast<int>(requests.size()) * 2);
  done = true;
  for (std::thread& client : clients) client.join();
  const auto status = FetchStatus(ring.address());
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->failed(), 0u);
  EXPECT_EQ(status->lost(), 1u);
}

}  // namespace
}  // namespace gyre::grammar_test
