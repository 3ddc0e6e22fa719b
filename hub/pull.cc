#include "hub/pull.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/describe_bytes.h"
#include "hub/choose_files.h"
#include "hub/quant_name.h"
#include "hub/remote_file.h"

namespace gyre {
namespace {

std::function<bool()> Asked(const PullOptions& options) {
  return options.interrupted ? options.interrupted : [] { return false; };
}

StatusOr<PullPlan> PlanRepo(const ModelReference& name, const PullOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const auto hub, HubClient::Make(options.hub));
  const std::string revision = name.revision.empty() ? "main" : name.revision;
  GYRE_ASSIGN_OR_RETURN(const RepoListing listing, hub->List(name.repo, revision, Asked(options)));
  GYRE_ASSIGN_OR_RETURN(FileChoice choice, ChooseFiles(listing, name));
  PullPlan plan{.notes = std::move(choice.notes)};
  CachedModel& model = plan.model;
  ModelReference shown{.kind = ModelReference::Kind::kRepo, .repo = name.repo, .file = name.file};
  if (!choice.open.empty()) shown.quant = choice.type;
  model.name = FormatModelName(shown);
  model.repo = name.repo;
  model.revision = revision;
  model.commit = listing.commit;
  model.type = choice.type;
  model.open = choice.open;
  for (const RepoFile& f : choice.files) {
    model.files.push_back({.path = f.path, .size = f.size, .sha256 = f.sha256, .git_sha1 = f.git_sha1});
    plan.urls.push_back(f.url);
  }
  model.id = ModelId(model, "");
  return plan;
}

// Plans a single file, or all parts of a split one.
StatusOr<PullPlan> PlanUrl(const ModelReference& name, const PullOptions& options) {
  const std::string file = FileOfUrl(name.url);
  const size_t at = name.url.find_first_of("?#");
  const std::string query = at == name.url.npos ? "" : name.url.substr(at);
  const std::string base = name.url.substr(0, name.url.size() - query.size() - file.size());
  PullPlan plan;
  plan.model = {.name = name.url, .type = QuantOf(file)};
  for (const std::string& part : PartPaths(file)) {
    CachedFile f{.path = part};
    plan.urls.push_back(base + part + query);
    const auto remote = RemoteFile::Open(plan.urls.back(), options.hub, Asked(options));
    if (!remote.ok() && !absl::IsUnimplemented(remote.status())) return remote.status();
    if (remote.ok()) f.size = (*remote)->size();
    plan.size_known = plan.size_known && remote.ok();
    plan.model.files.push_back(std::move(f));
  }
  plan.model.open = plan.model.files[0].path;
  plan.model.id = ModelId(plan.model, name.url);
  return plan;
}

// One pull, one file after the other.
class Puller {
 public:
  Puller(const PullPlan& plan, Cache* cache, const PullOptions& options)
      : plan_(plan), cache_(*cache), options_(options), total_(plan.size_known ? plan.model.bytes() : 0) {}

  StatusOr<CachedModel> Run() {
    GYRE_ASSIGN_OR_RETURN(model_, cache_.Begin(plan_.model));
    // From here on nobody removes the model.
    GYRE_ASSIGN_OR_RETURN(const auto lock, cache_.Use(model_));
    if (options_.cache_limit > 0) GYRE_RETURN_IF_ERROR(MakeRoom());
    GYRE_RETURN_IF_ERROR(cache_.CheckSpace(model_));
    for (size_t i = 0; i < model_.files.size(); ++i) {
      const Status status = File(i);
      if (!status.ok() && !absl::IsCancelled(status) && model_.files.size() > 1) {
        return Annotate(status, model_.files[i].path);
      }
      GYRE_RETURN_IF_ERROR(status);
      done_ += model_.files[i].size;
    }
    return cache_.Finish(model_);
  }

