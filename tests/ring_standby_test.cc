// Two coordinators and a real etcd: the one that leads is killed, and the other one goes on with its texts.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "coordinator/engine/request_codec.h"
#include "coordinator/state/etcd_client.h"
#include "coordinator/state/etcd_store.h"
#include "tests/testing/etcd.h"
#include "tests/testing/http_client.h"
#include "tests/testing/process_ring.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Ask;
using testing::Etcd;
using ::testing::HasSubstr;
using testing::Process;
using testing::ProcessesTest;

constexpr int kTinyVocab = 96;

class StandbyTest : public ProcessesTest {
 protected:
  StandbyTest() { setenv("GYRE_LOG", "info", 1); }
  ~StandbyTest() override { unsetenv("GYRE_LOG"); }
  void SetUp() override {
    if (!Etcd::Installed()) GTEST_SKIP() << "etcd is not installed (scripts/setup --deploy)";
    etcd_ = std::make_unique<Etcd>();
    ASSERT_TRUE(etcd_->Serves()) << etcd_->output();
  }
  // Its address is in `at`.
  std::unique_ptr<Process> Coordinator(std::string* at, const std::string& address = "127.0.0.1:0",
                                       const std::vector<std::string>& flags = {}) {
    std::vector<std::string> command{GYRE_BINARY,  "serve",     model_.path(), "--cluster",    address, "--standby",
                                     etcd_->url(), "--kv-type", "f32",         "--block-size", "4",     "--chunk",
                                     "8",          "-t",        "1",           "--lease",      "2"};
    command.insert(command.end(), flags.begin(), flags.end());
    auto out = std::make_unique<Process>(std::move(command));
    *at = out->WaitFor("standing by at ").value_or("");
    EXPECT_NE(*at, "") << out->output();
    return out;
  }
  std::unique_ptr<Process> Worker(const std::string& join, const std::string& name) {
    return std::make_unique<Process>(
        std::vector<std::string>{GYRE_BINARY, "worker", "--join", join, "--name", name, "-t", "1"});
  }
  std::unique_ptr<Etcd> etcd_;
};

TEST_F(StandbyTest, TheOtherOneTakesOverAndEveryTextGoesOn) {
  constexpr uint32_t kTokens = 600;
  std::string a, b;
  const auto first = Coordinator(&a);
  ASSERT_TRUE(first->WaitFor("listening ").has_value()) << first->output();
  const auto second = Coordinator(&b);
  ASSERT_EQ(second->WaitFor("standing by, the leader is "), a) << second->output();
  const auto w1 = Worker(b + "," + a, "w1"), w2 = Worker(a + "," + b, "w2");
  ASSERT_TRUE(w1->WaitFor("joined " + a).has_value()) << w1->output();
  ASSERT_TRUE(w2->WaitFor("joined " + a).has_value()) << w2->output();
  ClusterAddress both(b + "," + a);
  both.reconnect = seconds(60);
  for (int i = 0; i < 2000 && !AskResize(both, "2 4").ok(); ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(FetchStatus(ClusterAddress(b))->state(), "serving");  // one that stands by names the leader

  struct Text {
    std::vector<TokenId> tokens;
    Status status;
    int finished = 0;
  };
  std::vector<Text> texts(4);
  std::atomic<uint64_t> tokens{0};
  std::atomic<int64_t> longest{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      auto target = OpenRemote(both);
      ASSERT_TRUE(target.ok()) << target.status();
      Deadline last = Clock::now();
      texts[static_cast<size_t>(c)].status = (*target)->Run(Ask(c, kTinyVocab, kTokens), [&](const Event& event) {
        Text& text = texts[static_cast<size_t>(c)];
        if (auto* t = std::get_if<TokenEvent>(&event)) {
          text.tokens.push_back(t->token);
          ++tokens;
          const int64_t gap = std::chrono::duration_cast<milliseconds>(Clock::now() - last).count();
          if (text.tokens.size() > 1 && gap > longest) longest = gap;
          last = Clock::now();
        }
        text.finished += std::holds_alternative<Finished>(event) ? 1 : 0;
      });
    });
  }
  while (tokens < 60) std::this_thread::sleep_for(milliseconds(1));
  first->Kill(SIGKILL);
  for (auto& c : clients) c.join();
  EXPECT_THAT(second->output(), HasSubstr("this coordinator leads"));
  const auto expected = testing::TextsOfOneProcess(model_.path(), kTinyVocab, kTokens);
  for (size_t c = 0; c < texts.size(); ++c) {
    EXPECT_TRUE(texts[c].status.ok()) << texts[c].status;
    EXPECT_EQ(texts[c].finished, 1);
    EXPECT_EQ(texts[c].tokens, expected[c]) << "text " << c;
  }
  EXPECT_THAT(w1->output(), HasSubstr("joined " + b));
  EXPECT_THAT(w2->output(), HasSubstr("joined " + b));
  if (!testing::kSanitized) EXPECT_LE(longest, 5000) << "ms without a token";
  RecordProperty("longest_gap_ms", std::to_string(longest));
}

