// run, chat and bench serve as clients of a server that the test writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/testing/command.h"
#include "tests/testing/openai_peer.h"
#include "tests/testing/terminal.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Ended;
using testing::Gyre;
using ::testing::HasSubstr;
using testing::HttpPeer;
using ::testing::Not;
using testing::OpenAiPeer;
using testing::Terminal;
using testing::TextFile;

constexpr char kCluster[] =
    R"({"object":"cluster","version":"9.9","state":"serving","plan":{"number":3,"ranges":"a=0-7"},
    "model":{"id":"tiny","architecture":"llama","layers":8,"context":2048,"vocab":512,"kv_type":"f16","wire":"f32"},
    "members":[{"name":"a","local":false,"address":"127.0.0.1:1","host":"there","isa":"avx2","threads":2,"memory_bytes":1000,
    "weight_bytes":3145728,"kv_bytes":1048576,"layers":{"first":0,"last":7},"state":"serving","busy":0.42,"steps":1,
    "sent":{"to":"a","rows":1,"bytes":4}}],
    "engine":{"waiting":0,"prefill":1,"decode":1,"held":0,"memory":[{"kind":"blocks","units":100,"available":90}],"requests":5,"finished":3},
    "plans":{"made":3,"aborted":0,"lost":0},"history":[]})";

// Answers everything with these texts, an event each.
testing::OpenAiBehaviour Says(std::vector<std::string> deltas, std::string finish = "stop") {
  return {.instead = [deltas = std::move(deltas), finish](HttpPeer::Call& call, const boost::json::object& o) {
    const bool chat = o.contains("messages");
    call.BeginStream();
    // As awkward as it may be: comments, CRLF, an event cut in two.
    call.Chunk(": keep-alive\r\n\r\n");
    for (const std::string& delta : deltas) {
      const std::string event = "data: {\"choices\":[{\"index\":0," + (chat ? "\"delta\":{" + delta + "}" : delta) +
                                ",\"finish_reason\":null}]}\r\n\r\n";
      call.Chunk(event.substr(0, event.size() / 2));
      call.Chunk(event.substr(event.size() / 2));
    }
    call.Event("{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"" + finish + "\"}]}");
    call.Event(R"({"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":4}})");
    call.Event("[DONE]");
    return call.EndStream();
  }};
}

class UrlTest : public ::testing::Test {
 protected:
  UrlTest() {
    char folder[] = "/tmp/gyre-url-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~UrlTest() override { std::filesystem::remove_all(folder_); }
  Ended Piped(const OpenAiPeer& peer, const std::string& input, const std::string& flags = "") const {
    return testing::Shell("printf '" + input + "' | XDG_STATE_HOME=" + folder_ + " \"$gyre\" chat --url " + peer.url() +
                          " " + flags);
  }
  std::string folder_;
};

TEST_F(UrlTest, RunSendsThePromptAndTheFlagsThatWereGiven) {
  const OpenAiPeer peer(Says({R"("text":"one ")", R"("text":"two")"}));
  const Ended e = Gyre({"run", "--url", peer.url(), "-p", "Count", "-n", "7", "--temp", "0.7", "--stop", "END",
                        "--logit-bias", "5=-inf", "--seed", "3", "--echo"});
  EXPECT_EQ(e.code, 0) << e.text;
  EXPECT_THAT(e.text, HasSubstr("Countone two\n"));
  EXPECT_THAT(e.text, HasSubstr("prompt 12 tokens"));
  const auto body = peer.bodies().at(0);
  EXPECT_EQ(body.at("model"), "tiny");
  EXPECT_EQ(body.at("prompt"), "Count");
  EXPECT_EQ(body.at("max_tokens"), 7);
  EXPECT_EQ(body.at("temperature"), 0.7);
  EXPECT_EQ(body.at("seed"), 3);
  EXPECT_EQ(body.at("stop").as_array().at(0), "END");
  EXPECT_EQ(body.at("logit_bias").at("5").to_number<int>(), -100);
  for (const char* absent : {"top_k", "top_p", "min_p", "repetition_penalty"})
    EXPECT_FALSE(body.contains(absent)) << absent;
  // The environment gives flags too.
  const Ended other = Gyre({"run", "-p", "x", "-q", "--model-id", "big"},
                           {"GYRE_URL=" + peer.url(), "GYRE_TEMP=0", "GYRE_API_KEY=k", "GYRE_MODEL=/nonexistent"});
  EXPECT_EQ(other.code, 2) << "the model and the URL exclude each other: " << other.text;
  EXPECT_EQ(Gyre({"run", "--url", peer.url(), "-p", "x", "-q", "--model-id", "big"},
                 {"GYRE_TEMP=0", "GYRE_MODEL=/nonexistent"})
                .code,
            0);
  EXPECT_EQ(peer.bodies().at(1).at("temperature").to_number<double>(), 0);
  EXPECT_EQ(peer.bodies().at(1).at("model"), "big");
}

TEST_F(UrlTest, RunWithIdsPrintsIds) {
  const OpenAiPeer peer(Says({R"("text":"a","token_ids":[4])", R"("text":"b","token_ids":[5,6])"}));
  const TextFile ids("1 2 3");
  const Ended e = Gyre({"run", "--url", peer.url(), "--ids", ids.path(), "-q"});
  EXPECT_EQ(e.code, 0);
  EXPECT_EQ(e.text, "4 5 6\n");
  EXPECT_EQ(boost::json::serialize(peer.bodies().at(0).at("prompt")), "[1,2,3]");
  const OpenAiPeer other(Says({R"("text":"a")"}));
  const Ended none = Gyre({"run", "--url", other.url(), "--ids", ids.path(), "-q"});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.text, HasSubstr("does not tell token ids"));
}