 private:
  bool Interrupted() const { return options_.interrupted && options_.interrupted(); }
  void Say(const std::string& line) const {
    if (options_.say) options_.say(line);
  }

  Status MakeRoom() {
    GYRE_ASSIGN_OR_RETURN(const std::vector<CachedModel> removed, cache_.MakeRoom(model_, options_.cache_limit));
    for (const CachedModel& m : removed) {
      Say(fmt::format("removed {} ({}), which was not used for the longest time", m.name, DescribeBytes(m.bytes_here)));
    }
    return absl::OkStatus();
  }

  // Waits while another process downloads the same file.
  StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& blob, const std::string& path) {
    for (bool said = false;; said = true) {
      GYRE_ASSIGN_OR_RETURN(std::unique_ptr<FileLock> lock, cache_.LockBlob(blob));
      if (lock != nullptr) return lock;
      if (!said) Say(fmt::format("another process downloads {}; waiting for it", path));
      if (Interrupted()) return absl::CancelledError("interrupted");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  Status File(size_t i) {
    if (cache_.HasBlob(model_.files[i])) return absl::OkStatus();
    // Another process may download it meanwhile, or record the hash, which is then the name of the bytes.
    std::string blob;
    std::unique_ptr<FileLock> lock;
    while (BlobName(model_, model_.files[i]) != blob) {
      blob = BlobName(model_, model_.files[i]);
      GYRE_ASSIGN_OR_RETURN(lock, Lock(blob, model_.files[i].path));
      GYRE_ASSIGN_OR_RETURN(model_, cache_.Begin(model_));
      if (cache_.HasBlob(model_.files[i])) return absl::OkStatus();
    }
    const CachedFile file = model_.files[i];
    DownloadRequest request{.url = plan_.urls[i],
                            .path = cache_.BlobPath(blob),
                            .size = std::nullopt,
                            .sha256 = file.sha256,
                            .git_sha1 = file.git_sha1};
    if (file.size > 0 || !model_.repo.empty()) request.size = file.size;
    DownloadOptions download = options_.download;
    download.interrupted = options_.interrupted;
    download.on_progress = [this](const DownloadProgress& p) {
      DownloadProgress all = p;
      all.bytes += done_;
      all.total = total_ > 0 ? total_ : p.total + done_;
      if (options_.on_progress) options_.on_progress(all);
    };
    GYRE_ASSIGN_OR_RETURN(const DownloadResult result, Download(request, options_.hub, download));
    if (!file.sha256.empty()) return absl::OkStatus();
    return cache_.AddBlob(&model_, i, result.sha256, result.size);
  }

  const PullPlan& plan_;
  Cache& cache_;
  const PullOptions& options_;
  const uint64_t total_;
  CachedModel model_;
  uint64_t done_ = 0;  // bytes of the files before
};

}  // namespace

StatusOr<PullPlan> PlanPull(const ModelReference& name, const Cache& cache, const PullOptions& options) {
  if (name.kind == ModelReference::Kind::kPath) return InvalidArgument("a path is not pulled");
  GYRE_ASSIGN_OR_RETURN(PullPlan plan,
                        name.kind == ModelReference::Kind::kRepo ? PlanRepo(name, options) : PlanUrl(name, options));
  const std::vector<CachedModel> models = cache.List();
  const auto same =
      std::find_if(models.begin(), models.end(), [&](const CachedModel& m) { return m.id == plan.model.id; });
  if (same != models.end() && same->complete && (!plan.size_known || same->bytes() == plan.model.bytes())) {
    plan.here = true;
    plan.model = *same;
    return plan;
  }
  for (const CachedFile& f : plan.model.files) {
    if (!cache.HasBlob(f)) plan.missing += f.size;
  }
  return plan;
}

StatusOr<CachedModel> Pull(const PullPlan& plan, Cache* cache, const PullOptions& options) {
  if (plan.here) return plan.model;
  return Puller(plan, cache, options).Run();
}

}  // namespace gyre
