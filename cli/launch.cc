// gyre launch: starts the processes of a ring, here or over ssh, and shows what they say in one place.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <toml++/toml.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "cli/commands.h"
#include "cli/session.h"
#include "cli/share_cores.h"
#include "fmt/core.h"

namespace gyre {
namespace {

struct Process {
  std::string name;
  std::vector<std::string> command;
  pid_t pid = -1;
  int output = -1;
  std::string line;  // of output, not yet whole
  bool running = false;
  int status = 0;
};

// For a remote shell.
std::string Quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

StatusOr<std::vector<std::string>> Strings(const toml::table& table, const char* key, const std::string& where) {
  std::vector<std::string> out;
  const auto node = table[key];
  if (!node) return out;
  const toml::array* array = node.as_array();
  if (array == nullptr) return InvalidArgument("{}: {} is no list of strings", where, key);
  for (const auto& element : *array) {
    const auto text = element.value<std::string>();
    if (!text) return InvalidArgument("{}: {} is no list of strings", where, key);
    out.push_back(*text);
  }
  return out;
}

Status CheckKeys(const toml::table& table, const std::vector<std::string>& known, const std::string& where) {
  for (const auto& [key, value] : table) {
    bool fine = false;
    for (const std::string& k : known) fine |= k == key.str();
    std::string all;
    for (const std::string& k : known) all += (all.empty() ? "" : ", ") + k;
    if (!fine) return InvalidArgument("{}: '{}' is not known there, known are {}", where, std::string(key.str()), all);
  }
  return absl::OkStatus();
}

StatusOr<std::vector<Process>> ReadRing(const LaunchOptions& options) {
  toml::table ring;
  try {
    ring = toml::parse_file(options.file);
  } catch (const toml::parse_error& e) {
    return InvalidArgument("{}:{}: {}", options.file, e.source().begin.line, e.description());
  }
  GYRE_RETURN_IF_ERROR(CheckKeys(ring, {"model", "cluster", "serve", "worker"}, options.file));
  const auto model = ring["model"].value<std::string>();
  const auto cluster = ring["cluster"].value<std::string>();
  if (!model || !cluster)
    return InvalidArgument("{}: model and cluster are needed, as in deploy/ring.example.toml", options.file);
  std::vector<Process> out;
  auto add = [&](const toml::table& table, const std::string& name, std::vector<std::string> arguments) -> Status {
    GYRE_ASSIGN_OR_RETURN(const auto more, Strings(table, "args", options.file + ": " + name));
    arguments.insert(arguments.end(), more.begin(), more.end());
    const std::string gyre = table["gyre"].value_or(std::string());
    const std::string ssh = table["ssh"].value_or(std::string());
    Process p;
    p.name = name;
    if (ssh.empty()) {
      p.command = {gyre.empty() ? options.self : gyre};
      p.command.insert(p.command.end(), arguments.begin(), arguments.end());
    } else {
      // A terminal at the other end, so that the remote process ends with the connection.
      std::string remote = "exec " + Quoted(gyre.empty() ? "gyre" : gyre);
      for (const std::string& a : arguments) remote += " " + Quoted(a);
      p.command = {"ssh", "-tt", "-o", "BatchMode=yes", ssh, remote};
    }
    out.push_back(std::move(p));
    return absl::OkStatus();
  };
  static const toml::table kNone;
  const toml::table* serve = ring["serve"].as_table();
  if (serve != nullptr) GYRE_RETURN_IF_ERROR(CheckKeys(*serve, {"args", "gyre", "ssh"}, options.file + ": [serve]"));
  GYRE_RETURN_IF_ERROR(add(serve != nullptr ? *serve : kNone, "serve", {"serve", *model, "--cluster", *cluster}));
  const toml::array* workers = ring["worker"].as_array();
  for (size_t i = 0; workers != nullptr && i < workers->size(); ++i) {
    const toml::table* w = (*workers)[i].as_table();
    if (w == nullptr) return InvalidArgument("{}: worker {} is no table", options.file, i + 1);
    GYRE_RETURN_IF_ERROR(CheckKeys(*w, {"name", "model", "join", "args", "gyre", "ssh"},
                                   fmt::format("{}: worker {}", options.file, i + 1)));
    const std::string name = (*w)["name"].value_or(fmt::format("worker-{}", i + 1));
    std::vector<std::string> arguments{"worker", "--join", (*w)["join"].value_or(*cluster), "--name", name};
    if (const auto own = (*w)["model"].value<std::string>()) {
      arguments.push_back("--model");
      arguments.push_back(*own);
    }
    GYRE_RETURN_IF_ERROR(add(*w, name, std::move(arguments)));
  }
  // In the environment they would speak for all.
  if (std::getenv("GYRE_THREADS") == nullptr && std::getenv("GYRE_CPUS") == nullptr) {
    std::vector<std::vector<std::string>*> local;
    for (Process& p : out) {
      if (p.command.size() > 1 && p.command[1] == "worker") local.push_back(&p.command);
    }
    ShareCores(std::move(local), UsableCores(), static_cast<size_t>(DefaultThreads()));
  }
  return out;
}

Status Spawn(Process* p) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Unavailable("no pipe: {}", std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
  // Groups of their own: a Ctrl-C reaches only this process, which then ends them in order.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  std::vector<char*> argv;
  for (std::string& word : p->command) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int error = posix_spawnp(&p->pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(ends[1]);
  p->output = ends[0];
  if (error != 0) return Unavailable("{}: {} can't be started: {}", p->name, p->command[0], std::strerror(error));
  p->running = true;
  return absl::OkStatus();
}

class Launcher {
 public:
  explicit Launcher(std::vector<Process> processes) : processes_(std::move(processes)) {
    for (const Process& p : processes_) width_ = std::max(width_, p.name.size());
  }
  ~Launcher() { StopAll(); }

  Status Run() {
    for (Process& p : processes_) GYRE_RETURN_IF_ERROR(Spawn(&p));
    while (!InterruptGuard::Interrupted()) {
      Pump(200);
      if (!processes_[0].running) return Unavailable("the coordinator ended{}", Describe(processes_[0]));
    }
    return absl::OkStatus();
  }

 private:
  static std::string Describe(const Process& p) {
    if (WIFSIGNALED(p.status)) return fmt::format(" by signal {}", WTERMSIG(p.status));
    return WEXITSTATUS(p.status) == 0 ? "" : fmt::format(" with code {}", WEXITSTATUS(p.status));
  }
  // Shows what came, and takes in who ended.
  void Pump(int timeout_ms) {
    std::vector<pollfd> fds;
    for (const Process& p : processes_) fds.push_back({.fd = p.output, .events = POLLIN, .revents = 0});
    if (poll(fds.data(), fds.size(), timeout_ms) > 0) {
      for (size_t i = 0; i < fds.size(); ++i) {
        if (fds[i].revents != 0) ReadFrom(&processes_[i]);
      }
    }
    for (Process& p : processes_) {
      if (!p.running || waitpid(p.pid, &p.status, WNOHANG) != p.pid) continue;
      p.running = false;
      if (!stopping_) fmt::print("{:<{}} | ended{}\n", p.name, width_, Describe(p));
    }
    std::fflush(stdout);
  }
  void ReadFrom(Process* p) {
    char bytes[4096];
    const ssize_t n = read(p->output, bytes, sizeof bytes);
    if (n <= 0) {
      close(p->output);
      p->output = -1;
      return;
    }
    for (ssize_t i = 0; i < n; ++i) {
      if (bytes[i] == '\n' || p->line.size() > 4000) {
        fmt::print("{:<{}} | {}\n", p->name, width_, p->line);
        p->line.clear();
      } else if (bytes[i] != '\r') {
        p->line += bytes[i];
      }
    }
  }
  bool AnyRunning() const {
    for (const Process& p : processes_) {
      if (p.running) return true;
    }
    return false;
  }
  void StopAll() {
    stopping_ = true;
    for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
      for (const Process& p : processes_) {
        if (p.running) kill(p.pid, signal);
      }
      for (const Deadline end = After(std::chrono::seconds(5)); AnyRunning() && Clock::now() < end;) Pump(50);
    }
    for (Process& p : processes_) {
      if (p.output >= 0) close(p.output);
    }
  }

  std::vector<Process> processes_;
  size_t width_ = 0;
  bool stopping_ = false;
};

}  // namespace

Status LaunchCommand(const LaunchOptions& options) {
  InterruptGuard guard(0);
  GYRE_ASSIGN_OR_RETURN(std::vector<Process> processes, ReadRing(options));
  InterruptGuard::Begin();
  return Launcher(std::move(processes)).Run();
}

}  // namespace gyre
