#include "hub/cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/describe_bytes.h"
#include "base/files.h"
#include "base/unix_time.h"
#include "hub/download.h"

namespace gyre {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLongestManifest = uint64_t{64} << 20;

// The time of the last change in seconds since 1970; `missing` if there is no such file.
int64_t ChangedAt(const std::string& path, int64_t missing) {
  struct stat s {};
  return stat(path.c_str(), &s) == 0 ? static_cast<int64_t>(s.st_mtime) : missing;
}

std::optional<uint64_t> SizeOf(const std::string& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  return error ? std::nullopt : std::optional<uint64_t>(size);
}

std::optional<std::string> ReadWhole(const std::string& path) {
  const std::optional<uint64_t> size = SizeOf(path);
  if (!size || *size > kLongestManifest) return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return std::nullopt;
  return text.str();
}

// The name of the blob to which a file in blobs/ belongs: "NAME", "NAME.partial", "NAME.state".
std::string BlobOf(const std::string& file) { return file.substr(0, file.find('.')); }

}  // namespace

StatusOr<std::string> DefaultCacheRoot(const GetEnv& env) {
  if (const auto cache = env("XDG_CACHE_HOME"); cache && !cache->empty() && (*cache)[0] == '/') return *cache + "/gyre";
  if (const auto home = env("HOME"); home && !home->empty()) return *home + "/.cache/gyre";
  return FailedPrecondition("there is no folder for models: HOME is not set; --cache FOLDER or GYRE_CACHE names one");
}

// The folder has the name by which servers call the model.
std::string Cache::OpenPath(const CachedModel& model) const {
  const std::string name = model.repo.empty() ? "files" : model.repo.substr(model.repo.rfind('/') + 1);
  return Folder(model) + "/" + name;
}

std::optional<CachedModel> Cache::Read(const std::string& id) const {
  const std::string folder = root_ + "/models/" + id;
  const std::optional<std::string> text = ReadWhole(folder + "/model.json");
  std::optional<CachedModel> model = text ? DecodeModel(*text) : std::nullopt;
  if (!model) return std::nullopt;
  model->id = id;
  model->used = ChangedAt(folder + "/used", model->pulled);
  std::set<std::string> counted;
  for (const CachedFile& f : model->files) {
    const std::string blob = BlobName(*model, f);
    model->complete = model->complete && HasBlob(f);
    if (!counted.insert(blob).second) continue;
    model->bytes_here += SizeOf(BlobPath(blob)).value_or(SizeOf(PartialPath(BlobPath(blob))).value_or(0));
  }
  if (model->complete) model->path = OpenPath(*model) + (model->open.empty() ? "" : "/" + model->open);
  return model;
}

std::vector<CachedModel> Cache::List() const {
  std::vector<CachedModel> out;
  std::error_code error;
  for (auto it = fs::directory_iterator(root_ + "/models", error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    if (std::optional<CachedModel> model = Read(it->path().filename().string())) out.push_back(*std::move(model));
  }
  std::sort(out.begin(), out.end(), [](const CachedModel& a, const CachedModel& b) {
    return std::tie(b.pulled, a.name, a.id) < std::tie(a.pulled, b.name, b.id);
  });
  return out;
}

std::optional<CachedModel> Cache::Find(const ModelReference& name) const {
  const std::vector<CachedModel> all = List();
  const CachedModel* const found = FindModel(all, name);
  return found == nullptr ? std::nullopt : std::optional<CachedModel>(*found);
}

bool Cache::HasBlob(const CachedFile& file) const {
  return !file.sha256.empty() && SizeOf(BlobPath(file.sha256)) == file.size;
}

StatusOr<std::unique_ptr<FileLock>> Cache::Use(const CachedModel& model) const {
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<FileLock> lock, FileLock::Try(LockPath(model.id), FileLock::Mode::kShared));
  if (lock == nullptr) return Unavailable("{}: another process is removing it", model.name);
  if (!fs::exists(Folder(model) + "/model.json")) return Unavailable("{}: another process has removed it", model.name);
  utimensat(AT_FDCWD, (Folder(model) + "/used").c_str(), nullptr, 0);  // in a read-only cache the time stays
  return lock;
}

