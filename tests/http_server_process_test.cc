// gyre serve over HTTP, as its user starts it: flags, addresses, draining, SIGHUP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <regex>

#include "cli/serve_http.h"
#include "tests/testing/certificates.h"
#include "tests/testing/command.h"
#include "tests/testing/demo_model.h"
#include "tests/testing/http_client.h"
#include "tests/testing/https_client.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Ended;
using testing::Folder;
using testing::Gyre;
using ::testing::HasSubstr;
using testing::HttpAnswer;
using testing::HttpClient;
using testing::HttpsClient;
using ::testing::Not;
using testing::Process;

constexpr char kServedModel[] = GYRE_DEMO_MODEL;
constexpr char kLongAnswer[] = R"({"prompt":"Tell me","n_predict":100000,"ignore_eos":true,"stream":true})";
constexpr char kJsonType[] = "Content-Type: application/json\r\n";

class Served {
 public:
  explicit Served(const std::vector<std::string>& flags, const std::string& model = kServedModel) {
    std::vector<std::string> command{GYRE_BINARY, "serve", model, "-t", "1", "--http", "127.0.0.1:0"};
    command.insert(command.end(), flags.begin(), flags.end());
    process_ = std::make_unique<Process>(command);
    const auto url = process_->WaitFor("listening http");
    EXPECT_TRUE(url.has_value()) << process_->output();
    if (url) address_ = url->substr(url->find("//") + 2);
  }
  const std::string& address() const { return address_; }
  Process& process() { return *process_; }
  HttpAnswer Get(const std::string& target, const std::string& headers = "") {
    HttpClient client(address_);
    client.Request("GET", target, headers);
    return client.Answer();
  }
  // A client that has begun to get a long answer.
  std::unique_ptr<HttpClient> Stream(const std::string& body = kLongAnswer) {
    auto client = std::make_unique<HttpClient>(address_);
    client->Request("POST", "/completion", kJsonType, body);
    while (client->input().find("data:") == std::string::npos && client->Receive()) {
    }
    return client;
  }

 private:
  std::unique_ptr<Process> process_;
  std::string address_;
};

TEST(ServeHttpTest, WithoutClusterItAnswersHttpAndHasNoOtherPort) {
  Served served({"--alias", "short", "--alias", "other"});
  EXPECT_EQ(served.Get("/health").status, 200);
  EXPECT_EQ(served.Get("/ready").status, 200);
  // The page's address for people.
  EXPECT_THAT(served.process().output(), HasSubstr("open http://" + served.address()));
  HttpClient client(served.address());
  client.Request("POST", "/completion", kJsonType, R"({"prompt":"Tell me","n_predict":3,"temperature":0})");
  EXPECT_EQ(client.Answer().status, 200);
  const auto line = served.process().WaitFor("POST /completion 200");
  ASSERT_TRUE(line.has_value());
  EXPECT_THAT(*line, ::testing::ContainsRegex("bytes tokens [0-9]+\\+3"));
  EXPECT_THAT(served.process().output(), Not(HasSubstr("Tell me"))) << "prompts are not logged";
  size_t listening = 0;
  for (std::ifstream tcp("/proc/" + std::to_string(served.process().pid()) + "/net/tcp"); tcp.good();) {
    std::string text;
    std::getline(tcp, text);
    const auto socket = text.find(" 0A ");
    if (socket == std::string::npos) continue;
    std::istringstream words(text);
    std::string word;
    for (int i = 0; i < 10; ++i) words >> word;  // the last one is the inode
    std::error_code ignored;
    for (const auto& fd :
         std::filesystem::directory_iterator("/proc/" + std::to_string(served.process().pid()) + "/fd")) {
      listening += std::filesystem::read_symlink(fd.path(), ignored).string() == "socket:[" + word + "]";
    }
  }
  EXPECT_EQ(listening, 1u);
  served.process().Kill(SIGTERM);
  EXPECT_EQ(served.process().Wait(seconds(30)), 0) << served.process().output();
}

