// gyre chat --tools: a model calls commands of this machine, if the user allows it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli/chat_tools.h"
#include "tests/testing/calling_model.h"
#include "tests/testing/command.h"
#include "tests/testing/openai_peer.h"
#include "tests/testing/terminal.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

namespace json = boost::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Ended;
using testing::Gyre;
using ::testing::HasSubstr;
using testing::HttpPeer;
using ::testing::Not;
using testing::OpenAiPeer;
using testing::Process;
using testing::Shell;
using testing::Terminal;

struct Asked {
  std::string name, arguments;
};

// Calls these tools whenever it is asked anew, and repeats the last result otherwise. The arguments come in two parts.
testing::OpenAiBehaviour CallsThem(std::vector<Asked> calls, bool always = false) {
  return {.instead = [calls = std::move(calls), always](HttpPeer::Call& call, const json::object& request) {
    const json::value& last = request.at("messages").as_array().back();
    call.BeginStream();
    const auto event = [&](const json::object& delta, const json::value& finish) {
      call.Event(json::serialize(json::object{
          {"choices", json::array{json::object{{"index", 0}, {"delta", delta}, {"finish_reason", finish}}}}}));
    };
    if (last.at("role") == "tool" && !always) {
      event({{"content", "It says: "}}, nullptr);
      event({{"content", last.at("content")}}, "stop");
    } else {
      event({{"content", "I look."}}, nullptr);
      for (size_t i = 0; i < calls.size(); ++i) {
        const size_t half = calls[i].arguments.size() / 2;
        const json::object named{{"name", calls[i].name}, {"arguments", calls[i].arguments.substr(0, half)}};
        const json::object rest{{"arguments", calls[i].arguments.substr(half)}};
        event({{"tool_calls",
                json::array{json::object{
                    {"index", i}, {"id", fmt::format("call_{}", i)}, {"type", "function"}, {"function", named}}}}},
              nullptr);
        event({{"tool_calls", json::array{json::object{{"index", i}, {"function", rest}}}}}, nullptr);
      }
      event({}, "tool_calls");
    }
    call.Event("[DONE]");
    return call.EndStream();
  }};
}

class ToolsTest : public ::testing::Test {
 protected:
  ToolsTest() {
    char folder[] = "/tmp/gyre-tools-XXXXXX";
    folder_ = mkdtemp(folder);
    Script("weather", "echo \"$# $*\"\ncat\npwd\ntouch \"$0.ran\"");
    Tools(R"({"name":"weather","description":"The weather","parameters":{"type":"object","properties":
        {"city":{"type":"string"},"days":{"type":"integer"},"unit":{"type":"string"}},"required":["city"]},
        "command":["./weather","in {city}","--days={days}","{unit}","{{city}} {2} {"]})");
  }
  ~ToolsTest() override { std::filesystem::remove_all(folder_); }

  void Script(const std::string& name, const std::string& body) const {
    std::ofstream(folder_ + "/" + name) << "#!/bin/sh\n" << body << "\n";
    chmod((folder_ + "/" + name).c_str(), 0755);
  }
  void Tools(const std::string& tools) const {
    std::ofstream(folder_ + "/tools.json") << "{\"tools\":[" << tools << "]}";
  }
  bool Ran(const std::string& name) const { return std::filesystem::exists(folder_ + "/" + name + ".ran"); }
  // A chat through a pipe. `to`: "--url URL", a model, ...
  Ended Piped(const std::string& to, const std::string& flags, const std::string& input = "Hi\\n") const {
    return Shell("cd / && printf '" + input + "' | XDG_STATE_HOME=" + folder_ + " \"$gyre\" chat " + to + " --tools " +
                 folder_ + "/tools.json " + flags);
  }
  std::unique_ptr<Terminal> OnTerminal(const OpenAiPeer& peer, std::vector<std::string> flags = {}) const {
    std::vector<std::string> command{GYRE_BINARY, "chat", "--url", peer.url(), "--tools", folder_ + "/tools.json"};
    command.insert(command.end(), flags.begin(), flags.end());
    return std::make_unique<Terminal>(
        std::move(command),
        std::vector<std::pair<std::string, std::string>>{
            {"LC_ALL", "C.UTF-8"}, {"XDG_STATE_HOME", folder_}, {"HOME", folder_}, {"TERM", "xterm"}});
  }
  // The results that the model got in its last request.
  static std::vector<std::string> Results(const OpenAiPeer& peer) {
    std::vector<std::string> out;
    const json::object last = peer.bodies().back();
    for (const json::value& message : last.at("messages").as_array()) {
      if (message.at("role") == "tool") out.emplace_back(message.at("content").as_string());
    }
    return out;
  }

  std::string folder_;
};

