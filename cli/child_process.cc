#include "cli/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string_view>

#include "transport/fd.h"

namespace gyre {
namespace {

constexpr auto kLook = std::chrono::milliseconds(50);
constexpr auto kGrace = std::chrono::milliseconds(500);

// A file without a name, as a pipe would have to be written while the program reads.
StatusOr<Fd> InputFile(std::string_view text) {
  Fd file(memfd_create("input", MFD_CLOEXEC));
  if (!file.ok()) return Unavailable("no memory for a program's input: {}", std::strerror(errno));
  while (!text.empty()) {
    const ssize_t n = write(file.get(), text.data(), text.size());
    if (n < 0) return Unavailable("no memory for a program's input: {}", std::strerror(errno));
    text.remove_prefix(static_cast<size_t>(n));
  }
  lseek(file.get(), 0, SEEK_SET);
  return file;
}

// One of a program's outputs, as far as it is kept.
class ChildOutput {
 public:
  Status Open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return Unavailable("no pipe: {}", std::strerror(errno));
    here_ = Fd(ends[0]);
    there_ = Fd(ends[1]);
    fcntl(here_.get(), F_SETFL, O_NONBLOCK);
    return absl::OkStatus();
  }
  // The child's end, until it is closed here.
  int there() const { return there_.get(); }
  void CloseThere() { there_ = Fd(); }
  int here() const { return here_.ok() ? here_.get() : -1; }  // -1: it has ended

  // Takes all that is there now.
  void Read(size_t most, std::string* text, bool* cut) {
    std::array<char, 16384> bytes;
    while (here_.ok()) {
      const ssize_t n = read(here_.get(), bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return;
      if (n == 0) {
        here_ = Fd();
        return;
      }
      const size_t kept = std::min(static_cast<size_t>(n), most - text->size());
      text->append(bytes.data(), kept);
      *cut |= kept < static_cast<size_t>(n);
      // A program that goes on writing must not keep its reader from looking at the time.
      if (kept < bytes.size()) return;
    }
  }

 private:
  Fd here_, there_;
};

}  // namespace

StatusOr<pid_t> StartChild(std::vector<std::string> command, const ChildStreams& streams, const std::string& folder) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (streams.in < 0) posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  if (streams.in >= 0) posix_spawn_file_actions_adddup2(&actions, streams.in, 0);
  posix_spawn_file_actions_adddup2(&actions, streams.out, 1);
  posix_spawn_file_actions_adddup2(&actions, streams.err, 2);
  if (!folder.empty()) posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return Unavailable("{} can't be started: {}", command[0], std::strerror(error));
  return pid;
}

StatusOr<ChildEnd> RunChild(const ChildRun& run) {
  GYRE_ASSIGN_OR_RETURN(const Fd input, InputFile(run.input));
  ChildOutput out, err;
  GYRE_RETURN_IF_ERROR(out.Open());
  GYRE_RETURN_IF_ERROR(err.Open());
  GYRE_ASSIGN_OR_RETURN(
      const pid_t pid,
      StartChild(run.command, {.in = input.get(), .out = out.there(), .err = err.there()}, run.folder));
  out.CloseThere();
  err.CloseThere();
  ChildEnd end;
  std::optional<ChildEnd::How> ended;  // by this process
  const Deadline late = After(run.time);
  Deadline kill_at = kNoDeadline;
  for (;;) {
    std::array<pollfd, 2> fds{
        {{.fd = out.here(), .events = POLLIN, .revents = 0}, {.fd = err.here(), .events = POLLIN, .revents = 0}}};
    poll(fds.data(), fds.size(), static_cast<int>(kLook.count()));
    // Before the output is read: what it wrote before its end is there then.
    siginfo_t over{};
    waitid(P_PID, static_cast<id_t>(pid), &over, WEXITED | WNOHANG | WNOWAIT);
    out.Read(run.output_bytes, &end.out, &end.cut);
    err.Read(run.output_bytes, &end.err, &end.cut);
    if (over.si_pid == pid) {
      // The others of its group may not have listened to SIGTERM. Until it is waited for, the group's number is its
      // own.
      if (ended) kill(-pid, SIGKILL);
      int status = 0;
      waitpid(pid, &status, 0);
      end.how = ended.value_or(WIFSIGNALED(status) ? ChildEnd::How::kSignal : ChildEnd::How::kExited);
      end.code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
      return end;
    }
    const Deadline now = Clock::now();
    if (!ended && (run.stopped() || now > late)) {
      ended = run.stopped() ? ChildEnd::How::kStopped : ChildEnd::How::kLate;
      kill(-pid, SIGTERM);
      kill_at = now + kGrace;
    }
    if (ended && now > kill_at) kill(-pid, SIGKILL);
  }
}

}  // namespace gyre
