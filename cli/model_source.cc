#include "cli/model_source.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/describe_bytes.h"
#include "base/mutex.h"
#include "cli/exit_code.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "fmt/core.h"

namespace gyre {
namespace {

// Keeps the models of this process in use: nobody removes them before it ends.
void KeepInUse(std::unique_ptr<FileLock> lock) {
  static Mutex mutex;
  static std::vector<std::unique_ptr<FileLock>> locks;
  MutexLock hold(&mutex);
  locks.push_back(std::move(lock));
}

// Reads byte by byte, as later bytes belong to the next reader of stdin. nullopt: stdin has ended, or a signal came.
std::optional<std::string> ReadAnswer() {
  std::string line;
  for (char c = 0;;) {
    if (InterruptGuard::Interrupted()) return std::nullopt;
    pollfd in{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (poll(&in, 1, 50) <= 0) continue;  // a signal does not end a read
    const ssize_t n = read(STDIN_FILENO, &c, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::nullopt;
    if (c == '\n') return line;
    line += c;
  }
}

// Enter means yes, as a user who typed the name wants the model.
bool Agrees(const std::optional<std::string>& answer) {
  return answer && (answer->empty() || *answer == "y" || *answer == "Y" || *answer == "yes" || *answer == "Yes");
}

std::string SizeOf(const PullPlan& plan) {
  return plan.size_known ? DescribeBytes(plan.missing) : "a file of unknown size";
}

void PrintNotes(const PullPlan& plan, bool quiet) {
  for (const std::string& note : plan.notes) {
    if (!quiet) fmt::print(stderr, "{}\n", note);
  }
}

Status Ask(const PullPlan& plan, const Source& source) {
  fmt::print(stderr, "{} is not on this machine. Pull {} into {}? [Y/n] ", plan.model.name, SizeOf(plan),
             source.cache.root());
  std::fflush(stderr);
  const std::optional<std::string> answer = ReadAnswer();
  if (!answer) fmt::print(stderr, "\n");
  if (InterruptGuard::Interrupted()) return InterruptGuard::Stopped();
  if (!Agrees(answer)) return FailedPrecondition("nothing was pulled");
  return absl::OkStatus();
}

// While an object lives, Ctrl-C sets the flag that a pull checks, whether its command has a guard or not.
class PullGuard {
 public:
  PullGuard() {
    if (!InterruptGuard::Alive()) own_.emplace(kExitInterrupted);
    InterruptGuard::Begin();
  }
  ~PullGuard() { InterruptGuard::End(); }
  PullGuard(const PullGuard&) = delete;
  PullGuard& operator=(const PullGuard&) = delete;

 private:
  std::optional<InterruptGuard> own_;
};

StatusOr<CachedModel> AskAndPull(const std::string& model, const ModelReference& name, Source* source) {
  const bool terminal = isatty(STDIN_FILENO) != 0 && isatty(STDERR_FILENO) != 0;
  if (!source->yes && !terminal) {
    return UsageError(
        "there is no file {} here, and no model of that name on this machine; to pull it, type: gyre pull {}\n"
        "With --yes this command pulls what is missing.",
        model, FormatModelName(name));
  }
  const PullGuard guard;
  source->pull.interrupted = &InterruptGuard::Interrupted;
  StatusOr<PullPlan> plan = PlanPull(name, source->cache, source->pull);
  if (absl::IsCancelled(plan.status())) return InterruptGuard::Stopped();
  if (!plan.ok()) return plan.status();
  PrintNotes(*plan, source->quiet);
  if (!source->yes && !plan->here) GYRE_RETURN_IF_ERROR(Ask(*plan, *source));
  plan->notes.clear();
  return PullWithBar(*plan, source);
}

}  // namespace

StatusOr<Source> OpenSource(const SourceOptions& options) {
  std::string root = options.cache;
  if (root.empty()) {
    GYRE_ASSIGN_OR_RETURN(root, DefaultCacheRoot(ProcessEnvironment()));
  }
  std::error_code error;
  if (const auto absolute = std::filesystem::absolute(root, error); !error) root = absolute.lexically_normal().string();
  Source out{.cache = Cache(root), .yes = options.yes, .quiet = options.quiet};
  StatusOr<HubOptions> hub = MakeHubOptions(options.hub, ProcessEnvironment());
  if (!hub.ok()) return AsUsage(hub.status());
  out.pull.hub = *std::move(hub);
  if (!options.cache_limit.empty()) {
    const StatusOr<uint64_t> limit = ParseSize(options.cache_limit);
    if (!limit.ok()) return AsUsage(Annotate(limit.status(), "--cache-limit"));
    out.pull.cache_limit = *limit;
  }
  return out;
}

StatusOr<ModelReference> ReadModelName(const std::string& model, const Source& source) {
  std::error_code error;
  const bool is_path = std::filesystem::exists(model, error);
  StatusOr<ModelReference> name = ParseModelName(model, is_path, source.pull.hub.endpoint);
  if (!name.ok()) return AsUsage(name.status());
  return name;
}

StatusOr<CachedModel> PullWithBar(const PullPlan& plan, Source* source) {
  PrintNotes(plan, source->quiet);
  Progress bar("pulling", source->quiet);
  PullOptions options = source->pull;
  options.interrupted = &InterruptGuard::Interrupted;
  options.on_progress = [&bar](const DownloadProgress& p) { bar.Update(p.bytes, p.total, p.bytes_per_second); };
  options.say = [&](const std::string& line) {
    bar.Finish();
    if (!source->quiet) fmt::print(stderr, "{}\n", line);
  };
  StatusOr<CachedModel> model = Pull(plan, &source->cache, options);
  bar.Finish();
  if (absl::IsCancelled(model.status())) return InterruptGuard::Stopped();
  return model;
}

StatusOr<std::string> LocateModel(const std::string& model, const SourceOptions& options) {
  std::error_code error;
  if (model.empty() || std::filesystem::exists(model, error)) return model;
  GYRE_ASSIGN_OR_RETURN(Source source, OpenSource(options));
  GYRE_ASSIGN_OR_RETURN(const ModelReference name, ReadModelName(model, source));
  if (name.kind == ModelReference::Kind::kPath) return model;
  // Another process may remove the model just before this one marks it as used.
  for (int tries = 0;; ++tries) {
    std::optional<CachedModel> found = source.cache.Find(name);
    if (!found) {
      GYRE_ASSIGN_OR_RETURN(found, AskAndPull(model, name, &source));
    }
    StatusOr<std::unique_ptr<FileLock>> use = source.cache.Use(*found);
    if (!use.ok() && tries < 3 && absl::IsUnavailable(use.status())) continue;
    GYRE_RETURN_IF_ERROR(use.status());
    KeepInUse(*std::move(use));
    return found->path;
  }
}

std::string CacheFolder(const SourceOptions& options) {
  const StatusOr<Source> source = OpenSource(options);
  return source.ok() ? source->cache.root() : "";
}

std::vector<std::string> CachedModelPaths(const SourceOptions& options) {
  std::vector<std::string> out;
  const StatusOr<Source> source = OpenSource(options);
  if (!source.ok()) return out;
  for (const CachedModel& m : source->cache.List()) {
    if (m.complete) out.push_back(m.path);
  }
  return out;
}

}  // namespace gyre