TEST_F(ToolsTest, AnAllowedToolRunsAndItsResultGoesBack) {
  const OpenAiPeer peer(CallsThem({{"weather", R"({"city":"Köln; rm -rf *","days":3})"}}));
  const Ended e = Piped("--url " + peer.url(), "--allow-tool weather");
  EXPECT_EQ(e.code, 0) << e.text;
  EXPECT_THAT(e.text, HasSubstr("I look.\n"));
  EXPECT_THAT(e.text, HasSubstr(R"(call    weather {"city":"Köln; rm -rf *","days":3})"));
  // No shell reads the words; one whose argument is absent is left out; braces may be text. The arguments are on stdin.
  const std::string result = R"(3 in Köln; rm -rf * --days=3 {city} {2} {)"
                             "\n"
                             R"({"city":"Köln; rm -rf *","days":3})"
                             "\n" +
                             folder_;
  EXPECT_THAT(e.text, HasSubstr("It says: " + result)) << "in the folder of the file";
  EXPECT_THAT(e.text, HasSubstr("result  3 in Köln"));
  const auto bodies = peer.bodies();
  ASSERT_EQ(bodies.size(), 2u);
  const json::value tools = json::parse(R"([{"type":"function","function":{"name":"weather","description":"The weather",
      "parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},
      "unit":{"type":"string"}},"required":["city"]}}}])");
  for (const auto& body : bodies) EXPECT_EQ(body.at("tools"), tools);
  const json::array& messages = bodies[1].at("messages").as_array();
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[1], json::parse(R"({"role":"assistant","content":"I look.","tool_calls":[{"id":"call_0",
      "type":"function","function":{"name":"weather","arguments":"{\"city\":\"Köln; rm -rf *\",\"days\":3}"}}]})"));
  EXPECT_EQ(messages[2],
            (json::object{{"role", "tool"}, {"content", result}, {"tool_call_id", "call_0"}, {"name", "weather"}}));
  // Nothing but answers with -q.
  const Ended quiet = Piped("--url " + peer.url(), "--allow-tool weather -q");
  EXPECT_THAT(quiet.text, Not(HasSubstr("call    ")));
}

TEST_F(ToolsTest, WhereNobodyCanBeAskedNothingRuns) {
  const OpenAiPeer peer(CallsThem({{"weather", R"({"city":"Oslo"})"}}));
  const Ended e = Piped("--url " + peer.url(), "");
  EXPECT_EQ(e.code, 0) << e.text;
  EXPECT_FALSE(Ran("weather"));
  EXPECT_THAT(e.text, HasSubstr("weather does not run, as nobody can be asked here; --allow-tool weather allows it"));
  EXPECT_THAT(Results(peer), ::testing::ElementsAre("error: the user did not allow this call"));
}