// Both have one folder of batches: the one that leads has it, and who takes over goes on with them.
class StandbyBatchesTest : public StandbyTest {
 protected:
  StandbyBatchesTest() {
    char name[] = "/tmp/gyre-standby-batches-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~StandbyBatchesTest() override { std::filesystem::remove_all(folder_); }
  std::unique_ptr<Process> Coordinator() {
    std::string at;
    return StandbyTest::Coordinator(&at, "127.0.0.1:0", {"--http", "127.0.0.1:0", "--batches", folder_});
  }
  // Its answer, once it has the route.
  static boost::json::value Call(Process& leader, const std::string& method, const std::string& path,
                                 const std::string& type = "", const std::string& body = "") {
    const std::string http = leader.WaitFor("listening http://").value_or("");
    testing::HttpAnswer answer;
    for (int i = 0; i < 1000; ++i) {
      testing::HttpClient client(http);
      client.Request(method, path, type.empty() ? "" : "Content-Type: " + type + "\r\n", body);
      answer = client.Answer();
      if (answer.status != 503) break;
      std::this_thread::sleep_for(milliseconds(20));
    }
    EXPECT_EQ(answer.status, 200) << method << " " << path << ": " << answer.body;
    return answer.status == 200 ? boost::json::parse(answer.body) : boost::json::value();
  }
  // The id of a batch of so many requests.
  static std::string Begin(Process& leader, int requests) {
    std::string lines;
    for (int i = 0; i < requests; ++i) {
      lines += fmt::format(
          R"({{"custom_id":"r{}","method":"POST","url":"/v1/completions","body":{{"prompt":[3,4,{}],"max_tokens":40}}}})"
          "\n",
          i, 5 + i % 50);
    }
    const std::string form =
        "--xyz\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--xyz\r\n"
        "Content-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n" +
        lines + "\r\n--xyz--\r\n";
    const auto file = Call(leader, "POST", "/v1/files", "multipart/form-data; boundary=xyz", form);
    const boost::json::object batch{
        {"input_file_id", file.at("id")}, {"endpoint", "/v1/completions"}, {"completion_window", "24h"}};
    return std::string(
        Call(leader, "POST", "/v1/batches", "application/json", boost::json::serialize(batch)).at("id").as_string());
  }
  static int64_t Completed(const boost::json::value& batch) {
    return batch.at("request_counts").at("completed").as_int64();
  }

  std::string folder_;
};

TEST_F(StandbyBatchesTest, WhoTakesOverGoesOnWithThem) {
  constexpr int kRequests = 300;
  const auto first = Coordinator();
  ASSERT_TRUE(first->WaitFor("this coordinator leads").has_value()) << first->output();
  const auto second = Coordinator();
  ASSERT_TRUE(second->WaitFor("standing by, the leader is ").has_value()) << second->output();
  const std::string id = Begin(*first, kRequests), path = "/v1/batches/" + id;
  while (Completed(Call(*first, "GET", path)) < 5) std::this_thread::sleep_for(milliseconds(2));
  first->Kill(SIGKILL);
  boost::json::value batch = Call(*second, "GET", path);
  EXPECT_THAT(second->output(), HasSubstr(id + " goes on: "));
  for (int i = 0; i < 6000 && batch.at("status") != "completed"; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
    batch = Call(*second, "GET", path);
  }
  EXPECT_EQ(Completed(batch), kRequests) << batch;
  const std::string results = "/v1/files/" + std::string(batch.at("output_file_id").as_string());
  std::ifstream in(folder_ + "/" + std::string(batch.at("output_file_id").as_string()) + ".jsonl");
  std::set<std::string> ids;
  for (std::string line; std::getline(in, line);) {
    EXPECT_TRUE(ids.emplace(boost::json::parse(line).at("custom_id").as_string()).second) << line;
  }
  EXPECT_EQ(ids.size(), static_cast<size_t>(kRequests));
  Call(*second, "GET", results);
}

// A leader that stands still holds the folder: who takes over serves all the same. When the first goes on it writes
// nothing more there, and it gives the folder back.
TEST_F(StandbyBatchesTest, AFrozenLeaderKeepsThemToItself) {
  const auto first = Coordinator();
  ASSERT_TRUE(first->WaitFor("this coordinator leads").has_value()) << first->output();
  const std::string path = "/v1/batches/" + Begin(*first, 2000);
  while (Completed(Call(*first, "GET", path)) < 5) std::this_thread::sleep_for(milliseconds(2));
  const auto second = Coordinator();
  ASSERT_TRUE(second->WaitFor("standing by, the leader is ").has_value()) << second->output();
  first->Kill(SIGSTOP);
  ASSERT_TRUE(second->WaitFor("this coordinator serves without them", seconds(60)).has_value()) << second->output();
  const std::string http = second->WaitFor("listening http://").value_or("");
  testing::HttpAnswer answer;
  for (int i = 0; i < 1000 && answer.status != 404; ++i) {
    testing::HttpClient client(http);
    client.Request("GET", path);
    answer = client.Answer();
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_EQ(answer.status, 404) << answer.body;
  first->Kill(SIGCONT);
  // As a new process it stands by, without the folder.
  for (int i = 0; i < 3000 && first->output().rfind("standing by, the leader is ") == std::string::npos; ++i)
    std::this_thread::sleep_for(milliseconds(10));
  const std::string lock = folder_ + "/lock";
  bool free = false;
  for (int i = 0; i < 1000 && !free; ++i) {
    const int fd = open(lock.c_str(), O_RDWR | O_CLOEXEC);
    free = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    close(fd);
    if (!free) std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_TRUE(free) << first->output();
}

TEST_F(StandbyTest, AFrozenLeaderFindsItselfReplacedAndStandsBy) {
  std::string a, b;
  const auto first = Coordinator(&a);
  ASSERT_TRUE(first->WaitFor("listening ").has_value()) << first->output();
  const auto second = Coordinator(&b);
  ASSERT_TRUE(second->WaitFor("standing by, the leader is ").has_value()) << second->output();
  first->Kill(SIGSTOP);
  ASSERT_TRUE(second->WaitFor("listening ").has_value()) << second->output();
  first->Kill(SIGCONT);
  // The same process with the same id, begun anew.
  EXPECT_EQ(first->WaitFor("standing by, the leader is ", seconds(10)), b) << first->output();
  EXPECT_THAT(first->output(), HasSubstr("the lease was lost"));
  // At SIGTERM the lease is given back, so the other one does not wait for its end.
  const Deadline before = Clock::now();
  second->Kill(SIGTERM);
  EXPECT_EQ(second->Wait(seconds(10)), 0) << second->output();
  EXPECT_TRUE(first->WaitFor("this coordinator leads", seconds(10)).has_value()) << first->output();
  if (!testing::kSanitized) EXPECT_LT(Clock::now() - before, seconds(3));
}

TEST_F(StandbyTest, ALeaderWithoutEtcdStopsAndComesBackWithIt) {
  std::string a;
  const auto one = Coordinator(&a);
  ASSERT_TRUE(one->WaitFor("listening ").has_value()) << one->output();
  etcd_->Kill(SIGSTOP);
  ASSERT_TRUE(one->WaitFor("the lease was lost", seconds(10)).has_value()) << one->output();
  etcd_->Kill(SIGCONT);
  const std::string words = "this coordinator leads, in term ";
  for (int i = 0; i < 1500 && one->output().find(words) == one->output().rfind(words); ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  const std::string said = one->output();
  const auto term = [&](size_t at) { return std::stoull(said.substr(at + words.size())); };
  ASSERT_NE(said.find(words), said.rfind(words)) << said;
  EXPECT_GT(term(said.rfind(words)), term(said.find(words)));
}

// The answer's JSON.
boost::json::value Http(const std::string& address, const std::string& method, const std::string& path,
                        const std::string& body = "") {
  testing::HttpClient client(address);
  EXPECT_TRUE(client.Request(method, path, "Content-Type: application/json\r\nConnection: close\r\n", body));
  const testing::HttpAnswer answer = client.Answer();
  EXPECT_EQ(answer.status, 200) << answer.body;
  boost::system::error_code error;
  return boost::json::parse(answer.body, error);
}

// An agent's conversation goes on at the other coordinator: the response that it goes on from was stored by the first.
TEST_F(StandbyTest, AResponseGoesOnAtTheOtherCoordinator) {
  const auto serve = [&] {
    return std::make_unique<Process>(std::vector<std::string>{GYRE_BINARY, "serve", GYRE_DEMO_MODEL, "--cluster",
                                                              "127.0.0.1:0", "--http", "127.0.0.1:0", "--standby",
                                                              etcd_->url(), "-t", "1", "--lease", "2"});
  };
  const auto first = serve();
  ASSERT_TRUE(first->WaitFor("this coordinator leads").has_value()) << first->output();
  const std::string a = first->WaitFor("listening http://").value_or("");
  const auto second = serve();
  ASSERT_TRUE(second->WaitFor("standing by, the leader is ").has_value()) << second->output();
  const std::string tail = R"(,"model":"demo","max_output_tokens":8,"temperature":0})";
  const std::string question = R"({"type":"message","role":"user","content":"What is a ring?"})";
  const auto asked = Http(a, "POST", "/v1/responses", R"({"input":[)" + question + "]" + tail);
  const std::string id(asked.at("id").as_string());

  // It is in etcd soon.
  auto client = EtcdClient::Make(*ParseEtcdUrl(etcd_->url()));
  ASSERT_TRUE(client.ok());
  bool stored = false;
  for (int i = 0; i < 500 && !stored; ++i) {
    const auto page = (*client)->Read("gyre/response/", "gyre/response0", 0, 0, After(seconds(5)));
    stored = page.ok() && !page->values.empty();
    if (!stored) std::this_thread::sleep_for(milliseconds(10));
  }
  ASSERT_TRUE(stored);
  first->Kill(SIGKILL);
  ASSERT_TRUE(second->WaitFor("this coordinator leads", seconds(20)).has_value()) << second->output();
  const std::string b = second->WaitFor("listening http://").value_or("");
  ASSERT_NE(b, "") << second->output();

  EXPECT_EQ(Http(b, "GET", "/v1/responses/" + id), asked);
  const std::string more = R"({"type":"message","role":"user","content":"And a worker?"})";
  const auto next =
      Http(b, "POST", "/v1/responses", R"({"previous_response_id":")" + id + R"(","input":[)" + more + "]" + tail);
  EXPECT_EQ(next.at("previous_response_id").as_string(), id);
  const auto whole = Http(
      b, "POST", "/v1/responses",
      R"({"input":[)" + question + "," + boost::json::serialize(asked.at("output").at(0)) + "," + more + "]" + tail);
  EXPECT_EQ(next.at("usage").at("input_tokens"), whole.at("usage").at("input_tokens")) << "all of the conversation";
  EXPECT_EQ(next.at("output").at(0).at("content"), whole.at("output").at(0).at("content"));
}

std::string TokenPiece(size_t tokens) { return EncodeTokens(std::vector<TokenEvent>(tokens, {.token = 7})); }

// The store alone: what is written is there for the next leader, and the one before writes no more.
TEST_F(StandbyTest, TheStoreKeepsRequestsAndRefusesTheOneBefore) {
  auto etcd = ParseEtcdUrl(etcd_->url() + "/store");
  ASSERT_TRUE(etcd.ok());
  auto client = EtcdClient::Make(*etcd);
  const Deadline until = After(seconds(20));
  const auto lead = [&] { return (*client)->Do({}, {EtcdOp::Put(LeaderKey(*etcd), "here")}, until)->revision; };
  int lost = 0;
  StoredState found;
  auto store = OpenEtcdStore({.etcd = *etcd, .term = 3, .leads_since = lead(), .lost = [&] { ++lost; }}, &found);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE(found.requests.empty());
  const uint64_t id = found.cluster_id;
  EXPECT_NE(id, 0u);
  StateBatch batch{.cluster = "plan", .serving = std::string("s\0\xff", 3)};
  for (int i = 0; i < 250; ++i) {  // more than fit one transaction
    const std::string name = "r" + std::to_string(999 - i);
    batch.begun.push_back({name, "request of " + name});
    batch.tokens.push_back({name, 0, TokenPiece(5)});
  }
  for (uint64_t i = 0; i < 250; ++i) batch.cache.emplace_back(uint64_t{2} << 32 | i, "unit " + std::to_string(i));
  batch.begun.push_back({"long", std::string((1 << 20) + 1, 'x')});
  batch.tokens.push_back({"long", 0, TokenPiece(5)});
  ASSERT_TRUE((*store)->Write(batch).ok());
  ASSERT_TRUE((*store)
                  ->Write({.tokens = {{"r999", 100, TokenPiece(2)},
                                      {"r999", 5, TokenPiece(95)},
                                      {"r998", 5, TokenPiece(1)},
                                      {"r996", 7, TokenPiece(1)}}})
                  .ok());
  ASSERT_TRUE(
      (*store)->Write({.gone = {"r998"}, .begun = {{"r997", "anew"}}, .cache = {{uint64_t{2} << 32 | 7, ""}}}).ok());

  StoredState next;
  auto other = OpenEtcdStore({.etcd = *etcd, .term = 4, .leads_since = lead(), .lost = {}}, &next);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(next.cluster_id, id);
  EXPECT_EQ(next.cluster, "plan");
  EXPECT_EQ(next.serving, std::string("s\0\xff", 3));
  ASSERT_EQ(next.requests.size(), 249u);
  EXPECT_EQ(next.cache.size(), 249u) << "one was forgotten";
  EXPECT_EQ(next.cache[7], "unit 8");
  for (const StoredState::OpenRequest& r : next.requests) {
    EXPECT_NE(r.id, "r998");
    EXPECT_EQ(r.request, r.id == "r997" ? "anew" : "request of " + r.id);
    const size_t pieces = r.id == "r999" ? 3 : r.id == "r997" ? 0 : 1;
    EXPECT_EQ(r.tokens.size(), pieces) << r.id << ": a piece behind a gap is left out";
  }

  // All anew, after a write that failed: the old pieces give way to new ones, and what is not told again goes.
  ASSERT_TRUE(
      (*store)->Write({.afresh = true, .begun = {{"r999", "again"}}, .tokens = {{"r999", 0, TokenPiece(103)}}}).ok());
  StoredState again;
  ASSERT_TRUE(OpenEtcdStore({.etcd = *etcd, .term = 4, .leads_since = lead(), .lost = {}}, &again).ok());
  ASSERT_EQ(again.requests.size(), 1u);
  EXPECT_EQ(again.requests[0].request, "again");
  EXPECT_EQ(again.requests[0].tokens, std::vector<std::string>{TokenPiece(103)});

  // The key was made once: the one before leads by the same revision until it is made again.
  ASSERT_TRUE((*client)->Do({}, {EtcdOp::Delete(LeaderKey(*etcd))}, until).ok());
  lead();
  EXPECT_TRUE(absl::IsAborted((*store)->Write({.cluster = "older plan"})));
  EXPECT_EQ(lost, 1);
  StoredState last;
  ASSERT_TRUE(OpenEtcdStore({.etcd = *etcd, .term = 5, .leads_since = 1, .lost = {}}, &last).ok());
  EXPECT_EQ(last.cluster, "plan");
}

}  // namespace
}  // namespace gyre
