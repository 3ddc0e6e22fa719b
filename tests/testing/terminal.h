// A program under test on its own terminal, as a person uses it. It is killed at the latest with its object.
#pragma once

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace gyre::testing {

class Terminal {
 public:
  // environment: variables beside those of this process; an empty value unsets one.
  explicit Terminal(std::vector<std::string> command,
                    const std::vector<std::pair<std::string, std::string>>& environment = {}) {
    std::vector<char*> argv;
    for (std::string& word : command) argv.push_back(word.data());
    argv.push_back(nullptr);
    const winsize size{.ws_row = 40, .ws_col = 200, .ws_xpixel = 0, .ws_ypixel = 0};
    pid_ = forkpty(&fd_, nullptr, nullptr, &size);
    if (pid_ != 0) return;
    for (const auto& [name, value] : environment) {
      if (value.empty()) {
        unsetenv(name.c_str());
      } else {
        setenv(name.c_str(), value.c_str(), 1);
      }
    }
    execv(argv[0], argv.data());
    _exit(127);
  }
  ~Terminal() {
    Kill(SIGKILL);
    Wait(std::chrono::seconds(10));
    close(fd_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void Type(const std::string& text) const {
    for (size_t done = 0; done < text.size();) {
      const ssize_t n = write(fd_, text.data() + done, text.size() - done);
      if (n <= 0) return;
      done += static_cast<size_t>(n);
    }
  }
  void Kill(int signal) const {
    if (pid_ > 0 && !ended_) kill(pid_, signal);
  }
  // Whether `words` come, after the text that earlier calls found.
  bool WaitFor(const std::string& words, std::chrono::milliseconds time = std::chrono::seconds(30)) {
    const auto end = std::chrono::steady_clock::now() + time;
    for (;;) {
      const size_t at = output_.find(words, found_);
      if (at != std::string::npos) {
        found_ = at + words.size();
        return true;
      }
      if (std::chrono::steady_clock::now() > end || !Pump()) return false;
    }
  }
  // Returns its exit code, 128 + signal, or nullopt: it still runs after the time.
  std::optional<int> Wait(std::chrono::milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (!ended_) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        ended_ = true;
        code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        break;
      }
      if (std::chrono::steady_clock::now() > end) return std::nullopt;
      if (!Pump()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    while (Pump()) {
    }
    return code_;
  }
  // Whether each key goes to the program at once and the terminal does not show it; else the terminal edits lines.
  bool Raw() const {
    termios modes{};
    tcgetattr(fd_, &modes);
    return (modes.c_lflag & (ICANON | ECHO)) == 0;
  }
  void Resize(unsigned short columns) const {
    const winsize size{.ws_row = 40, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ioctl(fd_, TIOCSWINSZ, &size);
  }
  // All output so far.
  const std::string& output() const { return output_; }

 private:
  // Reads the program's output. Returns false if it closed the terminal, or wrote nothing and has ended.
  bool Pump() {
    pollfd fd{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&fd, 1, 20) <= 0) return !ended_;
    char bytes[4096];
    const ssize_t n = read(fd_, bytes, sizeof bytes);
    if (n <= 0) return false;
    output_.append(bytes, static_cast<size_t>(n));
    return true;
  }

  int fd_ = -1;
  pid_t pid_ = -1;
  bool ended_ = false;
  int code_ = 0;
  size_t found_ = 0;
  std::string output_;
};

}  // namespace gyre::testing