TEST_F(ToolsTest, OnATerminalTheUserDecides) {
  const OpenAiPeer peer(CallsThem({{"weather", R"({"city":"Oslo\u001b[31m"})"}}));
  auto chat = OnTerminal(peer);
  const auto say = [&](const std::string& answer, const std::string& comes) {
    EXPECT_TRUE(chat->WaitFor("> ")) << chat->output();
    chat->Type("Hi\r");
    if (!answer.empty()) {
      EXPECT_TRUE(chat->WaitFor("Run it? y: yes, n: no, a: always weather: ")) << chat->output();
      chat->Type(answer + "\r");
    }
    EXPECT_TRUE(chat->WaitFor(comes)) << chat->output();
  };
  for (const char* no : {"n", "x", "maybe", " "}) {
    say(no, "It says: error: the user did not allow this call");
    EXPECT_FALSE(Ran("weather")) << no;
  }
  // The question tells all, and the model's control characters do nothing to the terminal.
  EXPECT_THAT(chat->output(), HasSubstr(R"(call    weather {"city":"Oslo\u001b[31m"})"));
  EXPECT_THAT(chat->output(), HasSubstr("runs    ./weather 'in Oslo\\x1b[31m' '{city} {2} {'"));
  EXPECT_THAT(chat->output(), HasSubstr("in      " + folder_));
  EXPECT_THAT(chat->output(), Not(HasSubstr("\033[31m")));
  say("y", "It says: 2 in Oslo");
  EXPECT_TRUE(Ran("weather"));
  say("n", "It says: error: the user did not allow this call");  // a yes was for one call
  say("Always", "It says: 2 in Oslo");
  say("", "It says: 2 in Oslo");
  EXPECT_TRUE(chat->WaitFor("> "));
  chat->Type("/tools\r");
  EXPECT_TRUE(chat->WaitFor("weather            ./weather 'in {city}'")) << chat->output();
  EXPECT_TRUE(chat->WaitFor("> ")) << chat->output();
  chat->Type("\x04");
  EXPECT_EQ(chat->Wait(seconds(30)), 0) << chat->output();
  EXPECT_THAT(chat->output(), Not(HasSubstr("(asks first)")));
}

// What was typed before the question is no answer to it.
TEST_F(ToolsTest, AYesBeforeTheQuestionIsNone) {
  std::atomic<bool> asked{false}, go{false};
  auto behaviour = CallsThem({{"weather", R"({"city":"Oslo"})"}});
  behaviour.instead = [&, calls = behaviour.instead](HttpPeer::Call& call, const json::object& request) {
    asked = true;
    while (!go) std::this_thread::sleep_for(milliseconds(1));
    return calls(call, request);
  };
  const OpenAiPeer peer(behaviour);
  auto chat = OnTerminal(peer);
  ASSERT_TRUE(chat->WaitFor("> ")) << chat->output();
  chat->Type("Hi\r");
  while (!asked) std::this_thread::sleep_for(milliseconds(1));
  chat->Type("yes\r");
  ASSERT_TRUE(chat->WaitFor("yes\r\n")) << "the terminal has it";
  go = true;
  ASSERT_TRUE(chat->WaitFor("Run it?")) << chat->output();
  chat->Type("n\r");
  ASSERT_TRUE(chat->WaitFor("It says: error: the user did not allow this call")) << chat->output();
  ASSERT_TRUE(chat->WaitFor("> "));
  chat->Type("Hi\r");
  ASSERT_TRUE(chat->WaitFor("Run it?")) << chat->output();
  chat->Type("\x03");
  EXPECT_TRUE(chat->WaitFor("[stopped]")) << chat->output();
  EXPECT_FALSE(Ran("weather"));
  ASSERT_TRUE(chat->WaitFor("> ")) << "the chat goes on";
  chat->Type("/exit\r");
  EXPECT_EQ(chat->Wait(seconds(30)), 0);
  EXPECT_EQ(peer.bodies().size(), 3u);
}

TEST_F(ToolsTest, TheModelHearsWhatWentWrong) {
  Script("fails", "echo half; echo why >&2; exit 3");
  Script("long", "printf '%0100d' 7");
  Script("bytes", "printf 'a\\377b'");
  Script("silent", "echo progress >&2");
  Script("slow", "trap '' TERM; echo begun; sleep 1000 & wait; wait");
  Script("killed", "kill -9 $$");
  const auto tool = [](const std::string& name, const std::string& more = "") {
    return R"({"name":")" + name + R"(","command":["./)" + name + "\"]" + more + "}";
  };
  Tools(tool("fails") + "," + tool("long", R"(,"max_output_bytes":10)") + "," + tool("bytes") + "," + tool("silent") +
        "," + tool("slow", R"(,"timeout_seconds":1)") + "," + tool("killed") + "," + tool("missing") +
        R"(,{"name":"needs","parameters":{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]},
        "command":["echo","{a}"]})");
  const OpenAiPeer peer(CallsThem({{"fails", "{}"},
                                   {"long", ""},
                                   {"bytes", "{}"},
                                   {"silent", "{}"},
                                   {"slow", "{}"},
                                   {"killed", "{}"},
                                   {"missing", "{}"},
                                   {"needs", "{}"},
                                   {"needs", R"({"a":"\u0000"})"},
                                   {"needs", R"({"a":{"b":[1]}})"},
                                   {"needs", "[1]"},
                                   {"needs", "{\"a\":"},
                                   {"nobody", "{}"}}));
  std::string allowed;
  for (const char* name : {"fails", "long", "bytes", "silent", "slow", "killed", "missing", "needs"}) {
    allowed += std::string(" --allow-tool ") + name;
  }
  const Ended e = Piped("--url " + peer.url(), allowed);
  EXPECT_EQ(e.code, 0) << e.text;
  EXPECT_THAT(Results(peer), ::testing::ElementsAre(
                                 "error: the command ended with code 3\nhalf\nwhy",
                                 "0000000000\n[the rest is left out: the output is longer than 10 bytes]", "a\uFFFDb",
                                 "(no output)", "error: the command did not end within 1 s and was stopped\nbegun",
                                 "error: the command was ended by signal 9",
                                 "error: ./missing can't be started: No such file or directory",
                                 "error: the argument \"a\" is missing",
                                 "error: an argument has a zero byte, which no word of a command can have",
                                 "error: the arguments do not fit the tool's parameters: behind {\"a\": may not "
                                 "come {\"b\":[1]}}",
                                 "error: the arguments are no JSON object", "error: the arguments are no JSON object",
                                 "error: there is no tool nobody"));
}