TEST_F(UrlTest, KeysComeFromAFlagOrTheEnvironment) {
  std::string key;
  const HttpPeer peer([&](HttpPeer::Call& call) {
    key = call.authorization;
    call.Respond(401, R"({"error":{"message":"no such key"}})");
  });
  const std::vector<std::string> words{"run", "--url", peer.url() + "/v1", "-p", "x"};
  Ended e = Gyre(words, {"OPENAI_API_KEY=open"});
  EXPECT_EQ(key, "Bearer open");
  EXPECT_EQ(e.code, 1);
  EXPECT_THAT(e.text, HasSubstr("401"));
  EXPECT_THAT(e.text, HasSubstr("no such key"));
  EXPECT_THAT(e.text, HasSubstr("GYRE_API_KEY"));
  Gyre(words, {"OPENAI_API_KEY=open", "GYRE_API_KEY=own"});
  EXPECT_EQ(key, "Bearer own");
  EXPECT_EQ(Gyre(words, {"OPENAI_API_KEY=two words"}).code, 2);
  EXPECT_EQ(Gyre({"run", "--url", "localhost", "-p", "x"}).code, 2);
  EXPECT_THAT(Gyre({"run", "--url", peer.url(), "--ctx", "5", "-p", "x"}).text, HasSubstr("the server decides"));
}

TEST_F(UrlTest, AChatKeepsItsConversationInFiles) {
  const OpenAiPeer peer(Says({R"("content":"Hello")", R"("content":" you")"}));
  const std::string file = folder_ + "/a chat.json";
  const Ended e =
      Piped(peer, "Hi\\n/save " + file + "\\n/save " + file + "\\n/save! " + file + "\\n", "--system Short.");
  EXPECT_EQ(e.code, 1) << "an existing file is not overwritten: " << e.text;
  EXPECT_THAT(e.text, HasSubstr("Hello you\n"));
  EXPECT_THAT(e.text, HasSubstr("/save! " + file + " overwrites it"));
  std::ifstream in(file);
  const auto saved = boost::json::parse(std::string(std::istreambuf_iterator<char>(in), {}));
  EXPECT_EQ(
      boost::json::serialize(saved.at("messages")),
      R"([{"role":"system","content":"Short."},{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello you"}])");
  EXPECT_EQ(saved.at("model"), "tiny");

  const Ended again = Piped(peer, "/load " + file + "\\nMore\\n", "-q");
  EXPECT_EQ(again.code, 0) << again.text;
  EXPECT_EQ(peer.bodies().back().at("messages").as_array().size(), 4u);
  for (const char* bad :
       {"{", "[]x", "{\"messages\":5}", "[{\"role\":\"user\"}]", "[{\"role\":\"tool\",\"content\":\"x\"}]",
        "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"system\",\"content\":\"x\"}]"}) {
    const TextFile wrong(bad);
    const Ended refused = Piped(peer, "/load " + wrong.path() + "\\n/load\\n/load /nonexistent\\n");
    EXPECT_EQ(refused.code, 1) << bad;
    EXPECT_THAT(refused.text, HasSubstr("3 of the messages failed")) << bad << refused.text;
  }
}

