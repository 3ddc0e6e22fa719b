// A program under test, started as a user starts it. It is killed at the latest with its object.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace gyre::testing {

// The number of descriptors that a process has open.
inline size_t OpenFiles(pid_t pid) {
  size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd"))
    ++n;
  return n;
}

class Process {
 public:
  explicit Process(std::vector<std::string> command) {
    char path[] = "/tmp/gyre-process-XXXXXX";
    const int fd = mkstemp(path);
    path_ = path;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    posix_spawn_file_actions_adddup2(&actions, fd, 2);
    posix_spawn_file_actions_addclose(&actions, fd);
    std::vector<char*> argv;
    // GYRE_TEST_PROGRAM replaces the program `gyre`: the same program with a device for tests (test_device.h).
    if (const char* program = getenv("GYRE_TEST_PROGRAM")) {
      for (std::string& word : command) {
        if (word.ends_with("/gyre")) word = program;
      }
    }
    for (std::string& word : command) argv.push_back(word.data());
    argv.push_back(nullptr);
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(fd);
  }
  ~Process() {
    Kill(SIGKILL);
    Wait(std::chrono::seconds(10));
    unlink(path_.c_str());
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // After SIGSTOP it returns when all threads of the program stand still: until then they may still answer.
  void Kill(int signal) const {
    if (pid_ <= 0 || ended_) return;
    kill(pid_, signal);
    siginfo_t stopped;
    if (signal == SIGSTOP) waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED | WEXITED | WNOWAIT);
  }
  // Returns its exit code, 128 + signal, or nullopt: it still runs after the time.
  std::optional<int> Wait(std::chrono::milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (!ended_) {
      int status = 0;
      if (pid_ < 0 || waitpid(pid_, &status, WNOHANG) == pid_) {
        ended_ = true;
        code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        break;
      }
      if (std::chrono::steady_clock::now() > end) return std::nullopt;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return code_;
  }
  // Its output so far, stdout and stderr.
  std::string output() const {
    std::ifstream in(path_);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }
  // The rest of the first line with `words`, or nullopt after the time.
  std::optional<std::string> WaitFor(const std::string& words,
                                     std::chrono::milliseconds time = std::chrono::seconds(20)) {
    const auto end = std::chrono::steady_clock::now() + time;
    for (;;) {
      const std::string text = output();
      const size_t at = text.find(words);
      if (at != std::string::npos) {
        const size_t line = text.find('\n', at);
        if (line != std::string::npos) return text.substr(at + words.size(), line - at - words.size());
      }
      if (std::chrono::steady_clock::now() > end || Wait(std::chrono::milliseconds(0))) return std::nullopt;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  std::string path_;
  bool ended_ = false;
  int code_ = 0;
};

}  // namespace gyre::testing