// The user is not asked for what is wrong.
TEST_F(ToolsTest, ArgumentsAreHeldAgainstTheSchema) {
  Tools(R"({"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"},
      "days":{"type":"integer","maximum":9},"unit":{"enum":["C","F"]}},"required":["city"],
      "additionalProperties":false},"command":["./weather","{city}"]},
      {"name":"odd","parameters":{"type":"object","properties":{"a":{"$recursiveRef":"#"}}},"command":["echo","ran"]})");
  const OpenAiPeer peer(CallsThem({{"weather", R"({"city":"Köln","days":"3"})"},
                                   {"weather", R"({"days":30,"city":"Oslo"})"},
                                   {"weather", R"({"city":"Oslo","unit":"K"})"},
                                   {"weather", R"({"city":"Oslo","town":1})"},
                                   {"weather", R"({"city":null})"},
                                   {"odd", R"({"a":1})"}}));
  const Ended e = Piped("--url " + peer.url(), "--allow-tool odd");
  EXPECT_EQ(e.code, 0) << e.text;
  const std::string wrong = "error: the arguments do not fit the tool's parameters: behind ";
  EXPECT_THAT(Results(peer), ::testing::ElementsAre(wrong + R"({"city":"Köln","days": may not come "3"})",
                                                    wrong + R"({"days":3 may not come 0,"city":"Oslo"})",
                                                    wrong + R"({"city":"Oslo","unit":" may not come K"})",
                                                    wrong + R"({"city":"Oslo"," may not come town":1})",
                                                    wrong + R"({"city": may not come null})", "ran"));
  EXPECT_THAT(e.text, Not(HasSubstr("nobody can be asked")));
  const OpenAiPeer right(CallsThem({{"weather", R"({"unit":"F","days":9,"city":"Oslo"})"},
                                    {"weather", R"({"city":"Oslo","days":null,"unit":null})"}}));
  const Ended fine = Piped("--url " + right.url(), "--allow-tool weather");
  EXPECT_THAT(fine.text, Not(HasSubstr("do not fit"))) << fine.text;
  EXPECT_TRUE(Ran("weather"));
}

TEST_F(ToolsTest, AModelThatCallsAndCallsIsStopped) {
  const OpenAiPeer peer(CallsThem({{"weather", R"({"city":"Oslo"})"}}, true));
  const Ended e = Piped("--url " + peer.url(), "--allow-tool weather --tool-rounds 3");
  EXPECT_EQ(e.code, 0) << e.text;
  EXPECT_EQ(peer.bodies().size(), 3u);
  EXPECT_THAT(e.text, HasSubstr("the model called tools 3 times in a row, so the chat stops here; --tool-rounds N"));
}

TEST_F(ToolsTest, CtrlCKillsTheCommand) {
  Script("slow",
         "trap '' TERM INT\necho $$ >\"$0.pid.new\"\nmv \"$0.pid.new\" \"$0.pid\"\nwhile :; do sleep 1000; done");
  Tools(R"({"name":"slow","command":["./slow"],"timeout_seconds":3600})");
  const OpenAiPeer peer(CallsThem({{"slow", "{}"}, {"slow", "{}"}}));
  auto chat = OnTerminal(peer, {"--allow-tool", "slow"});
  ASSERT_TRUE(chat->WaitFor("> ")) << chat->output();
  chat->Type("Hi\r");
  const std::string file = folder_ + "/slow.pid";
  for (int i = 0; i < 6000 && !std::filesystem::exists(file); ++i) std::this_thread::sleep_for(milliseconds(5));
  pid_t pid = 0;
  std::ifstream(file) >> pid;
  ASSERT_GT(pid, 0) << chat->output();
  EXPECT_EQ(kill(pid, 0), 0);
  chat->Type("\x03");
  ASSERT_TRUE(chat->WaitFor("error: the user stopped the command")) << chat->output();
  ASSERT_TRUE(chat->WaitFor("[stopped]")) << chat->output();
  EXPECT_NE(kill(pid, 0), 0) << "it was waited for";
  // The second call did not run, and the conversation goes on with a result for each.
  ASSERT_TRUE(chat->WaitFor("> ")) << chat->output();
  chat->Type("/save " + folder_ + "/talk.json\r");
  ASSERT_TRUE(chat->WaitFor("4 messages in")) << chat->output();
  chat->Type("/exit\r");
  EXPECT_EQ(chat->Wait(seconds(30)), 0);
  EXPECT_EQ(peer.bodies().size(), 1u);
}