StatusOr<std::unique_ptr<FileLock>> Cache::LockBlob(const std::string& blob) const {
  return FileLock::Try(LockPath("blob-" + blob), FileLock::Mode::kExclusive);
}

Status Cache::MakeFolders() const {
  for (const char* folder : {"/blobs", "/models", "/locks"}) GYRE_RETURN_IF_ERROR(MakeFolder(root_ + folder));
  if (faccessat(AT_FDCWD, (root_ + "/models").c_str(), W_OK, AT_EACCESS) == 0) return absl::OkStatus();
  return MakeStatus(absl::StatusCode::kPermissionDenied,
                    "the cache {} can't be written; --cache FOLDER or GYRE_CACHE names another one", root_);
}

StatusOr<std::unique_ptr<FileLock>> Cache::LockAll() const {
  GYRE_RETURN_IF_ERROR(MakeFolders());
  return FileLock::Wait(root_ + "/lock", FileLock::Mode::kExclusive);
}

Status Cache::Write(const CachedModel& model) const {
  GYRE_RETURN_IF_ERROR(MakeFolder(Folder(model)));
  return ReplaceFile(Folder(model) + "/model.json", EncodeModel(model), 0644);
}

StatusOr<CachedModel> Cache::Begin(CachedModel model) {
  GYRE_ASSIGN_OR_RETURN(const auto lock, LockAll());
  // Files with the same Git name are the same in every commit.
  std::map<std::string, CachedFile> by_git, by_path;
  for (const CachedModel& other : List()) {
    for (const CachedFile& f : other.files) {
      if (f.sha256.empty()) continue;
      if (!f.git_sha1.empty()) by_git.emplace(f.git_sha1, f);
      if (other.id == model.id) by_path.emplace(f.path, f);
    }
  }
  for (CachedFile& f : model.files) {
    if (!f.sha256.empty()) continue;
    const auto same = by_git.find(f.git_sha1), here = by_path.find(f.path);
    const CachedFile* known = same != by_git.end() ? &same->second : here != by_path.end() ? &here->second : nullptr;
    if (known == nullptr || (f.size != 0 && known->size != f.size)) continue;
    f.sha256 = known->sha256;
    f.size = known->size;
  }
  model.complete = false;
  model.pulled = UnixSeconds();
  if (const std::optional<CachedModel> before = Read(model.id); before && before->complete) model.complete = true;
  GYRE_RETURN_IF_ERROR(Write(model));
  const std::string used = Folder(model) + "/used";
  const int fd = open(used.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return FileError(used, "can't write it", errno);
  close(fd);
  return model;
}

Status Cache::AddBlob(CachedModel* model, size_t file, const std::string& sha256, uint64_t size) {
  GYRE_ASSIGN_OR_RETURN(const auto lock, LockAll());
  CachedFile& f = model->files[file];
  const std::string before = BlobPath(BlobName(*model, f));
  f.sha256 = sha256;
  f.size = size;
  if (rename(before.c_str(), BlobPath(sha256).c_str()) != 0) return FileError(before, "can't rename it", errno);
  return Write(*model);
}

Status Cache::Link(const CachedModel& model, const CachedFile& file) const {
  const fs::path at = fs::path(OpenPath(model)) / file.path;
  GYRE_RETURN_IF_ERROR(MakeFolder(at.parent_path().string()));
  // The link is relative, so that the cache may be moved, or mounted elsewhere.
  const fs::path blob = fs::path(BlobPath(file.sha256)).lexically_relative(at.parent_path());
  std::error_code error;
  if (fs::read_symlink(at, error) == blob) return absl::OkStatus();
  fs::remove(at, error);
  if (symlink(blob.c_str(), at.c_str()) != 0) return FileError(at.string(), "can't link it", errno);
  return absl::OkStatus();
}

StatusOr<CachedModel> Cache::Finish(CachedModel model) {
  GYRE_ASSIGN_OR_RETURN(const auto lock, LockAll());
  for (const CachedFile& f : model.files) {
    if (!HasBlob(f)) return Unavailable("{}: {} is no longer in the cache; pull again", model.name, f.path);
    chmod(BlobPath(f.sha256).c_str(), 0444);
    GYRE_RETURN_IF_ERROR(Link(model, f));
  }
  model.complete = true;
  GYRE_RETURN_IF_ERROR(Write(model));
  Sweep();
  std::optional<CachedModel> read = Read(model.id);
  if (!read || !read->complete) return Unavailable("{}: somebody changes the cache {}", model.name, root_);
  return *std::move(read);
}

std::map<std::string, uint64_t> Cache::Blobs() const {
  std::map<std::string, uint64_t> out;
  std::error_code error;
  for (auto it = fs::directory_iterator(root_ + "/blobs", error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    out[BlobOf(it->path().filename().string())] += SizeOf(it->path().string()).value_or(0);
  }
  return out;
}

Status Cache::CheckSpace(const CachedModel& model) const {
  uint64_t needed = 0;
  for (const CachedFile& f : model.files) {
    if (HasBlob(f)) continue;
    struct stat partial {};  // of an earlier pull
    const bool begun = stat(PartialPath(BlobPath(BlobName(model, f))).c_str(), &partial) == 0;
    const uint64_t taken = begun ? static_cast<uint64_t>(partial.st_blocks) * 512 : 0;
    needed += f.size - std::min(f.size, taken);
  }
  struct statvfs disk {};
  if (statvfs(root_.c_str(), &disk) != 0) return absl::OkStatus();  // the download will tell
  const uint64_t free = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
  if (needed <= free) return absl::OkStatus();
  return ResourceExhausted(
      "{}: {} more are needed, and the disk has {} free; free some space, remove models with `gyre models rm`, or name "
      "another folder with --cache",
      root_, DescribeBytes(needed), DescribeBytes(free));
}

// Removes blobs that belong to no model: those of removed models, and of processes that ended between two steps.
void Cache::Sweep() const {
  std::set<std::string> kept;
  for (const CachedModel& model : List()) {
    for (const CachedFile& f : model.files) kept.insert(BlobName(model, f));
  }
  for (const auto& [blob, size] : Blobs()) {
    if (kept.count(blob) > 0 || !RemovePartial(BlobPath(blob)).ok()) continue;
    unlink(BlobPath(blob).c_str());
  }
}

void Cache::RemoveLocked(const CachedModel& model) const {
  std::error_code error;
  fs::remove(Folder(model) + "/model.json", error);  // first: without it the folder is no model
  fs::remove_all(Folder(model), error);
}

Status Cache::Remove(const CachedModel& model) {
  GYRE_ASSIGN_OR_RETURN(const auto lock, LockAll());
  GYRE_ASSIGN_OR_RETURN(const auto own, FileLock::Try(LockPath(model.id), FileLock::Mode::kExclusive));
  if (own == nullptr) return FailedPrecondition("{} is in use by another process; end that first", model.name);
  RemoveLocked(model);
  Sweep();
  return absl::OkStatus();
}

StatusOr<std::vector<CachedModel>> Cache::MakeRoom(const CachedModel& model, uint64_t limit) {
  GYRE_ASSIGN_OR_RETURN(const auto lock, LockAll());
  Sweep();
  std::vector<CachedModel> others = List();
  others.erase(std::remove_if(others.begin(), others.end(), [&](const auto& other) { return other.id == model.id; }),
               others.end());
  std::vector<std::unique_ptr<FileLock>> locks;
  std::vector<bool> in_use;
  for (const CachedModel& other : others) {
    GYRE_ASSIGN_OR_RETURN(std::unique_ptr<FileLock> own, FileLock::Try(LockPath(other.id), FileLock::Mode::kExclusive));
    in_use.push_back(own == nullptr);
    locks.push_back(std::move(own));
  }
  std::map<std::string, uint64_t> blobs = Blobs();
  std::vector<std::string> kept;
  for (const CachedFile& f : model.files) {
    kept.push_back(BlobName(model, f));
    blobs[kept.back()] = f.size;
  }
  const auto removed = ModelsToRemove(others, in_use, blobs, kept, limit);
  if (!removed.ok()) return Annotate(removed.status(), "--cache-limit");
  std::vector<CachedModel> out;
  for (const size_t i : *removed) {
    RemoveLocked(others[i]);
    out.push_back(others[i]);
  }
  Sweep();
  return out;
}

}  // namespace gyre
