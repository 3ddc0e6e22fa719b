// The coordinator's process is killed in the middle of texts and started again with its state: workers keep their
// layers, and every stream goes on, each token once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include <boost/json.hpp>

#include "absl/cleanup/cleanup.h"
#include "fmt/ranges.h"
#include "runtime/local_target.h"
#include "tests/testing/http_client.h"
#include "tests/testing/process_ring.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/schema_texts.h"
#include "tests/testing/tiny_hybrid.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Ask;
using testing::Clients;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProcessesTest;
using testing::Ring;
using testing::RunOver;
using testing::SchemaText;

constexpr int kVocab = 96;

class RestartTest : public ProcessesTest {
 protected:
  RestartTest() {
    char name[] = "/tmp/gyre-state-XXXXXX";
    state_ = mkdtemp(name);
    setenv("GYRE_LOG", "info", 1);  // workers say what they load
  }
  ~RestartTest() override {
    unsetenv("GYRE_LOG");
    std::filesystem::remove_all(state_);
  }
  std::string state_;
};

// Its body with these further fields.
std::string Body(const Request& r, const std::string& fields) {
  return fmt::format(R"({{"prompt":[{}],"max_tokens":{},"temperature":{},"stream":true,"return_token_ids":true,{}}})",
                     fmt::join(r.prompt, ","), r.max_new_tokens, r.sampling.temperature, fields);
}

// A stream as a client without any library reads it: the events that came as a whole.
struct HttpStream {
  std::vector<TokenId> tokens;
  std::string text, finish;
  std::string last;  // event id
  bool done = false;
  std::string bytes;

  // Reads on. False: the connection has ended.
  bool Read(testing::HttpClient* client) {
    if (!client->Receive()) return false;
    bytes += client->input();
    client->input().clear();
    for (size_t end = 0; (end = bytes.find("\n\n")) != std::string::npos;) {
      const std::string event = bytes.substr(0, end);
      bytes.erase(0, end + 2);
      const size_t id = event.find("id: "), data = event.find("data: {");
      if (id != std::string::npos) last = event.substr(id + 4, event.find('\n', id) - id - 4);
      if (data != std::string::npos) Take(boost::json::parse(event.substr(data + 6)));
      done |= event.find("data: [DONE]") != std::string::npos;
    }
    return true;
  }
  void Take(const boost::json::value& chunk) {
    boost::system::error_code error;
    const boost::json::value* first = chunk.find_pointer("/choices/0", error);
    if (first == nullptr) {
      ADD_FAILURE() << "no chunk of a text: " << chunk;
      return;
    }
    const boost::json::object& choice = first->as_object();
    text += choice.at("text").as_string();
    if (const auto* reason = choice.if_contains("finish_reason"); reason != nullptr && reason->is_string())
      finish = reason->as_string();
    if (const auto* ids = choice.if_contains("token_ids"); ids != nullptr && ids->is_array()) {
      for (const auto& token : ids->get_array()) tokens.push_back(boost::json::value_to<TokenId>(token));
    }
  }
  bool Begin(const std::string& address, const std::string& body, std::unique_ptr<testing::HttpClient>* client) const {
    std::string headers = "Content-Type: application/json\r\n";
    if (!last.empty()) headers += "Last-Event-ID: " + last + "\r\n";
    *client = std::make_unique<testing::HttpClient>(address);
    return (*client)->Request("POST", "/v1/completions", headers, body);
  }
};