TEST_F(ToolsTest, AConversationWithCallsIsSavedLoadedAndWrittenAgain) {
  const OpenAiPeer peer(CallsThem({{"weather", R"({"city":"Oslo"})"}}));
  const std::string talk = folder_ + "/talk.json";
  Ended e = Piped("--url " + peer.url(), "--allow-tool weather -q", "Hi\\n/regenerate\\n/save " + talk + "\\n");
  EXPECT_EQ(e.code, 0) << e.text;
  ASSERT_EQ(peer.bodies().size(), 4u);
  EXPECT_EQ(peer.bodies()[2].at("messages").as_array().size(), 1u) << "calls and results go with the answer";
  EXPECT_THAT(e.text, HasSubstr("4 messages in"));
  e = Piped("--url " + peer.url(), "-q", "/load " + talk + "\\n/tools\\n");
  EXPECT_EQ(e.code, 0) << e.text;
  EXPECT_THAT(e.text, HasSubstr("4 messages from"));
  EXPECT_THAT(e.text, HasSubstr("(asks first)"));
  for (const auto& [bad, says] : {
           std::pair(R"([{"role":"tool","content":"x","tool_call_id":"call_9"}])",
                     "no call before it has its tool_call_id"),
           std::pair(R"([{"role":"assistant","content":"","tool_calls":[{"id":"a"}]}])",
                     "calls of tools in another form"),
           std::pair(R"([{"role":"assistant","content":"","tool_calls":5}])", "calls of tools in another form"),
       }) {
    const testing::TextFile wrong(bad);
    e = Piped("--url " + peer.url(), "-q", "/load " + wrong.path() + "\\n");
    EXPECT_EQ(e.code, 1) << bad;
    EXPECT_THAT(e.text, HasSubstr(says));
  }
}

TEST_F(ToolsTest, AWrongFileIsRefusedBeforeTheChat) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "not valid JSON"},
      {"[]", "the file must be a JSON object"},
      {"{}", "tools is missing"},
      {R"({"tools":[]})", "0 of them, expected 1 to 128"},
      {R"({"tools":[],"x":1})", "0 of them"},
      {R"({"tools":[{"name":"f","command":["a"],"shell":true}]})", "the field tools[0].shell is not supported"},
      {R"({"tools":[{"command":["a"]}]})", "tools[0].name is missing"},
      {R"({"tools":[{"name":"a b","command":["a"]}]})", "tools[0].name is \"a b\"; a name has"},
      {R"({"tools":[{"name":"f","command":["a"]},{"name":"f","command":["a"]}]})", "there are two tools f"},
      {R"({"tools":[{"name":"f"}]})", "tools[0].command is missing"},
      {R"({"tools":[{"name":"f","command":"ls -l"}]})", "tools[0].command must be an array"},
      {R"({"tools":[{"name":"f","command":[]}]})", "expected a program and its words"},
      {R"({"tools":[{"name":"f","command":["a",5]}]})", "tools[0].command[1]: expected a text"},
      {R"({"tools":[{"name":"f","command":["a","{citi}"],"parameters":{"properties":{"city":{}}}}]})",
       "tools[0].command[1]: the parameters have no \"citi\"; did you mean 'city'?; {{citi}} stands for the text "
       "{citi}"},
      {R"({"tools":[{"name":"f","command":["{city}"],"parameters":{"properties":{"city":{}}}}]})",
       "an argument can't name the program"},
      {R"({"tools":[{"name":"f","command":["a"],"timeout_seconds":0}]})",
       "tools[0].timeout_seconds is 0; it may be 1 to"},
      {R"({"tools":[{"name":"f","command":["a"],"folder":"nowhere"}]})", "there is no folder"},
  };
  for (const auto& [text, says] : cases) {
    std::ofstream(folder_ + "/tools.json") << text;
    const Ended e = Piped("--url http://127.0.0.1:1", "");
    EXPECT_EQ(e.code, 2) << text << e.text;
    EXPECT_THAT(e.text, HasSubstr(std::string(says))) << text;
    EXPECT_THAT(e.text, HasSubstr("--tools: " + folder_ + "/tools.json: ")) << text;
  }
  EXPECT_EQ(Gyre({"chat", "--url", "http://127.0.0.1:1", "--tools", folder_ + "/none"}).code, 2);
  EXPECT_EQ(Gyre({"chat", "--url", "http://127.0.0.1:1", "--allow-tool", "f"}).code, 2) << "it needs --tools";
  Tools(R"({"name":"weather","command":["./weather"]})");
  EXPECT_THAT(Piped("--url http://127.0.0.1:1", "--allow-tool wether").text, HasSubstr("did you mean 'weather'?"));
  EXPECT_THAT(Piped("--url http://127.0.0.1:1", "--regex a").text, HasSubstr("--tools can't go with a grammar"));
}

