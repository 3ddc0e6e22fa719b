// gyre pull, gyre models, gyre models rm: models by name.
#include <boost/json.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "base/describe_bytes.h"
#include "base/unix_time.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/model_source.h"
#include "cli/session.h"
#include "fmt/core.h"
#include "model/gguf.h"
#include "model/mapped_file.h"
#include "model/quantize.h"

namespace gyre {
namespace {

namespace json = boost::json;

StatusOr<ModelReference> NameToPull(const std::string& model, const Source& source) {
  GYRE_ASSIGN_OR_RETURN(ModelReference name, ReadModelName(model, source));
  if (name.kind != ModelReference::Kind::kPath) return name;
  // A file of the same name does not matter here.
  const StatusOr<ModelReference> again = ParseModelName(model, false, source.pull.hub.endpoint);
  if (again.ok() && again->kind != ModelReference::Kind::kPath) return again;
  return UsageError("'{}' is no name of a model; expected ORG/REPO, ORG/REPO:QUANT or a URL", model);
}

// The quantization of a file whose name does not say it, as of a URL: from the file's keys, else its extension.
std::string TypeOf(const CachedModel& m) {
  if (!m.type.empty() || !m.complete) return m.type;
  if (const auto file = MappedFile::Open(m.path); file.ok()) {
    const auto gguf = Gguf::Parse((*file)->bytes());
    if (gguf.ok()) {
      const auto number = gguf->Int("general.file_type", 0, INT32_MAX);
      return QuantizationName(number.value_or(std::nullopt), gguf->tensors());
    }
  }
  const std::string extension = std::filesystem::path(m.path).extension().string();
  return extension.empty() ? "" : extension.substr(1);
}

json::object ToJson(const CachedModel& m, const std::string& name) {
  json::array files;
  for (const CachedFile& f : m.files) files.push_back({{"path", f.path}, {"size", f.size}, {"sha256", f.sha256}});
  return {{"name", name},           {"type", TypeOf(m)},  {"revision", m.revision},     {"commit", m.commit},
          {"complete", m.complete}, {"bytes", m.bytes()}, {"bytes_here", m.bytes_here}, {"pulled", m.pulled},
          {"used", m.used},         {"path", m.path},     {"files", std::move(files)}};
}

}  // namespace

std::string DescribeAge(int64_t seconds) {
  const auto ago = [](int64_t n, const char* unit) { return fmt::format("{} {}{} ago", n, unit, n == 1 ? "" : "s"); };
  if (seconds < 60) return "just now";
  if (seconds < 3600) return ago(seconds / 60, "minute");
  if (seconds < 2 * 86400) return ago(seconds / 3600, "hour");
  if (seconds < 14 * 86400) return ago(seconds / 86400, "day");
  return ago(seconds / (7 * 86400), "week");
}

Status PullCommand(const PullCommandOptions& options) {
  InterruptGuard guard(kExitInterrupted);
  GYRE_ASSIGN_OR_RETURN(Source source, OpenSource(options.source));
  GYRE_ASSIGN_OR_RETURN(const ModelReference name, NameToPull(options.model, source));
  InterruptGuard::Begin();
  source.pull.interrupted = &InterruptGuard::Interrupted;
  const StatusOr<PullPlan> plan = PlanPull(name, source.cache, source.pull);
  if (absl::IsCancelled(plan.status())) return InterruptGuard::Stopped();
  GYRE_RETURN_IF_ERROR(plan.status());
  if (!options.source.quiet && !plan->here) {
    fmt::print(stderr, "{}: {}{}\n", plan->model.name,
               plan->size_known ? DescribeBytes(plan->model.bytes()) : "a file of unknown size",
               plan->size_known && plan->missing < plan->model.bytes()
                   ? fmt::format(", of which {} are here", DescribeBytes(plan->model.bytes() - plan->missing))
                   : "");
  }
  GYRE_ASSIGN_OR_RETURN(const CachedModel model, PullWithBar(*plan, &source));
  if (!options.source.quiet) {
    fmt::print(stderr, "{} is {}\n", model.name, plan->here ? "here already" : "here now");
  }
  fmt::print("{}\n", model.path);
  return absl::OkStatus();
}

Status ModelsCommand(const ModelsOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const Source source, OpenSource(options.source));
  const std::vector<CachedModel> models = source.cache.List();
  const std::vector<std::string> names = NamesToType(models);
  if (options.json) {
    json::array list;
    for (size_t i = 0; i < models.size(); ++i) list.push_back(ToJson(models[i], names[i]));
    fmt::print("{}\n", json::serialize(json::object{{"cache", source.cache.root()}, {"models", std::move(list)}}));
    return absl::OkStatus();
  }
  if (models.empty()) {
    fmt::print("no models in {}; `gyre pull ORG/REPO` gets one\n", source.cache.root());
    return absl::OkStatus();
  }
  size_t width = sizeof "NAME" - 1;
  for (const std::string& name : names) width = std::max(width, name.size());
  fmt::print("{:<{}}  {:>10}  {:<12}  {}\n", "NAME", width, "SIZE", "TYPE", "LAST USE");
  for (size_t i = 0; i < models.size(); ++i) {
    const CachedModel& m = models[i];
    const std::string type = TypeOf(m);
    fmt::print("{:<{}}  {:>10}  {:<12}  {}\n", names[i], width, DescribeBytes(m.bytes()), type.empty() ? "-" : type,
               m.complete ? DescribeAge(UnixSeconds() - m.used) : "unfinished; `gyre pull` goes on with it");
  }
  return absl::OkStatus();
}

Status ModelsRemoveCommand(const ModelsOptions& options) {
  GYRE_ASSIGN_OR_RETURN(Source source, OpenSource(options.source));
  const StatusOr<ModelReference> name = ParseModelName(options.model, false, source.pull.hub.endpoint);
  if (!name.ok()) return AsUsage(name.status());
  const std::vector<CachedModel> models = source.cache.List();
  const std::vector<std::string> names = NamesToType(models);
  std::vector<size_t> found;
  std::string list;
  for (size_t i = 0; i < models.size(); ++i) {
    if (!Matches(models[i], *name) && names[i] != options.model) continue;
    found.push_back(i);
    list += "\n  " + models[i].name + (models[i].commit.empty() ? "" : "@" + models[i].commit.substr(0, 12));
  }
  if (found.empty())
    return NotFound("{} is not in {}; `gyre models` lists what is", options.model, source.cache.root());
  if (found.size() > 1 && !options.all) {
    return UsageError("{} means several models; name one of them, or say --all:{}", options.model, list);
  }
  for (const size_t i : found) {
    GYRE_RETURN_IF_ERROR(source.cache.Remove(models[i]));
    if (!options.source.quiet) fmt::print("removed {} ({})\n", names[i], DescribeBytes(models[i].bytes_here));
  }
  return absl::OkStatus();
}

}  // namespace gyre