TEST_F(UrlTest, RegenerateAsksTheSameQuestionAgain) {
  const OpenAiPeer peer(Says({R"("content":"Hello")"}));
  const Ended e = Piped(peer, "/regenerate\\nHi\\n/regenerate\\n/regenerate\\n", "--seed 10 -q");
  EXPECT_THAT(e.text, HasSubstr("there is no question yet"));
  const auto bodies = peer.bodies();
  ASSERT_EQ(bodies.size(), 3u);
  for (const auto& body : bodies)
    EXPECT_EQ(boost::json::serialize(body.at("messages")), R"([{"role":"user","content":"Hi"}])");
  EXPECT_EQ(bodies[0].at("seed"), 10);
  EXPECT_EQ(bodies[1].at("seed"), 11) << "another answer";
  EXPECT_EQ(bodies[2].at("seed"), 12);
}

TEST_F(UrlTest, ErrorsAreSentencesAndTheChatGoesOn) {
  int n = 0;
  const OpenAiPeer peer({.instead = [&n](HttpPeer::Call& call, const boost::json::object&) {
    if (n++ > 0) return false;
    return call.Respond(503, R"({"error":{"message":"the queue is full"}})", "Retry-After: 2\r\n");
  }});
  const Ended e = Piped(peer, "Hi\\nHi\\n/layers\\n");
  EXPECT_THAT(e.text, HasSubstr("503"));
  EXPECT_THAT(e.text, HasSubstr("the queue is full (try again in 2 s)"));
  EXPECT_THAT(e.text, HasSubstr("w0 w1 "));
  EXPECT_THAT(e.text, HasSubstr("this server is not Gyre"));
  EXPECT_THAT(e.text, HasSubstr("2 of the messages failed"));
  EXPECT_EQ(peer.bodies().at(1).at("messages").as_array().size(), 1u) << "the question that failed is forgotten";
}

// A server that does not stream, though it was asked to.
TEST_F(UrlTest, AnAnswerMayComeWhole) {
  const OpenAiPeer peer({.instead = [](HttpPeer::Call& call, const boost::json::object&) {
    return call.Respond(200, R"({"choices":[{"message":{"content":"Hello: you"},"finish_reason":"stop"}]})");
  }});
  const Ended e = Piped(peer, "Hi\\n", "-q");
  EXPECT_EQ(e.code, 0) << e.text;
  EXPECT_EQ(e.text, "Hello: you\n");
}

// Half an answer is none, however the server ends it.
TEST_F(UrlTest, AnAnswerThatIsCutOffIsAnError) {
  const auto begun = [](std::string end) {
    return testing::OpenAiBehaviour{
        .instead = [end = std::move(end)](HttpPeer::Call& call, const boost::json::object&) {
          call.BeginStream();
          call.Event(R"({"choices":[{"index":0,"text":"half","finish_reason":null}]})");
          call.Chunk(end);
          return call.EndStream();
        }};
  };
  const std::pair<const char*, const char*> cases[] = {
      {"", "cut off"},
      {"event: error\ndata: {\"message\":\"too hot\"}\n\n", "too hot"},
      {"error: {\"message\":\"too hot\"}\n\n", "too hot"},
      {"data: {\"error\":\"too hot\"}\n\n", "too hot"},
  };
  for (const auto& [end, word] : cases) {
    const OpenAiPeer peer(begun(end));
    const Ended e = Gyre({"run", "--url", peer.url(), "-p", "Count"});
    EXPECT_NE(e.code, 0) << end << e.text;
    EXPECT_THAT(e.text, HasSubstr("half"));
    EXPECT_THAT(e.text, HasSubstr(word)) << end;
  }
  // Either sign of an end is enough.
  for (const char* end :
       {"data: [DONE]\n\n", "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n"}) {
    const OpenAiPeer peer(begun(end));
    EXPECT_EQ(Gyre({"run", "--url", peer.url(), "-p", "Count"}).code, 0) << end;
  }
}

