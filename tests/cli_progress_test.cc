// A progress bar and log lines share a terminal.
#include "cli/progress.h"

#include <gtest/gtest.h>

#include <pty.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "base/log.h"

namespace gyre {
namespace {

// stderr is a terminal while it lives.
class TerminalStderr {
 public:
  TerminalStderr() : before_(dup(STDERR_FILENO)) {
    int terminal = -1;
    EXPECT_EQ(openpty(&master_, &terminal, nullptr, nullptr, nullptr), 0);
    dup2(terminal, STDERR_FILENO);
    close(terminal);
  }
  ~TerminalStderr() {
    dup2(before_, STDERR_FILENO);
    close(before_);
    close(master_);
  }
  // The output since the last call.
  std::string Read() const {
    fflush(stderr);
    char bytes[4096];
    const ssize_t n = read(master_, bytes, sizeof bytes);
    return std::string(bytes, n > 0 ? static_cast<size_t>(n) : 0);
  }

 private:
  const int before_;
  int master_ = -1;
};

TEST(ProgressTest, ALogLineTakesTheBarsPlace) {
  TerminalStderr terminal;
  Progress progress("loading", false);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));  // no bar for what is done sooner
  progress.Update(1, 2);
  const std::string bar = terminal.Read();
  EXPECT_EQ(bar.rfind("\rloading [", 0), 0u) << bar;
  LogLine(LogLevel::kError, "a line");
  std::string line = terminal.Read();
  EXPECT_EQ(line.rfind("\r\033[K", 0), 0u) << line;
  if (line.find("a line") == std::string::npos) line += terminal.Read();
  EXPECT_NE(line.find("a line"), std::string::npos) << line;
  // Without a bar there is nothing to clear.
  LogLine(LogLevel::kError, "another");
  line = terminal.Read();
  EXPECT_EQ(line.find("\033[K"), std::string::npos) << line;
  progress.Update(2, 2);
  EXPECT_NE(terminal.Read().find("100%"), std::string::npos);
  progress.Finish();
  EXPECT_EQ(terminal.Read(), "\r\033[K");
}

TEST(ProgressTest, RateAndTimeLeftStandBehindTheBar) {
  EXPECT_EQ(DescribeSeconds(0.2), "1 s");
  EXPECT_EQ(DescribeSeconds(59), "59 s");
  EXPECT_EQ(DescribeSeconds(200), "3 min 20 s");
  EXPECT_EQ(DescribeSeconds(3900), "1 h 05 min");
  TerminalStderr terminal;
  Progress progress("pulling", false);
  std::this_thread::sleep_for(std::chrono::milliseconds(510));
  progress.Update(uint64_t{1} << 30, uint64_t{3} << 30, 64 << 20);
  EXPECT_NE(terminal.Read().find(" 33% of 3.00 GiB, 64.0 MiB/s, 32 s left"), std::string::npos);
  progress.Finish();
}

}  // namespace
}  // namespace gyre