// The port is open before the model is there, so that whoever watches the process sees that it lives.
TEST(ServeHttpTest, WhileTheModelLoadsItIsAliveAndNotReady) {
  HttpOptions options;
  options.address = "127.0.0.1:0";
  options.max_body_bytes = 1 << 20;
  const auto front = HttpFront::Open(options, HostPort{"127.0.0.1", 0});
  ASSERT_TRUE(front.ok()) << front.status();
  HttpClient client((*front)->server().address());
  const auto ask = [&client](const char* method, const char* path) {
    client.Request(method, path, method == std::string("POST") ? kJsonType : "",
                   method == std::string("POST") ? R"({"prompt":"Tell me","max_tokens":2})" : "");
    return client.Answer();
  };
  EXPECT_EQ(ask("GET", "/health").status, 200);
  HttpAnswer ready = ask("GET", "/ready");
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(ready.body, R"({"status":"not ready","reason":"loading"})");
  EXPECT_EQ(ready.Header("retry-after"), "1");
  for (const char* path : {"/v1/models", "/metrics", "/", "/v1/cluster/events"})
    EXPECT_EQ(ask("GET", path).status, 503);
  const HttpAnswer early = ask("POST", "/v1/completions");
  EXPECT_EQ(early.status, 503);
  EXPECT_EQ(early.Header("retry-after"), "1");
  EXPECT_THAT(early.body, HasSubstr("the model is loading"));
  EXPECT_THAT(ask("POST", "/v1/messages").body, HasSubstr("overloaded_error")) << "in the shape of its API";
  RuntimeOptions ring_options;
  ring_options.model = kServedModel;
  ring_options.threads = 1;
  ring_options.quiet = true;
  const auto ring = Runtime::Open(ring_options);
  ASSERT_TRUE(ring.ok()) << ring.status();
  (*front)->Serve({}, kServedModel, **ring, nullptr, nullptr);
  // On the same connection.
  EXPECT_EQ(ask("GET", "/ready").status, 200);
  EXPECT_EQ(ask("GET", "/v1/models").status, 200);
  EXPECT_EQ(ask("POST", "/v1/completions").status, 200);
  (*front)->server().Stop();
}

TEST(ServeHttpTest, KeysThatTravelInTheClearAreWarnedOf) {
  HttpOptions options;
  const HostPort anywhere{"0.0.0.0", 8080}, here{"127.0.0.1", 8080};
  EXPECT_FALSE(ShowsKeys(options, anywhere)) << "there are none";
  options.api_keys = "keys";
  EXPECT_TRUE(ShowsKeys(options, anywhere));
  EXPECT_FALSE(ShowsKeys(options, here));
  options.tls_cert = "cert.pem";
  EXPECT_FALSE(ShowsKeys(options, anywhere));
}

TEST(ServeHttpTest, ACoordinatorShowsThePageOnLoopbackWithoutAFlag) {
  std::vector<std::unique_ptr<Process>> coordinators;
  std::vector<std::string> addresses;
  for (int i = 0; i < 2; ++i) {
    Process& serve = *coordinators.emplace_back(std::make_unique<Process>(
        std::vector<std::string>{GYRE_BINARY, "serve", kServedModel, "-t", "1", "--cluster", "127.0.0.1:0"}));
    const auto address = serve.WaitFor("listening http://");
    ASSERT_TRUE(address.has_value()) << serve.output();
    EXPECT_THAT(*address, ::testing::MatchesRegex("127\\.0\\.0\\.1:80[0-9][0-9]"));
    EXPECT_TRUE(serve.WaitFor("open http://" + *address + " in a browser").has_value()) << serve.output();
    HttpClient client(*address);
    client.Request("GET", "/");
    EXPECT_THAT(client.Answer().body, HasSubstr("<html"));
    addresses.push_back(*address);
  }
  EXPECT_NE(addresses[0], addresses[1]);
  EXPECT_THAT(coordinators[1]->output(),
              HasSubstr("another program has 127.0.0.1:8080, so HTTP is answered at " + addresses[1]));
}

