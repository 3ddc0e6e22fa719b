// gyre chat on a terminal and through a pipe, and what signals do to it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/testing/command.h"
#include "tests/testing/demo_model.h"
#include "tests/testing/terminal.h"

namespace gyre {
namespace {

using std::chrono::seconds;
using testing::Ended;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Shell;
using testing::Terminal;

// A chat with the demo model on a terminal.
class ChatTest : public ::testing::Test {
 protected:
  ChatTest() {
    char folder[] = "/tmp/gyre-chat-XXXXXX";
    state_ = mkdtemp(folder);
  }
  ~ChatTest() override { std::filesystem::remove_all(state_); }

  std::unique_ptr<Terminal> Chat(std::vector<std::string> flags = {}, const std::string& locale = "C.UTF-8") const {
    std::vector<std::string> command{GYRE_BINARY, "chat", GYRE_DEMO_MODEL, "--temp", "0"};
    command.insert(command.end(), flags.begin(), flags.end());
    return std::make_unique<Terminal>(
        std::move(command), std::vector<std::pair<std::string, std::string>>{
                                {"LC_ALL", locale}, {"XDG_STATE_HOME", state_}, {"HOME", state_}, {"TERM", "xterm"}});
  }
  static void Leave(Terminal* chat) {
    chat->Type("/exit\r");
    EXPECT_EQ(chat->Wait(seconds(30)), 0) << chat->output();
  }
  std::string state_;
};

size_t Count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++n;
  return n;
}

TEST_F(ChatTest, EveryCharacterArrives) {
  for (const char* locale : {"C.UTF-8", "C"}) {
    SCOPED_TRACE(locale);
    auto chat = Chat({}, locale);
    ASSERT_TRUE(chat->WaitFor("> ")) << chat->output();
    chat->Type("/Wie-heißt-du,漢字🦊?\r");
    EXPECT_TRUE(chat->WaitFor("unknown command /Wie-heißt-du,漢字🦊?;")) << chat->output();
    ASSERT_TRUE(chat->WaitFor("> ")) << chat->output();  // before, the terminal itself erases, byte by byte
    // A character is erased whole.
    chat->Type("/ä漢🦊\x7f\x7fx\r");
    EXPECT_TRUE(chat->WaitFor("unknown command /äx;")) << chat->output();
    Leave(chat.get());
  }
}

TEST_F(ChatTest, TheBannerNamesTheModel) {
  auto chat = Chat();
  EXPECT_TRUE(chat->WaitFor("demo.gguf (llama)")) << chat->output();
  ASSERT_TRUE(chat->WaitFor("> "));
  Leave(chat.get());
}

TEST_F(ChatTest, APasteIsOneMessage) {
  auto chat = Chat();
  ASSERT_TRUE(chat->WaitFor("\033[?2004h")) << chat->output();
  chat->Type("\033[200~What\ris\nGyre?\r\n\033[201~");
  chat->Type("\r");
  ASSERT_TRUE(chat->WaitFor("[prompt ")) << chat->output();
  ASSERT_TRUE(chat->WaitFor("> "));
  // Behind it the keys mean what they meant.
  chat->Type("/nonsense\033[D\033[D\033[3~\r");
  EXPECT_TRUE(chat->WaitFor("unknown command /nonsene;")) << chat->output();
  Leave(chat.get());
  EXPECT_EQ(Count(chat->output(), "[prompt "), 1u) << chat->output();
}

TEST_F(ChatTest, LinesGoOn) {
  auto chat = Chat();
  ASSERT_TRUE(chat->WaitFor("> ")) << chat->output();
  chat->Type("What is\\\r");
  ASSERT_TRUE(chat->WaitFor("... ")) << chat->output();
  chat->Type("Gyre?\r");
  ASSERT_TRUE(chat->WaitFor("[prompt ")) << chat->output();
  ASSERT_TRUE(chat->WaitFor("> "));
  chat->Type("\"\"\"\r");
  ASSERT_TRUE(chat->WaitFor("... "));
  chat->Type("/layers\r");
  ASSERT_TRUE(chat->WaitFor("... ")) << "a line of a message, not a command: " << chat->output();
  chat->Type("\"\"\"\r");
  chat->WaitFor("\033[?2004h");
  Leave(chat.get());
  EXPECT_EQ(Count(chat->output(), "[prompt "), 1u);
}

TEST_F(ChatTest, CtrlCAtThePromptClearsTheLine) {
  auto chat = Chat();
  ASSERT_TRUE(chat->WaitFor("> ")) << chat->output();
  chat->Type("/half");
  ASSERT_TRUE(chat->WaitFor("/half"));
  chat->Type("\x03");
  ASSERT_TRUE(chat->WaitFor("/exit or Ctrl-D leaves")) << chat->output();
  ASSERT_TRUE(chat->WaitFor("> "));
  chat->Type("/whole\r");
  EXPECT_TRUE(chat->WaitFor("unknown command /whole;")) << chat->output();
  Leave(chat.get());
}

TEST_F(ChatTest, CtrlCEndsAnAnswerAndKeepsTheConversation) {
  auto chat = Chat({"--ignore-eos", "-c", "100000", "-q"});  // an answer that goes on
  ASSERT_TRUE(chat->WaitFor("> ")) << chat->output();
  chat->Type("Tell me a story about a fox.\r");
  ASSERT_TRUE(chat->WaitFor("fox.\r\n"));
  ASSERT_TRUE(chat->WaitFor("a")) << chat->output();
  chat->Type("\x03");
  ASSERT_TRUE(chat->WaitFor("[stopped]")) << chat->output();
  ASSERT_TRUE(chat->WaitFor("> "));
  Leave(chat.get());
}

// In a shell: a process without one that could continue it is not stopped by a terminal.
TEST_F(ChatTest, CtrlZGivesTheTerminalBackAndTheLineGoesOn) {
  Terminal shell({"/bin/sh", "-i"},
                 {{"PS1", "SH$ "}, {"LC_ALL", "C.UTF-8"}, {"XDG_STATE_HOME", state_}, {"TERM", "xterm"}});
  ASSERT_TRUE(shell.WaitFor("SH$ ")) << shell.output();
  shell.Type(std::string(GYRE_BINARY) + " chat " + GYRE_DEMO_MODEL + " --temp 0\n");
  ASSERT_TRUE(shell.WaitFor("\033[?2004h> ")) << shell.output();
  EXPECT_TRUE(shell.Raw());
  shell.Type("/hal");
  ASSERT_TRUE(shell.WaitFor("/hal"));
  for (int turn = 0; turn < 2; ++turn) {
    shell.Type("\x1a");
    ASSERT_TRUE(shell.WaitFor("\033[?2004l")) << shell.output();
    ASSERT_TRUE(shell.WaitFor("SH$ ")) << shell.output();
    EXPECT_FALSE(shell.Raw());
    shell.Type("fg\n");
    ASSERT_TRUE(shell.WaitFor("\033[?2004h")) << shell.output();
    ASSERT_TRUE(shell.WaitFor("> /hal")) << shell.output();
    EXPECT_TRUE(shell.Raw());
  }
  shell.Type("f\r");
  EXPECT_TRUE(shell.WaitFor("unknown command /half;")) << shell.output();
  ASSERT_TRUE(shell.WaitFor("> "));
  shell.Type("/exit\r");
  ASSERT_TRUE(shell.WaitFor("SH$ ")) << shell.output();
  EXPECT_FALSE(shell.Raw());
  shell.Type("exit\n");
  shell.Wait(seconds(30));
}

TEST_F(ChatTest, AQuitGivesTheTerminalBack) {
  auto chat = Chat();
  ASSERT_TRUE(chat->WaitFor("> ")) << chat->output();
  EXPECT_TRUE(chat->Raw());
  chat->Type("\x1c");
  EXPECT_EQ(chat->Wait(seconds(30)), 128 + SIGQUIT) << chat->output();
  EXPECT_FALSE(chat->Raw());
}

TEST_F(ChatTest, ALineIsDrawnAgainInAWindowOfAnotherSize) {
  auto chat = Chat();
  ASSERT_TRUE(chat->WaitFor("> ")) << chat->output();
  chat->Type("/half");
  ASSERT_TRUE(chat->WaitFor("/half"));
  chat->Resize(60);
  ASSERT_TRUE(chat->WaitFor("> /half")) << chat->output();
  chat->Type("er\r");
  EXPECT_TRUE(chat->WaitFor("unknown command /halfer;")) << chat->output();
  Leave(chat.get());
}

TEST_F(ChatTest, SigtermAtThePromptEndsIt) {
  auto chat = Chat();
  ASSERT_TRUE(chat->WaitFor("> ")) << chat->output();
  chat->Kill(SIGTERM);
  EXPECT_EQ(chat->Wait(seconds(30)), 130) << chat->output();
}

TEST_F(ChatTest, CtrlDLeavesTheCursorInAnEmptyRow) {
  auto chat = Chat();
  ASSERT_TRUE(chat->WaitFor("> ")) << chat->output();
  chat->Type("\x04");
  EXPECT_EQ(chat->Wait(seconds(30)), 0) << chat->output();
  EXPECT_THAT(chat->output(), ::testing::EndsWith("\n"));
}

TEST_F(ChatTest, WordsMoveToTheNextRow) {
  auto chat = Chat();
  ASSERT_TRUE(chat->WaitFor("> ")) << chat->output();
  chat->Resize(30);
  chat->Type("What is Gyre?\r");
  ASSERT_TRUE(chat->WaitFor("[prompt ")) << chat->output();
  EXPECT_THAT(chat->output(), HasSubstr("\033[K\r\n"));
  const size_t before = Count(chat->output(), "\033[K\r\n");
  chat->WaitFor("> ");
  chat->Type("/set wrap off\rWhat is Gyre?\r");
  ASSERT_TRUE(chat->WaitFor("[prompt ")) << chat->output();
  EXPECT_EQ(Count(chat->output(), "\033[K\r\n"), before);
  chat->WaitFor("> ");
  Leave(chat.get());
}

TEST_F(ChatTest, TabCompletesACommand) {
  auto chat = Chat();
  ASSERT_TRUE(chat->WaitFor("> ")) << chat->output();
  chat->Type("/reg\t\r");
  EXPECT_TRUE(chat->WaitFor("there is no question yet")) << chat->output();
  ASSERT_TRUE(chat->WaitFor("> "));
  chat->Type("/s\t");
  EXPECT_TRUE(chat->WaitFor("/status  /set  /show  /save")) << chat->output();
  chat->Type("\x15");
  Leave(chat.get());
}

TEST_F(ChatTest, TheHistoryHoldsMessages) {
  {
    auto chat = Chat({"-n", "1"});
    ASSERT_TRUE(chat->WaitFor("> ")) << chat->output();
    chat->Type("\"\"\"first line\r");
    ASSERT_TRUE(chat->WaitFor("... "));
    chat->Type("second line\"\"\"\r");
    ASSERT_TRUE(chat->WaitFor("[prompt "));
    ASSERT_TRUE(chat->WaitFor("> "));
    chat->Type("third \\\r");
    ASSERT_TRUE(chat->WaitFor("... "));
    chat->Type("fourth\r");
    ASSERT_TRUE(chat->WaitFor("[prompt "));
    ASSERT_TRUE(chat->WaitFor("> "));
    Leave(chat.get());
  }
  auto chat = Chat({"-n", "1"});
  ASSERT_TRUE(chat->WaitFor("> ")) << chat->output();
  chat->Type("\033[A\033[A\033[A");  // up
  ASSERT_TRUE(chat->WaitFor("first line")) << chat->output();
  ASSERT_TRUE(chat->WaitFor("second line")) << chat->output();
  chat->Type("\r");
  ASSERT_TRUE(chat->WaitFor("[prompt ")) << chat->output();
  ASSERT_TRUE(chat->WaitFor("> "));
  chat->Type("/save " + state_ + "/saved\r");
  ASSERT_TRUE(chat->WaitFor("2 messages in")) << chat->output();
  ASSERT_TRUE(chat->WaitFor("> "));
  Leave(chat.get());
  std::ifstream saved(state_ + "/saved");
  const std::string text((std::istreambuf_iterator<char>(saved)), {});
  EXPECT_THAT(text, HasSubstr("first line\\nsecond line"));
}

TEST_F(ChatTest, RunWithoutAPromptIsAChat) {
  Terminal chat({GYRE_BINARY, "run", GYRE_DEMO_MODEL, "--temp", "0"},
                {{"LC_ALL", "C.UTF-8"}, {"XDG_STATE_HOME", state_}, {"HOME", state_}, {"TERM", "xterm"}});
  ASSERT_TRUE(chat.WaitFor("There is no prompt, so this is `gyre chat`")) << chat.output();
  ASSERT_TRUE(chat.WaitFor("> ")) << chat.output();
  chat.Type("What is Gyre?\r");
  EXPECT_TRUE(chat.WaitFor("Gyre runs one large language model")) << chat.output();
  ASSERT_TRUE(chat.WaitFor("> "));
  chat.Type("/bye\r");
  EXPECT_EQ(chat.Wait(seconds(30)), 0) << chat.output();
}

// The template leaves the answer in the reasoning, which the demo model never ends.
TEST_F(ChatTest, ReasoningIsDimOnATerminalAndLeftOutElsewhere) {
  const std::string model = state_ + "/thinks.gguf";
  const auto bytes = testing::DemoModelWithTemplate(
      "{% for m in messages %}{{ m['content'] + '\n' }}{% endfor %}{{ '<think>' }}{# </think> #}");
  std::ofstream(model, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  const std::string rest = " '" + model + "' --temp 0 -n 8 -q --ignore-eos ";
  for (const std::string& command :
       {"printf 'What is Gyre?\n' | \"$gyre\" chat" + rest, "\"$gyre\" run" + rest + "--chat -p 'What is Gyre?'"}) {
    const Ended piped = Shell(command + " 2>/dev/null");
    EXPECT_EQ(piped.code, 0) << piped.text;
    EXPECT_EQ(piped.text, "\n") << command;
  }
  Terminal chat({GYRE_BINARY, "chat", model, "--temp", "0", "-n", "8", "--ignore-eos"},
                {{"LC_ALL", "C.UTF-8"}, {"XDG_STATE_HOME", state_}, {"HOME", state_}, {"TERM", "xterm"}});
  ASSERT_TRUE(chat.WaitFor("> ")) << chat.output();
  chat.Type("What is Gyre?\r");
  EXPECT_TRUE(chat.WaitFor("\033[2m")) << chat.output();
  EXPECT_TRUE(chat.WaitFor("\033[0m")) << chat.output();
  EXPECT_TRUE(chat.WaitFor("[prompt ")) << chat.output();
  ASSERT_TRUE(chat.WaitFor("> "));
  Leave(&chat);
}

Ended Piped(const std::string& input, const std::string& flags = "") {
  return Shell("printf '" + input + "' | \"$gyre\" chat \"$model\" --temp 0 " + flags);
}

TEST(PipedChatTest, AFailedTurnFailsTheCommand) {
  Ended ended = Piped("What is Gyre?\\n/resize 99\\nWhat is 2 + 2?\\n");
  EXPECT_EQ(ended.code, 1) << ended.text;
  EXPECT_EQ(Count(ended.text, "[prompt "), 2u) << "the other messages are answered: " << ended.text;
  EXPECT_THAT(ended.text, HasSubstr("1 of the messages failed"));
  ended = Piped("What is Gyre?\\n");
  EXPECT_EQ(ended.code, 0) << ended.text;
}

TEST(PipedChatTest, AFullContextIsSaidAndTheChatGoesOn) {
  const Ended ended = Piped("What is Gyre?\\nWhat is Gyre?\\nWhat is Gyre?\\nWhat is Gyre?\\n", "-c 80");
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_EQ(Count(ended.text, "[prompt "), 4u) << ended.text;
  EXPECT_THAT(ended.text, HasSubstr("the context of 80 tokens is full: the 2 oldest messages are forgotten. /reset"));
  EXPECT_THAT(ended.text, HasSubstr("--ctx N"));
}

TEST(PipedChatTest, AnAnswerThatIsCutOffIsMarked) {
  Ended ended = Piped("Tell me a story about a fox.\\n", "-c 60 --quiet");
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_THAT(ended.text, HasSubstr("[the answer is cut off: the context of 60 tokens is full. /reset"));
  ended = Piped("Tell me a story about a fox.\\n", "-n 5 --quiet");
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_THAT(ended.text, HasSubstr("[the answer is cut off after 5 tokens"));
  ended = Piped("What is Gyre?\\n");
  EXPECT_THAT(ended.text, Not(HasSubstr("cut off")));
}

TEST(PipedChatTest, AMessageLongerThanTheContextIsRefusedWithTheWaysOut) {
  const Ended ended = Piped("What is Gyre? What is Gyre? What is Gyre?\\n", "-c 20");
  EXPECT_EQ(ended.code, 1) << ended.text;
  EXPECT_THAT(ended.text, HasSubstr("/reset"));
  EXPECT_THAT(ended.text, HasSubstr("--ctx N"));
}

TEST(PipedChatTest, FlagsOfARequestCountAsInRun) {
  const std::string plain = Shell("echo 'What is Gyre?' | \"$gyre\" chat \"$model\" --temp 0 2>/dev/null").text;
  for (const char* flags : {"--temp 0 --stop workers", "--temp 0 --logit-bias 200=100 -n 5",
                            "--temp 5 --top-k 0 --top-p 1 --min-p 0 -n 20 --seed 3"}) {
    const std::string words = std::string(" \"$model\" 2>/dev/null ") + flags;
    const std::string chat = Shell("echo 'What is Gyre?' | \"$gyre\" chat" + words).text;
    EXPECT_EQ(chat, Shell("echo 'What is Gyre?' | \"$gyre\" run --chat" + words).text) << flags;
    EXPECT_NE(chat, plain) << flags;
  }
}

TEST(PipedChatTest, QuotesJoinLines) {
  std::string text;
  for (const char* input : {"\"\"\"\\nWhat is\\nGyre?\\n\"\"\"\\n", "\"\"\"What is\\nGyre?\"\"\"\\n",
                            "\"\"\"What is\\nGyre?\\n\"\"\"\\n", "What is\\\\\\nGyre?\\n"}) {
    const Ended ended = Piped(input, "2>/dev/null");
    EXPECT_EQ(ended.code, 0) << ended.text;
    if (text.empty()) text = ended.text;
    EXPECT_EQ(ended.text, text) << input;
  }
  const Ended one = Piped("\"\"\"What is Gyre?\"\"\"\\n");
  EXPECT_THAT(one.text, HasSubstr("Gyre runs one large language model"));
  EXPECT_EQ(Count(one.text, "[prompt "), 1u) << one.text;
}

// The commands that people know from other chats.
TEST(PipedChatTest, SettingsChangeDuringTheChat) {
  const auto said = [](const std::string& input, const std::string& flags = "") {
    const Ended ended = Piped(input, flags);
    EXPECT_EQ(ended.code, 0) << ended.text;
    return ended.text;
  };
  EXPECT_THAT(said("/set parameter num_predict 5\\nWhat is Gyre?\\n"), HasSubstr("generated 5 tokens"));
  EXPECT_THAT(said("/set n-predict 5\\n/set stop runs\\nWhat is Gyre?\\n"), HasSubstr("Gyre \n"));
  EXPECT_THAT(said("/set quiet\\nWhat is Gyre?\\n"), Not(HasSubstr("[prompt ")));
  EXPECT_THAT(said("/set usage on\\nWhat is Gyre?\\n", "-q"), HasSubstr("[prompt "));
  EXPECT_THAT(said("/set temperature 0.25\\n/set system \"Be brief.\"\\n/show\\n"),
              ::testing::AllOf(HasSubstr("temp               0.25\n"), HasSubstr("system             Be brief.\n"),
                               HasSubstr("model              demo.gguf (llama)")));
  // Each change is answered with the value, also where it is the old one; without a name all are shown.
  EXPECT_THAT(said("/set temperature 0\\n"),
              ::testing::AllOf(HasSubstr("temp               0\n"), Not(HasSubstr("top-k"))));
  EXPECT_THAT(said("/set wrap off\\n/set system Be brief.\\n"),
              ::testing::AllOf(HasSubstr("wrap               off\n"), HasSubstr("system             Be brief.\n")));
  EXPECT_THAT(said("/set\\n"),
              ::testing::AllOf(HasSubstr("system             (none)\n"), HasSubstr("temp  "), HasSubstr("usage  ")));
  EXPECT_THAT(said("/set num_gpu 9\\n"), HasSubstr("--num-gpu has no effect: --device says"));
  EXPECT_THAT(said("/clear\\n/?\\n/bye\\nWhat is Gyre?\\n"),
              ::testing::AllOf(HasSubstr("Conversation cleared."), HasSubstr("/exit           leave"),
                               Not(HasSubstr("[prompt "))));
  // The system message is a part of the conversation at once, and /clear keeps it.
  const std::string brief = "/set system Be brief.\\n/clear\\n/save! /dev/stderr\\n";
  EXPECT_THAT(said(brief), HasSubstr("\"system\""));
  for (const auto& [input, says] : std::vector<std::pair<std::string, std::string>>{
           {"/set temp hot", "--temp: 'hot', expected a number from 0 to 100"},
           {"/set num_ctx 4096", "there is no setting 'num-ctx'; expected system, wrap, usage, n-predict, temp"},
           {"/set wrap maybe", "/set wrap: 'maybe', expected on or off"},
           {"/show license", "/show license: expected info, system, parameters"},
           {"/exti", "unknown command /exti; did you mean '/exit'?"}}) {
    const Ended ended = Piped(input + "\\n");
    EXPECT_EQ(ended.code, 1) << input;
    EXPECT_THAT(ended.text, HasSubstr(says)) << input;
  }
}

}  // namespace
}  // namespace gyre