TEST_F(RestartTest, EveryStreamGoesOnAndNoWorkerLoadsAgain) {
  constexpr uint32_t kTokens = 400;
  const auto expected = testing::TextsOfOneProcess(model_.path(), kVocab, kTokens);
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2", "--state", state_, "--http", "127.0.0.1:0"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  ClusterAddress address = ring.at();
  address.reconnect = seconds(30);
  Clients clients(address, kVocab, kTokens);
  // Longer, so that it still runs when the process is killed.
  Request asked = Ask(2, kVocab, 4000);
  asked.sampling.temperature = 0;
  const std::string body = Body(asked, R"("ignore_eos":true)");
  HttpStream http;
  std::unique_ptr<testing::HttpClient> client;
  for (int restart = 0; restart < (testing::kSanitized ? 1 : 2); ++restart) {
    clients.WaitForTokens(100);
    ASSERT_TRUE(http.Begin(ring.http(), body, &client));
    const size_t before = http.tokens.size();
    while (http.tokens.size() < before + 50) ASSERT_TRUE(http.Read(client.get())) << ring.serve().output();
    ring.Restart();
    while (http.Read(client.get())) {
    }
    http.bytes.clear();
    EXPECT_FALSE(http.done);
    ASSERT_TRUE(ring.Serves(2)) << ring.serve().output();
  }
  ASSERT_TRUE(http.Begin(ring.http(), body, &client));
  while (!http.done) ASSERT_TRUE(http.Read(client.get())) << http.bytes << ring.serve().output();
  clients.WaitForTokens(50);
  const auto texts = clients.Stop();
  EXPECT_GE(texts.size(), 8u);
  for (const auto& text : texts) {
    EXPECT_TRUE(text.status.ok()) << text.status;
    EXPECT_EQ(text.finished, 1);
    EXPECT_EQ(text.tokens, expected[static_cast<size_t>(text.seed)]) << "text " << text.seed;
  }
  auto alone = Runtime::Open(testing::OneProcess(model_.path()));
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(http.tokens, testing::RunOne((*alone)->engine(), asked).tokens);
  for (size_t w = 0; w < 2; ++w) {
    const std::string said = ring.worker(w).output();
    const size_t first = said.find("loaded ");
    ASSERT_NE(first, std::string::npos) << said;
    EXPECT_EQ(said.substr(first, 20), "loaded 3 of 3 layers");
    EXPECT_THAT(said.substr(first), HasSubstr(": loaded 0 of 3 layers; all were here already"));
    EXPECT_THAT(said.substr(first + 1), Not(HasSubstr("loaded 3 of 3 layers")));
  }
  EXPECT_EQ(FetchStatus(ring.at())->failed(), 0u);
}

testing::TinyModelFile ModelOf(const std::string& name) {
  if (name == "qwen35") return testing::TinyModelFile(testing::BuildTinyHybrid(name));
  return testing::TinyModelFile(testing::TinyOptions{.arch = name, .layers = 6});
}

// The number of a counter that GET /metrics has.
double Metric(const std::string& http, const std::string& name) {
  testing::HttpClient client(http);
  if (!client.Request("GET", "/metrics", "Connection: close\r\n", "")) return -1;
  while (client.Receive()) {
  }
  const std::string& text = client.input();
  const size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::atof(text.c_str() + at + name.size() + 2);
}

class RestartWithCacheTest : public RestartTest, public ::testing::WithParamInterface<const char*> {};