TEST(ServeHttpTest, HttpIsOffOnlyBesideACluster) {
  Process off({GYRE_BINARY, "serve", kServedModel, "-t", "1", "--cluster", "127.0.0.1:0", "--http", "off"});
  ASSERT_TRUE(off.WaitFor("workers join with").has_value()) << off.output();
  EXPECT_THAT(off.output(), Not(HasSubstr("http://")));
  off.Kill(SIGTERM);
  EXPECT_EQ(off.Wait(seconds(30)), 0);
  const Ended alone = Gyre({"serve", kServedModel, "--http", "off"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_THAT(alone.text, HasSubstr("--http off without --cluster: nobody could ask this server"));
}

TEST(ServeHttpTest, ARingIsReadyWhenItsWorkersAreThere) {
  Served both({"--cluster", "127.0.0.1:0", "--no-local", "--min-workers", "1"});
  const HttpAnswer ready = both.Get("/ready");
  EXPECT_EQ(ready.status, 503);
  EXPECT_THAT(ready.body, HasSubstr("0 of 1 worker has joined"));
  EXPECT_EQ(both.Get("/health").status, 200);
  const auto cluster = both.process().WaitFor("listening 127");
  ASSERT_TRUE(cluster.has_value());
  Process worker({GYRE_BINARY, "worker", "--join", "127" + *cluster, "--name", "w", "-t", "1"});
  for (int i = 0; i < 1200 && both.Get("/ready").status != 200; ++i) std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(both.Get("/ready").status, 200);
}

TEST(ServeHttpTest, FlagsThatDoNotFitAreRefusedBeforeTheModelIsLoaded) {
  Folder folder;
  testing::WriteCertificate(folder / "cert", folder / "key", "name");
  std::ofstream(folder / "keys") << "ann\n";
  ::chmod((folder / "keys").c_str(), 0600);
  const std::string cert = folder / "cert", key = folder / "key", keys = folder / "keys";
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong{
      {{"--http", "nowhere"}, "--http"},
      {{"--http", "0.0.0.0:0"}, "--insecure"},
      {{"--http", "0.0.0.0:0", "--tls-cert", cert, "--tls-key", key}, "--api-keys"},
      {{"--tls-cert", cert}, "belong together"},
      {{"--tls-cert", key, "--tls-key", key}, "no certificate chain"},
      {{"--api-keys", keys}, "expected NAME KEY"},
      {{"--cors", "everyone"}, "no origin"},
      {{"--allow-host", "a:80"}, "no host"},
      {{"--max-body", "8"}, "--max-body"},
      {{"--max-body", "99999T"}, "--max-body: 102398976.00 GiB, expected at most 512.0 MiB"},
      {{"--min-workers", "2"}, "--cluster"},
      {{"--no-local"}, "--cluster"},
      {{"--ring", "127.0.0.1:0"}, "--cluster"},
  };
  for (const auto& [flags, words] : wrong) {
    std::vector<std::string> command{"serve", "/nowhere/model.gguf"};
    command.insert(command.end(), flags.begin(), flags.end());
    const Ended e = Gyre(command);
    EXPECT_EQ(e.code, 2) << flags[0] << " " << e.text;
    EXPECT_THAT(e.text, HasSubstr(words)) << flags[0];
  }
  Served served({});
  const Ended taken = Gyre({"serve", "/nowhere/model.gguf", "--http", served.address()});
  EXPECT_EQ(taken.code, 1);
  EXPECT_THAT(taken.text,
              HasSubstr("--http or --port: cannot listen at " + served.address() + ": another program has the port"));
  EXPECT_EQ(Gyre({"serve", "/nowhere/model.gguf", "--http", "127.0.0.1:0", "--api-keys", "/nowhere/keys"}).code, 1);
}

TEST(ServeHttpTest, SigtermLetsRunningAnswersEnd) {
  Served served({"--drain-timeout", "300", "-c", "100000"});
  HttpClient first(served.address()), second(served.address());
  for (HttpClient* client : {&first, &second}) {
    client->Request("GET", "/ready");
    EXPECT_EQ(client->Answer().status, 200);
  }
  const auto endless = served.Stream();
  const auto running =
      served.Stream(R"({"prompt":"Tell me","n_predict":200,"temperature":0,"ignore_eos":true,"stream":true})");
  served.process().Kill(SIGTERM);
  ASSERT_TRUE(served.process().WaitFor("for at most 300 s").has_value()) << served.process().output();
  first.Request("GET", "/ready");
  const HttpAnswer ready = first.Answer();
  EXPECT_EQ(ready.status, 503);
  EXPECT_THAT(ready.body, HasSubstr("draining"));
  second.Request("POST", "/completion", kJsonType, kLongAnswer);
  EXPECT_EQ(second.Answer().status, 503);
  const HttpAnswer answer = running->Answer();
  EXPECT_TRUE(answer.whole);
  EXPECT_THAT(answer.body, HasSubstr("\"stop\":true"));
  endless->Close();
  EXPECT_EQ(served.process().Wait(seconds(60)), 0) << served.process().output();
}

// The page's stream of events is no answer that anybody waits for.
TEST(ServeHttpTest, AnOpenPageDoesNotDelayTheEnd) {
  Served served({"--drain-timeout", "300"});
  HttpClient page(served.address());
  page.Request("GET", "/v1/cluster/events");
  while (page.input().find("event: status") == std::string::npos) ASSERT_TRUE(page.Receive());
  served.process().Kill(SIGINT);
  EXPECT_EQ(served.process().Wait(seconds(60)), 0) << served.process().output();
  EXPECT_THAT(served.process().output(), ::testing::Not(HasSubstr("answer")));
  EXPECT_THAT(served.process().output(), ::testing::Not(HasSubstr("one more signal")));
}

TEST(ServeHttpTest, TheTimeLimitOrASecondSignalEndsRunningAnswers) {
  for (const bool second : {false, true}) {
    Served served({"--drain-timeout", second ? "300" : "0", "-c", "100000"});
    const auto running = served.Stream();
    served.process().Kill(SIGTERM);
    if (second) {
      ASSERT_TRUE(served.process().WaitFor("1 answer runs, for at most 300 s").has_value())
          << served.process().output();
      served.process().Kill(SIGINT);
    }
    EXPECT_EQ(served.process().Wait(seconds(60)), 0) << served.process().output();
    EXPECT_FALSE(running->Answer().whole);
  }
}

TEST(ServeHttpTest, HangupReadsKeysAndCertificateAgain) {
  Folder folder;
  const std::string keys = folder / "keys", cert = folder / "cert", key = folder / "key";
  std::ofstream(keys) << "ann first-key\n";
  ::chmod(keys.c_str(), 0600);
  testing::WriteCertificate(cert, key, "first");
  Served served({"--api-keys", keys, "--tls-cert", cert, "--tls-key", key});
  const auto status = [&](const std::string& with) {
    HttpsClient client(served.address());
    client.Request("GET", "/props", "x-api-key: " + with + "\r\n");
    return client.Answer().status;
  };
  EXPECT_EQ(status("first-key"), 200);
  EXPECT_EQ(status("second-key"), 401);
  std::ofstream(keys) << "ann\n";
  served.process().Kill(SIGHUP);
  ASSERT_TRUE(served.process().WaitFor("stay as they were").has_value());
  EXPECT_EQ(status("first-key"), 200);
  std::ofstream(keys) << "ann second-key\n";
  testing::WriteCertificate(cert, key, "second");
  served.process().Kill(SIGHUP);
  ASSERT_TRUE(served.process().WaitFor("are read again").has_value());
  EXPECT_EQ(status("second-key"), 200);
  EXPECT_EQ(status("first-key"), 401);
  EXPECT_EQ(HttpsClient(served.address()).peer(), "second");
  EXPECT_THAT(served.process().output(), Not(HasSubstr("-key")));
}

TEST(ServeHttpTest, ReasoningMayStayInTheContent) {
  // All that it says comes before an end that never comes.
  const testing::TinyModelFile model(testing::DemoModelWithTemplate(
      "{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}<think>{# </think> #}"));
  const std::string body = R"({"messages":[{"role":"user","content":"Tell me"}],"max_tokens":8,"temperature":0})";
  const auto message = [&](const std::vector<std::string>& flags) {
    Served served(flags, model.path());
    HttpClient client(served.address());
    client.Request("POST", "/v1/chat/completions", kJsonType, body);
    return client.Answer().body;
  };
  EXPECT_THAT(message({}), ::testing::AllOf(HasSubstr(R"("content":"")"), HasSubstr(R"("reasoning_content":)")));
  EXPECT_THAT(message({"--no-reasoning-split"}),
              ::testing::AllOf(Not(HasSubstr(R"("content":"")")), Not(HasSubstr("reasoning_content"))));
}

TEST(ServeHttpTest, TheModelIsCalledAsItsFile) {
  EXPECT_EQ(ModelName("/data/Tiny-1B.Q8_0.gguf"), "Tiny-1B.Q8_0");
  EXPECT_EQ(ModelName("big-00001-of-00003.gguf"), "big");
  EXPECT_EQ(ModelName("/data/folder/"), "folder");
  EXPECT_EQ(ModelName("stories15M.bin"), "stories15M");
  EXPECT_EQ(ModelName("model"), "model");
}

// A trace is a file of the user's: another one with its name is not replaced unasked.
TEST(ServeHttpTest, ATraceOverwritesNoFileUnasked) {
  const testing::TextFile file("mine");
  const Ended refused = Gyre({"serve", kServedModel, "--http", "127.0.0.1:0", "--trace", file.path()});
  EXPECT_EQ(refused.code, 2) << refused.text;
  EXPECT_THAT(refused.text, HasSubstr("--trace " + file.path() + ": the file exists already; --force overwrites it"));
  const auto content = [&] {
    std::ifstream in(file.path());
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_EQ(content(), "mine");
  EXPECT_EQ(Gyre({"serve", kServedModel, "--http", "127.0.0.1:0", "--force"}).code, 2) << "it is about the trace";
  Served server({"--trace", file.path(), "--force"});
  server.process().Kill(SIGTERM);
  EXPECT_EQ(server.process().Wait(seconds(60)), 0) << server.process().output();
  EXPECT_THAT(content(), HasSubstr("traceEvents"));
}

}  // namespace
}  // namespace gyre