// A model in this process, and one at a coordinator.
TEST_F(ToolsTest, ALocalModelCallsThem) {
  const testing::TinyModelFile model(testing::CallingModel(
      {"I look.\n<tool_", "call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>"},
      {"It is ", "sunny."}));
  const auto check = [&](const std::string& to, size_t turns) {
    SCOPED_TRACE(to);
    std::filesystem::remove(folder_ + "/weather.ran");
    const Ended e = Piped(to, "--allow-tool weather --temp 0", "Hi\\nAgain\\n/save! " + folder_ + "/talk.json\\n");
    EXPECT_EQ(e.code, 0) << e.text;
    EXPECT_TRUE(Ran("weather"));
    EXPECT_THAT(e.text, HasSubstr("It is sunny.\n"));
    EXPECT_THAT(e.text, Not(HasSubstr("tool_call>")));
    std::ifstream in(folder_ + "/talk.json");
    const json::value talk = json::parse(std::string(std::istreambuf_iterator<char>(in), {}));
    const json::array& messages = talk.at("messages").as_array();
    ASSERT_EQ(messages.size(), 4 * turns) << talk << e.text;
    EXPECT_EQ(messages[1].at("content"), "I look.");
    EXPECT_EQ(messages[1].at("tool_calls").at(0).at("function"),
              json::parse(R"({"name":"weather","arguments":"{\"city\": \"Oslo\"}"})"));
    EXPECT_EQ(messages[2].at("tool_call_id"), messages[1].at("tool_calls").at(0).at("id"));
    EXPECT_EQ(messages[3], (json::object{{"role", "assistant"}, {"content", "It is sunny."}}));
    const std::string first(messages[1].at("tool_calls").at(0).at("id").as_string());
    const std::string last(messages[4 * turns - 3].at("tool_calls").at(0).at("id").as_string());
    EXPECT_EQ(first == last, turns == 1);
    EXPECT_EQ(e.text.find("forgotten") != std::string::npos, turns == 1) << e.text;
  };
  check(model.path(), 2);
  // A turn leaves a context that is full as a whole: a question with its calls and their results.
  check(model.path() + " -c 640", 1);
  Process serve({GYRE_BINARY, "serve", model.path(), "--cluster", "127.0.0.1:0", "--http", "off", "-q"});
  const auto address = serve.WaitFor("listening ");
  ASSERT_TRUE(address.has_value()) << serve.output();
  check("--cluster " + *address, 2);
}

TEST_F(ToolsTest, AModelThatTakesNoToolsIsRefused) {
  const Ended e = Piped(GYRE_DEMO_MODEL, "");
  EXPECT_EQ(e.code, 1) << e.text;
  EXPECT_THAT(e.text, HasSubstr("the chat template has no tools, so the model can't be told of them"));
}

TEST(FoldedTest, LinesAndBytesAreLimited) {
  EXPECT_EQ(Folded("a ", "", 2, 9), "a \n");
  EXPECT_EQ(Folded("a ", "one\n", 2, 9), "a one\n");
  EXPECT_EQ(Folded("a ", "one\ntwo", 2, 9), "a one\n  two\n");
  EXPECT_EQ(Folded("a ", "one\ntwo\nthree", 2, 99), "a one\n  two\n  ... and 5 bytes more\n");
  EXPECT_EQ(Folded("a ", "äöü", 2, 3), "a ä\n  ... and 4 bytes more\n") << "no half characters";
  EXPECT_EQ(Folded("a ", "\033[1m\tx", 2, 99), "a \\x1b[1m\tx\n");
}

}  // namespace
}  // namespace gyre