TEST_F(UrlTest, LayersAndResizeWhereTheServerIsGyre) {
  const OpenAiPeer peer({.cluster = kCluster});
  const Ended e = Piped(peer, "/layers\\n/status\\n/resize 0-3,4-7\\n");
  EXPECT_EQ(e.code, 0) << e.text;
  EXPECT_THAT(e.text, ::testing::ContainsRegex("a +0-7 +3.0M +1.0M +2 +42% +-  there"));
  EXPECT_THAT(e.text, HasSubstr("plan 3: a=0-7; serving"));
  EXPECT_THAT(e.text, HasSubstr("KV blocks: 90 of 100 free"));
  EXPECT_THAT(e.text, HasSubstr("2 running"));
  EXPECT_THAT(e.text, HasSubstr("plan 4: a=0-3,b=4-7 after 12 ms; 3 KV pages moved"));
  ASSERT_EQ(peer.resizes().size(), 1u);
  EXPECT_EQ(peer.resizes()[0], R"({"ranges":"0-3,4-7"})");
}

TEST_F(UrlTest, OnATerminalReasoningIsDimAndCtrlCClosesTheConnection) {
  std::atomic<bool> gone{false};
  int n = 0;
  const OpenAiPeer peer({.instead = [&](HttpPeer::Call& call, const boost::json::object&) {
    call.BeginStream();
    if (n++ == 0) {
      call.Event(R"({"choices":[{"delta":{"reasoning_content":"let me think"}}]})");
      call.Event(R"({"choices":[{"delta":{"content":"Four."},"finish_reason":"stop"}]})");
      call.Event("[DONE]");
      return call.EndStream();
    }
    call.Event(R"({"choices":[{"delta":{"content":"a long"}}]})");
    const auto end = std::chrono::steady_clock::now() + seconds(30);
    while (!call.Gone() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(milliseconds(5));
    gone = call.Gone();
    call.close = true;
    return true;
  }});
  Terminal chat({GYRE_BINARY, "chat", "--url", peer.url()},
                {{"LC_ALL", "C.UTF-8"}, {"XDG_STATE_HOME", folder_}, {"HOME", folder_}, {"TERM", "xterm"}});
  ASSERT_TRUE(chat.WaitFor("tiny at " + peer.url() + "/v1")) << chat.output();
  ASSERT_TRUE(chat.WaitFor("> "));
  chat.Type("2 + 2?\r");
  ASSERT_TRUE(chat.WaitFor("\033[2mlet me think\033[0m")) << chat.output();
  ASSERT_TRUE(chat.WaitFor("Four.")) << chat.output();
  ASSERT_TRUE(chat.WaitFor("> "));
  chat.Type("More?\r");
  ASSERT_TRUE(chat.WaitFor("a long")) << chat.output();
  chat.Type("\x03");
  ASSERT_TRUE(chat.WaitFor("[stopped]")) << chat.output();
  for (int i = 0; i < 2000 && !gone; ++i) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_TRUE(gone);
  ASSERT_TRUE(chat.WaitFor("> "));
  chat.Type("/exit\r");
  EXPECT_EQ(chat.Wait(seconds(30)), 0) << chat.output();
}

TEST_F(UrlTest, ATerminalGetsNoControlCharactersOfAModel) {
  const OpenAiPeer peer(Says({R"("reasoning_content":"hm\u001b[31m")", R"("content":"one\u001b]0;ti")",
                              R"("content":"tle\u0007\ttwo\u009bA\nend")"}));
  for (const char* const wrap : {"xterm", "dumb"}) {
    Terminal run({GYRE_BINARY, "run", "--url", peer.url(), "why?"},
                 {{"LC_ALL", "C.UTF-8"}, {"XDG_STATE_HOME", folder_}, {"HOME", folder_}, {"TERM", wrap}});
    EXPECT_EQ(run.Wait(seconds(30)), 0) << run.output();
    EXPECT_THAT(run.output(), HasSubstr("\033[2mhm\\x1b[31m\033[0m"));
    EXPECT_THAT(run.output(), HasSubstr("one\\x1b]0;title\\x07"));
    EXPECT_THAT(run.output(), HasSubstr("two\\xc2\\x9bA\r\nend"));
    for (const char* const raw : {"\033[31m", "\033]0;", "\x07", "\xc2\x9b"}) {
      EXPECT_THAT(run.output(), Not(HasSubstr(raw)));
    }
  }
  // A pipe or a file gets the text as it is.
  EXPECT_THAT(Gyre({"run", "--url", peer.url(), "why?", "-q"}).text, HasSubstr("one\033]0;title\x07\ttwo\xc2\x9b"
                                                                               "A\nend"));
}

TEST_F(UrlTest, BenchServeReports) {
  const OpenAiPeer peer({.refused = {"min_tokens"}, .between = milliseconds(1), .cluster = kCluster});
  const std::string svg = folder_ + "/load.svg";
  const Ended e =
      Gyre({"bench", "serve", peer.url(), "--workload", "mixed", "--concurrency", "4", "--requests", "8", "--scale",
            "0.05", "--ids", "--idle", "20", "--pid", std::to_string(getpid()), "--svg", svg, "--json"});
  ASSERT_EQ(e.code, 0) << e.text;
  const auto v = boost::json::parse(e.text);
  const auto& summary = v.at("summary");
  EXPECT_EQ(summary.at("requests"), 8);
  EXPECT_EQ(summary.at("failed"), 0);
  EXPECT_EQ(summary.at("short_answers"), 0);
  EXPECT_GT(summary.at("tokens_per_s").to_number<double>(), 0);
  EXPECT_GT(summary.at("to_first_token").at("p99_ms").to_number<double>(), 0);
  EXPECT_EQ(v.at("loop"), "closed");
  EXPECT_EQ(v.at("at_once"), 4);
  EXPECT_EQ(v.at("flags").at("scale"), 0.05);
  EXPECT_EQ(v.at("model").at("id"), "tiny");
  EXPECT_EQ(v.at("server").at("version"), "9.9");
  EXPECT_EQ(v.at("server").at("model").at("kv_type"), "f16");
  EXPECT_EQ(v.at("memory").at("weights"), 3145728);
  EXPECT_GT(v.at("memory").at("process").to_number<double>(), 1e6);
  EXPECT_EQ(v.at("requests").as_array().size(), 8u);
  for (const auto& r : v.at("requests").as_array()) EXPECT_EQ(r.at("generated_tokens"), r.at("asked"));
  std::ifstream in(svg);
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(in), {}), ::testing::ContainsRegex("</svg>\n$"));
  // Nothing is measured for a file that exists and must not be replaced.
  const Ended again = Gyre({"bench", "serve", peer.url(), "--requests", "1", "--svg", svg});
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.text, HasSubstr("load.svg: the file exists already; --force overwrites it"));
  EXPECT_THAT(again.text, Not(HasSubstr("measured from")));

  const Ended table =
      Gyre({"bench", "serve", peer.url(), "--workload", "prefix", "--requests", "3", "--scale", "0.05", "--lead"});
  EXPECT_EQ(table.code, 0) << table.text;
  EXPECT_THAT(table.text, HasSubstr("closed loop, 16 at once"));
  EXPECT_THAT(table.text, HasSubstr("first token, followers"));
  EXPECT_THAT(table.text, HasSubstr("output "));
}