// What the workers have of a prompt and of the texts under way is used again: hardly a row is computed a second time.
TEST_P(RestartWithCacheTest, ThePagesOfTheWorkersAreUsedAgain) {
  constexpr int kVocabulary = 90;
  const testing::TinyModelFile model = ModelOf(GetParam());
  auto alone = Runtime::Open(testing::OneProcess(model.path()));
  ASSERT_TRUE(alone.ok()) << alone.status();
  // Rows of drafts would be counted, too.
  Ring ring(model.path(),
            {"--no-local", "--min-workers", "2", "--state", state_, "--http", "127.0.0.1:0", "--speculation", "off"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  Request idle = Ask(2, kVocabulary, 30);
  while (idle.prompt.size() < 100) idle.prompt.push_back(static_cast<TokenId>(idle.prompt.size() % 80));
  const std::vector<TokenId> expected = testing::RunOne((*alone)->engine(), idle).tokens;
  EXPECT_EQ(RunOver(ring.at(), idle).tokens, expected);
  constexpr uint32_t kTokens = 280;
  Request running = Ask(4, kVocabulary, kTokens);
  while (running.prompt.size() < 200) running.prompt.push_back(static_cast<TokenId>(running.prompt.size() % 70));
  ClusterAddress address = ring.at();
  address.reconnect = seconds(30);
  for (int restart = 0; restart < 2; ++restart) {
    const std::vector<TokenId> whole = testing::RunOne((*alone)->engine(), running).tokens;
    std::atomic<size_t> came{0};
    std::vector<TokenId> tokens;
    Status status;
    const auto target = OpenRemote(address);
    ASSERT_TRUE(target.ok()) << target.status();
    std::thread asks([&] {
      status = (*target)->Run(running, [&](const Event& event) {
        if (const auto* t = std::get_if<TokenEvent>(&event)) {
          tokens.push_back(t->token);
          ++came;
        }
      });
    });
    while (came < 100) std::this_thread::sleep_for(milliseconds(1));
    // Nothing is computed for a moment, so that the index is written.
    ring.worker(0).Kill(SIGSTOP);
    std::this_thread::sleep_for(milliseconds(500));
    const size_t before = came;
    ring.worker(0).Kill(SIGCONT);
    ring.Restart();
    ASSERT_TRUE(ring.Serves(2)) << ring.serve().output();
    const testing::Answer again = RunOver(ring.at(), idle);
    EXPECT_EQ(again.tokens, expected);
    EXPECT_GE(again.cached + 8, idle.prompt.size()) << ring.serve().output();
    asks.join();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(tokens, whole);
    // What was not there before, and what came after the index was written last. Without the pages both prompts and
    // the generated tokens would come to it; a state has no snapshot behind its prompt.
    const double computed = Metric(ring.http(), "gyre_rows_total");
    size_t most = kTokens - before + idle.max_new_tokens + 60;
    if (std::string(GetParam()) == "qwen35") most += before;
    EXPECT_GE(computed, 0);
    EXPECT_LT(computed, static_cast<double>(most)) << ring.serve().output();
    ++running.prompt[0];
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RestartWithCacheTest, ::testing::Values("llama", "gemma3", "qwen35"),
                         [](const auto& info) { return std::string(info.param); });

// The process is killed in the middle of answers under a schema, wherever they are: within a value, or between tokens
// that must come. Each is whole and valid, and that of one process; also where the context is too small for it.
class RestartWithSchemaTest : public RestartTest, public ::testing::WithParamInterface<uint32_t> {};

TEST_P(RestartWithSchemaTest, EachAnswerIsWholeAndValid) {
  const std::string model = GYRE_DEMO_MODEL;
  RuntimeOptions options = testing::OneProcess(model);
  std::vector<std::string> flags = {"--no-local", "--min-workers", "2", "--state", state_, "--http", "127.0.0.1:0"};
  if (options.ctx = GetParam(); options.ctx > 0) {
    options.context_shift = true;
    flags.insert(flags.end(), {"--ctx", std::to_string(options.ctx), "--context-shift"});
  }
  auto alone = Runtime::Open(options);
  ASSERT_TRUE(alone.ok()) << alone.status();
  const auto here = MakeLocalTarget(*std::move(alone), "test");
  constexpr size_t kTexts = 4;
  std::vector<Request> requests;
  std::vector<SchemaText> expected(kTexts), came(kTexts);
  for (size_t i = 0; i < kTexts; ++i) {
    requests.push_back(testing::AskForList(*here, 20 + i));
    expected[i] = testing::RunForText(*here, requests[i]);
    ASSERT_TRUE(testing::IsAList(expected[i]));
    EXPECT_EQ(expected[i].usage.context_shifts > 0, options.context_shift);
  }
  Ring ring(model, flags);
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  ClusterAddress address = ring.at();
  address.reconnect = seconds(30);
  HttpStream http;
  std::unique_ptr<testing::HttpClient> client;
  const std::string body =
      Body(requests[0], fmt::format(R"("seed":{},"guided_json":{})", requests[0].sampling.seed, testing::kListSchema));
  for (int restart = 0; restart < (testing::kSanitized ? 1 : 3); ++restart) {
    SCOPED_TRACE(restart);
    std::atomic<size_t> begun{0};
    std::vector<std::thread> askers;
    const auto join = [&askers] {
      for (std::thread& asker : askers) asker.join();
      askers.clear();
    };
    const absl::Cleanup ended = join;
    for (size_t i = 0; i < kTexts; ++i) {
      askers.emplace_back([&, i] {
        const auto there = OpenRemote(address);
        ASSERT_TRUE(there.ok()) << there.status();
        // So that they are in different places when the process is killed.
        const size_t until = 5 + 9 * i + 4 * static_cast<size_t>(restart);
        came[i] = testing::RunForText(**there, requests[i], [&](size_t tokens) { begun += tokens == until ? 1 : 0; });
      });
    }
    http = {};
    ASSERT_TRUE(http.Begin(ring.http(), body, &client));
    while (http.tokens.size() < 30) ASSERT_TRUE(http.Read(client.get())) << ring.serve().output();
    while (begun < kTexts) std::this_thread::sleep_for(milliseconds(1));
    ring.Restart();
    while (http.Read(client.get())) {
    }
    http.bytes.clear();
    EXPECT_FALSE(http.done);
    ASSERT_TRUE(ring.Serves(2)) << ring.serve().output();
    ASSERT_TRUE(http.Begin(ring.http(), body, &client));
    while (!http.done) ASSERT_TRUE(http.Read(client.get())) << http.bytes << ring.serve().output();
    join();
    for (size_t i = 0; i < kTexts; ++i) {
      EXPECT_EQ(came[i].tokens, expected[i].tokens) << "text " << i;
      EXPECT_TRUE(testing::IsAList(came[i])) << "text " << i;
      EXPECT_EQ(came[i].usage.context_shifts, expected[i].usage.context_shifts);
    }
    EXPECT_EQ(http.text, expected[0].text);
    EXPECT_EQ(http.finish, "stop");
    EXPECT_TRUE(testing::IsAList(http.text));
  }
  EXPECT_EQ(FetchStatus(ring.at())->failed(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Contexts, RestartWithSchemaTest, ::testing::Values(0, 48),
                         [](const auto& info) { return info.param > 0 ? "Shifted" : "Whole"; });

// The client has sent its request, and knows nothing of what became of it.
TEST_F(RestartTest, ARequestThatTheOldProcessNeverAnsweredIsAskedAgain) {
  constexpr uint32_t kTokens = 20;
  Ring ring(model_.path(), {"--no-local", "--min-workers", "1", "--state", state_});
  ring.AddWorker("w1");
  ASSERT_TRUE(ring.Serves(1));
  ClusterAddress address = ring.at();
  address.reconnect = seconds(30);
  const auto target = OpenRemote(address);
  ASSERT_TRUE(target.ok()) << target.status();
  ring.serve().Kill(SIGSTOP);
  Status status;
  std::vector<TokenId> tokens;
  std::thread asks([&] {
    status = (*target)->Run(Ask(2, kVocab, kTokens), [&](const Event& event) {
      if (const auto* t = std::get_if<TokenEvent>(&event)) tokens.push_back(t->token);
    });
  });
  std::this_thread::sleep_for(milliseconds(200));
  ring.Restart();
  asks.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(tokens, testing::TextsOfOneProcess(model_.path(), kVocab, kTokens)[2]);
}

TEST_F(RestartTest, AWorkerThatDiedMeanwhileIsReplaced) {
  Ring ring(model_.path(), {"--min-workers", "1", "--state", state_});
  ring.AddWorker("w1");
  ASSERT_TRUE(ring.Serves(2));
  ring.worker(0).Kill(SIGKILL);
  ring.Restart();
  // Its process is gone, so nobody waits ten seconds for it: the coordinator's own member goes on.
  const Deadline begun = Clock::now();
  ASSERT_TRUE(ring.Serves(1));
  EXPECT_LT(Clock::now() - begun, seconds(8)) << ring.serve().output();
  // Another one of the same name takes its place.
  ring.AddWorker("w1");
  ASSERT_TRUE(ring.AsksFor("w1=0-2,local=3-5"));
  ASSERT_TRUE(ring.Serves(2));
}

}  // namespace
}  // namespace gyre
