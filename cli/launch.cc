// gyre launch: starts the processes of a ring, here or over ssh, and shows the output of all in one place.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include <toml++/toml.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "cli/child_process.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/nearest.h"
#include "cli/session.h"
#include "cli/share_cores.h"
#include "cli/shell_word.h"
#include "fmt/core.h"
#include "transport/fd.h"

namespace gyre {
namespace {

constexpr auto kAnswersEnd = std::chrono::seconds(35);  // above the default of gyre serve --drain-timeout

struct Process {
  std::string name;
  std::vector<std::string> command;
  pid_t pid = -1;
  int output = -1;
  std::string line;  // of output, not yet whole
  bool running = false;
  int status = 0;
};

StatusOr<std::vector<std::string>> Strings(const toml::table& table, const char* key, const std::string& where) {
  std::vector<std::string> out;
  const toml::node* node = table.get(key);
  if (node == nullptr) return out;
  const toml::array* array = node->as_array();
  for (size_t i = 0; array != nullptr && i < array->size(); ++i) {
    if (const toml::node& element = *array->get(i); element.is_string()) out.push_back(element.as_string()->get());
  }
  if (array != nullptr && out.size() == array->size()) return out;
  return UsageError("{}:{}: {} must be a list of texts, as [\"--threads\", \"2\"]", where, node->source().begin.line,
                    key);
}

Status CheckKeys(const toml::table& table, const std::vector<std::string>& known, const std::string& where) {
  std::string all;
  for (const std::string& k : known) all += (all.empty() ? "" : ", ") + k;
  for (const auto& [key, value] : table) {
    const std::string name(key.str());
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return UsageError("{}:{}: there is no '{}' here{}; expected {}", where, key.source().begin.line, name,
                      DidYouMean(name, known), all);
  }
  return absl::OkStatus();
}

// A text that may be missing.
StatusOr<std::string> Text(const toml::table& table, const char* key, const std::string& missing,
                           const std::string& where) {
  const toml::node* node = table.get(key);
  if (node == nullptr) return missing;
  if (node->is_string()) return node->as_string()->get();
  return UsageError("{}:{}: {} must be a text", where, node->source().begin.line, key);
}

// The command of a process of the ring: `arguments`, then the settings of its table, here or over ssh.
StatusOr<Process> MakeProcess(const LaunchOptions& options, const toml::table& table, const std::string& name,
                              std::vector<std::string> arguments) {
  GYRE_ASSIGN_OR_RETURN(const auto more, Strings(table, "args", options.file));
  GYRE_ASSIGN_OR_RETURN(const std::string gyre, Text(table, "gyre", "", options.file));
  GYRE_ASSIGN_OR_RETURN(const std::string ssh, Text(table, "ssh", "", options.file));
  arguments.insert(arguments.end(), more.begin(), more.end());
  Process p;
  p.name = name;
  if (ssh.empty()) {
    p.command = {gyre.empty() ? options.self : gyre};
    p.command.insert(p.command.end(), arguments.begin(), arguments.end());
  } else {
    // ssh gets a terminal at the other end, so that the remote process ends with the connection.
    arguments.insert(arguments.begin(), gyre.empty() ? "gyre" : gyre);
    p.command = {"ssh", "-tt", "-o", "BatchMode=yes", ssh, "exec " + ShellLine(arguments)};
  }
  return p;
}

// Whether one of the arguments gives this flag.
bool Gives(const std::vector<std::string>& arguments, const std::string& flag) {
  return std::any_of(arguments.begin(), arguments.end(),
                     [&flag](const std::string& a) { return a == flag || a.rfind(flag + "=", 0) == 0; });
}

StatusOr<Process> ReadWorker(const LaunchOptions& options, const toml::table& table, size_t number,
                             const std::string& cluster, bool plain) {
  GYRE_RETURN_IF_ERROR(CheckKeys(table, {"name", "model", "join", "args", "gyre", "ssh"}, options.file));
  GYRE_ASSIGN_OR_RETURN(const std::string name, Text(table, "name", fmt::format("worker-{}", number), options.file));
  GYRE_ASSIGN_OR_RETURN(const std::string join, Text(table, "join", cluster, options.file));
  GYRE_ASSIGN_OR_RETURN(const std::string model, Text(table, "model", "", options.file));
  std::vector<std::string> arguments{"worker", "--join", join, "--name", name};
  if (!model.empty()) arguments.insert(arguments.end(), {"--model", model});
  GYRE_ASSIGN_OR_RETURN(const auto args, Strings(table, "args", options.file));
  // An identity that a token once got for this name is of no use.
  if (plain && !Gives(args, "--identity") && !Gives(args, "--token") && !Gives(args, "--insecure")) {
    arguments.push_back("--insecure=cluster");
  }
  return MakeProcess(options, table, name, std::move(arguments));
}

// Whether the coordinator is known to have no TLS: it runs on this machine, and no setting gives it an identity.
bool HasNoTls(const Process& serve) {
  if (serve.command[0] == "ssh" || Gives(serve.command, "--identity") || Gives(serve.command, "--config")) return false;
  return std::getenv("GYRE_IDENTITY") == nullptr && std::getenv("GYRE_SERVE_IDENTITY") == nullptr;
}

// Whether the command is a process of this machine that runs layers.
bool ComputesHere(const std::vector<std::string>& command) {
  if (command.size() < 2 || command[0] == "ssh") return false;
  return command[1] == "worker" || std::find(command.begin(), command.end(), "--no-local") == command.end();
}

StatusOr<std::vector<Process>> ReadRing(const LaunchOptions& options) {
  toml::table ring;
  try {
    GYRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.file));
    ring = toml::parse(text, options.file);
  } catch (const toml::parse_error& e) {
    return UsageError("{}:{}: {}", options.file, e.source().begin.line, std::string(e.description()));
  }
  GYRE_RETURN_IF_ERROR(CheckKeys(ring, {"model", "cluster", "serve", "worker"}, options.file));
  GYRE_ASSIGN_OR_RETURN(const std::string model, Text(ring, "model", "", options.file));
  GYRE_ASSIGN_OR_RETURN(const std::string cluster, Text(ring, "cluster", "", options.file));
  if (model.empty() || cluster.empty()) {
    return UsageError("{}: model and cluster are needed, as in deploy/ring.example.toml", options.file);
  }
  static const toml::table kNone;
  const toml::node* serve = ring.get("serve");
  if (serve != nullptr && !serve->is_table()) {
    return UsageError("{}:{}: serve must be a section, as [serve]", options.file, serve->source().begin.line);
  }
  const toml::table& serve_table = serve != nullptr ? *serve->as_table() : kNone;
  GYRE_RETURN_IF_ERROR(CheckKeys(serve_table, {"args", "gyre", "ssh"}, options.file));
  std::vector<Process> out(1);
  GYRE_ASSIGN_OR_RETURN(out[0], MakeProcess(options, serve_table, "serve", {"serve", model, "--cluster", cluster}));
  const bool plain = HasNoTls(out[0]);
  const toml::node* workers = ring.get("worker");
  const toml::array* list = workers != nullptr ? workers->as_array() : nullptr;
  if (workers != nullptr && (list == nullptr || !list->is_array_of_tables())) {
    return UsageError("{}:{}: each worker needs two brackets: [[worker]]", options.file, workers->source().begin.line);
  }
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    GYRE_ASSIGN_OR_RETURN(out.emplace_back(), ReadWorker(options, *list->get(i)->as_table(), i + 1, cluster, plain));
  }
  // Settings in the environment hold for all processes.
  const char* const kForAll[] = {"GYRE_THREADS", "GYRE_CPUS", "GYRE_WORKER_THREADS", "GYRE_WORKER_CPUS"};
  if (std::none_of(std::begin(kForAll), std::end(kForAll), [](const char* v) { return std::getenv(v) != nullptr; })) {
    std::vector<std::vector<std::string>*> local;
    for (Process& p : out) {
      if (ComputesHere(p.command)) local.push_back(&p.command);
    }
    ShareCores(std::move(local), UsableCores(), static_cast<size_t>(DefaultThreads()));
  }
  return out;
}

Status Spawn(Process* p) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Unavailable("no pipe: {}", std::strerror(errno));
  const Fd write_end(ends[1]);
  p->output = ends[0];
  StatusOr<pid_t> pid = StartChild(p->command, {.out = write_end.get(), .err = write_end.get()});
  if (!pid.ok()) return Annotate(pid.status(), p->name);
  p->pid = *pid;
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
  // Shows the output that came, and notes the processes that ended.
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
    // The coordinator ends first: its answers need the workers, and so nobody takes their end for a loss.
    if (processes_[0].running) kill(processes_[0].pid, SIGINT);
    const Deadline answered = After(kAnswersEnd);
    while (processes_[0].running && Clock::now() < answered && InterruptGuard::Count() < 2) Pump(50);
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
  InterruptGuard::Begin(2);
  return Launcher(std::move(processes)).Run();
}

}  // namespace gyre