TEST_F(UrlTest, BenchServeReplaysATraceAndTellsOfErrors) {
  std::atomic<int> n{0};
  const OpenAiPeer peer({.instead = [&n](HttpPeer::Call& call, const boost::json::object&) {
    return n++ == 3 && call.Respond(503, R"({"error":{"message":"the queue is full"}})");
  }});
  const TextFile trace(
      "{\"at\":0,\"prompt_tokens\":10,\"max_tokens\":4}\n{\"at\":0.1,\"prompt_tokens\":10,\"max_tokens\":4}\n");
  const Ended e = Gyre({"bench", "serve", "--chat", "--trace-file", trace.path(), peer.url()});
  EXPECT_EQ(e.code, 1) << e.text;
  EXPECT_THAT(e.text, HasSubstr("open loop, as the trace says"));
  EXPECT_THAT(e.text, HasSubstr("failed once: "));
  EXPECT_THAT(e.text, HasSubstr("1 of 2 requests failed"));
  EXPECT_EQ(Gyre({"bench", "serve", "nonsense"}).code, 2);
  EXPECT_EQ(Gyre({"bench", "serve", peer.url(), "--workload", "mixed", "--trace-file", trace.path()}).code, 2);
}

// The demo model behind HTTP on a port of its own.
TEST_F(UrlTest, AGyreServerAnswersAsTheModelDoesHere) {
  testing::Process serve({GYRE_BINARY, "serve", GYRE_DEMO_MODEL, "--http", "127.0.0.1:0", "-t", "1", "--kv-reserve"});
  const auto url = serve.WaitFor("listening ", seconds(60));
  ASSERT_TRUE(url.has_value()) << serve.output();
  const std::string flags = " --temp 0 -n 20 -q";
  for (const std::string prompt : {" -p 'What is'", " --chat -p 'What is Gyre?'"}) {
    const Ended here = testing::Shell("\"$gyre\" run \"$model\"" + prompt + flags);
    const Ended there = testing::Shell("\"$gyre\" run --url " + *url + prompt + flags);
    EXPECT_EQ(there.code, 0) << there.text;
    EXPECT_EQ(there.text, here.text);
  }
  const TextFile ids("100 200 300");
  EXPECT_EQ(testing::Shell("\"$gyre\" run --url " + *url + " --ids " + ids.path() + flags).text,
            testing::Shell("\"$gyre\" run \"$model\" --ids " + ids.path() + flags).text);
  const Ended chat = testing::Shell("printf 'What is Gyre?\\n/regenerate\\n' | \"$gyre\" chat --url " + *url + flags);
  EXPECT_EQ(chat.code, 0) << chat.text;
  const Ended bench =
      Gyre({"bench", "serve", *url, "--scale", "0.1", "--ids", "--vocab", "512", "--idle", "50", "--json"});
  ASSERT_EQ(bench.code, 0) << bench.text;
  const auto v = boost::json::parse(bench.text);
  EXPECT_EQ(v.at("summary").at("short_answers"), 0);
  EXPECT_EQ(v.at("idle_closed"), 0);
  EXPECT_EQ(v.at("min_tokens"), true) << "so each answer has its length";
  EXPECT_EQ(v.at("server").at("flags").at("threads"), "1");
  EXPECT_EQ(v.at("server").at("flags").at("kv-reserve"), "true");
  EXPECT_EQ(v.at("server").at("flags").as_object().size(), 2u) << "addresses and keys are no flags of the engine";
  EXPECT_GE(v.at("summary").at("longest_wait_ms").to_number<double>(), 0);
  EXPECT_GT(v.at("machine").at("memory_bytes").to_number<double>(), 1e8);
  for (const char* field : {"cpu", "isa", "system", "kernel", "compiler"}) {
    EXPECT_FALSE(v.at("machine").at(field).as_string().empty()) << field;
  }
  for (const char* library : {"boost", "grpc", "glibc", "openssl", "protobuf"}) {
    EXPECT_FALSE(v.at("libraries").at(library).as_string().empty()) << library;
  }
  const Ended table = Gyre({"bench", "serve", *url, "--scale", "0.1", "--requests", "2"});
  EXPECT_THAT(table.text, HasSubstr("; started with --threads 1 --kv-reserve\n"));
  EXPECT_THAT(table.text, HasSubstr("measured from "));
  EXPECT_THAT(table.text, HasSubstr("the longest wait of a request while others got tokens: "));
  // The report names the model and the types of its weights and KV cache.
  const Ended inspected = testing::Shell("\"$gyre\" inspect \"$model\" --json");
  EXPECT_EQ(v.at("model").at("hash"), boost::json::parse(inspected.text).at("content_hash"));
  EXPECT_EQ(v.at("server").at("model").at("weights"), "F16");
  EXPECT_EQ(v.at("server").at("model").at("kv_type"), "f16");
}

TEST_F(UrlTest, BenchServeNeedsNoAdministratorForIds) {
  const TextFile keys("ann some-long-key-of-ann user\n");
  testing::Process serve(
      {GYRE_BINARY, "serve", GYRE_DEMO_MODEL, "--http", "127.0.0.1:0", "-t", "1", "--api-keys", keys.path()});
  const auto url = serve.WaitFor("listening ", seconds(60));
  ASSERT_TRUE(url.has_value()) << serve.output();
  const Ended bench = Gyre({"bench", "serve", *url, "--api-key", "some-long-key-of-ann", "--scale", "0.1", "--ids",
                            "--requests", "2", "--json"});
  ASSERT_EQ(bench.code, 0) << bench.text;
  EXPECT_EQ(boost::json::parse(bench.text).at("model").at("vocab"), 1024);
}

}  // namespace
}  // namespace gyre
