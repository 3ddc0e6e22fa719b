#include "weights/weight_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <unordered_set>

#include "base/describe_bytes.h"
#include "base/files.h"
#include "base/log.h"
#include "hub/file_lock.h"

namespace gyre {
namespace {

namespace fs = std::filesystem;

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

StatusOr<std::vector<std::byte>> ReadWhole(const std::string& path, uint64_t most) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return NotFound("{}: can't be read", path);
  const auto size = static_cast<uint64_t>(in.tellg());
  if (size > most) return DataLoss("{}: {} bytes, at most {} are read", path, size, most);
  std::vector<std::byte> bytes(size);
  in.seekg(0);
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
  if (!in) return DataLoss("{}: can't be read", path);
  return bytes;
}

// The key that differs between a file and an earlier one at the same path.
std::string KeyOf(const ModelBytes& files) {
  std::string key;
  for (const std::string& path : files.paths) {
    struct stat s {};
    std::error_code error;
    if (stat(path.c_str(), &s) != 0) return "";
    // It includes the change time, as a copy over the file may keep the modification time.
    key += fmt::format("{}\n{} {}.{} {}.{} {} {}\n", fs::weakly_canonical(path, error).string(), s.st_size,
                       s.st_mtim.tv_sec, s.st_mtim.tv_nsec, s.st_ctim.tv_sec, s.st_ctim.tv_nsec, s.st_ino, s.st_dev);
  }
  return Hex(Sha256(key));
}

// States are shared through mapped memory, which machines can't share.
Status CheckLocal(const std::string& folder) {
  struct statfs s {};
  if (statfs(folder.c_str(), &s) != 0) return FileError(folder, "can't read its file system", errno);
  for (const uint32_t network :
       {0x6969u /* NFS */, 0x517Bu /* SMB */, 0xFE534D42u /* SMB2 */, 0xFF534D42u /* CIFS */}) {
    if (static_cast<uint32_t>(s.f_type) == network) {
      return FailedPrecondition("{} is on a network file system: name a folder of this machine with --cache", folder);
    }
  }
  return absl::OkStatus();
}

uint64_t FreeBytes(const std::string& folder) {
  std::error_code error;
  std::string there = folder;
  while (!fs::exists(there, error) && there.size() > 1) there = fs::path(there).parent_path().string();
  struct statvfs disk {};
  return statvfs(there.c_str(), &disk) == 0 ? uint64_t{disk.f_bavail} * disk.f_frsize : 0;
}

void SyncFolder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd);
  close(fd);
}

std::string NewUserName() {
  static std::atomic<uint64_t> count{0};
  return fmt::format("{}-{}", getpid(), count++);
}

}  // namespace

WeightCache::Entry WeightCache::Look(const std::string& name) const {
  Entry entry{.name = name};
  std::error_code error;
  const std::string folder = Root() + "/" + name;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    struct stat s {};
    if (stat(it->path().c_str(), &s) != 0 || !S_ISREG(s.st_mode)) continue;
    entry.bytes += static_cast<uint64_t>(s.st_blocks) * 512;
    if (it->path().parent_path().filename() != "users") continue;
    entry.used = std::max<int64_t>(entry.used, int64_t{s.st_mtim.tv_sec} * 1'000'000'000 + s.st_mtim.tv_nsec);
    // Shared, so that two processes that look at the same time do not take each other for users.
    const auto lock = FileLock::Try(it->path().string(), FileLock::Mode::kShared);
    if (lock.ok() && *lock == nullptr) ++entry.users;
  }
  return entry;
}

std::vector<WeightCache::Entry> WeightCache::List() const {
  std::vector<Entry> entries;
  std::error_code error;
  for (fs::directory_iterator it(Root(), error), end; !error && it != end; it.increment(error)) {
    std::error_code no;
    if (it->is_directory(no) && it->path().extension().empty()) entries.push_back(Look(it->path().filename().string()));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.used < b.used; });
  return entries;
}

std::optional<Manifest> WeightCache::Find(const Hash256& root) const {
  if (folder_.empty()) return std::nullopt;
  const StatusOr<std::vector<std::byte>> bytes = ReadWhole(Root() + "/" + Hex(root) + "/manifest", kMaxManifest);
  if (!bytes.ok()) return std::nullopt;
  StatusOr<Manifest> manifest = DecodeManifest(*bytes);
  if (!manifest.ok() || manifest->root != root) return std::nullopt;
  return *std::move(manifest);
}

// Called under the lock. The entry is made beside its place first, so that an existing entry has its header.
Status WeightCache::Make(const Manifest& manifest, std::span<const std::byte> header) const {
  const std::string folder = Root() + "/" + Hex(manifest.root), fresh = folder + ".new";
  std::error_code error;
  fs::remove_all(fresh, error);
  if (header.size() > FreeBytes(Root())) {
    return ResourceExhausted("the model's header needs {} in {}, and the disk has {} free",
                             DescribeBytes(header.size()), Root(), DescribeBytes(FreeBytes(Root())));
  }
  GYRE_RETURN_IF_ERROR(MakeFolder(fresh + "/files"));
  GYRE_RETURN_IF_ERROR(MakeFolder(fresh + "/users"));
  {
    GYRE_ASSIGN_OR_RETURN(auto states, PieceStates::Open(fresh + "/have", manifest.root, manifest.pieces.size(),
                                                         PieceState::kAbsent, true));
    GYRE_ASSIGN_OR_RETURN(const auto store, PieceStore::OpenPartial(std::make_shared<Manifest>(manifest),
                                                                    fresh + "/files", std::move(states), nullptr));
    size_t at = 0;
    for (uint32_t i = 0; i < manifest.pieces.size(); ++i) {
      const Piece& p = manifest.pieces[i];
      if (p.tensor != kHeaderPiece) continue;
      if (p.at.bytes > header.size() - at) return DataLoss("a header of {} bytes is cut", header.size());
      GYRE_RETURN_IF_ERROR(store->Put(i, header.subspan(at, p.at.bytes)));
      at += p.at.bytes;
    }
  }
  GYRE_RETURN_IF_ERROR(ReplaceFile(fresh + "/files/" + kPartialModelMarker, "", 0666));
  GYRE_RETURN_IF_ERROR(ReplaceFile(fresh + "/manifest", TextOf(EncodeManifest(manifest)), 0666));
  // A renamed entry is complete, whatever happens to the machine.
  for (const ManifestFile& f : manifest.files) {
    const int fd = open((fresh + "/files/" + f.name).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
      fsync(fd);
      close(fd);
    }
  }
  SyncFolder(fresh + "/files");
  SyncFolder(fresh);
  if (rename(fresh.c_str(), folder.c_str()) != 0) return FileError(folder, "can't rename it", errno);
  SyncFolder(Root());
  return absl::OkStatus();
}

// Called under the lock. Each piece is checked before it is used, so what is missing here may be made anew.
StatusOr<std::shared_ptr<PieceStore>> WeightCache::OpenEntry(std::shared_ptr<const Manifest> manifest) const {
  const std::string folder = Root() + "/" + Hex(manifest->root), marker = folder + "/files/" + kPartialModelMarker;
  GYRE_RETURN_IF_ERROR(MakeFolder(folder + "/files"));
  GYRE_RETURN_IF_ERROR(MakeFolder(folder + "/users"));
  std::error_code error;
  if (!fs::exists(marker, error)) GYRE_RETURN_IF_ERROR(ReplaceFile(marker, "", 0666));
  if (!Find(manifest->root)) {
    GYRE_RETURN_IF_ERROR(ReplaceFile(folder + "/manifest", TextOf(EncodeManifest(*manifest)), 0666));
  }
  // These files belong to processes that are gone.
  for (fs::directory_iterator it(folder + "/users", error), end; !error && it != end; it.increment(error)) {
    const auto gone = FileLock::Try(it->path().string(), FileLock::Mode::kExclusive);
    if (gone.ok() && *gone != nullptr) unlink(it->path().c_str());
  }
  GYRE_ASSIGN_OR_RETURN(std::shared_ptr<FileLock> lock,
                        FileLock::Wait(folder + "/users/" + NewUserName(), FileLock::Mode::kExclusive));
  GYRE_ASSIGN_OR_RETURN(auto states, PieceStates::Open(folder + "/have", manifest->root, manifest->pieces.size(),
                                                       PieceState::kUnchecked, true));
  return PieceStore::OpenPartial(std::move(manifest), folder + "/files", std::move(states), std::move(lock));
}

StatusOr<std::shared_ptr<PieceStore>> WeightCache::Open(std::shared_ptr<const Manifest> manifest,
                                                        std::span<const std::byte> header) const {
  if (folder_.empty()) return FailedPrecondition("there is no folder for weights: name one with --cache");
  GYRE_RETURN_IF_ERROR(MakeFolder(Root()));
  GYRE_ASSIGN_OR_RETURN(const auto all, FileLock::Wait(Root() + "/lock", FileLock::Mode::kExclusive));
  GYRE_RETURN_IF_ERROR(CheckLocal(Root()));
  const std::string folder = Root() + "/" + Hex(manifest->root);
  struct stat s {};
  if (stat(folder.c_str(), &s) != 0) {
    if (errno != ENOENT) return FileError(folder, "can't be looked at", errno);
    GYRE_RETURN_IF_ERROR(Make(*manifest, header));
    return OpenEntry(std::move(manifest));
  }
  StatusOr<std::shared_ptr<PieceStore>> store = OpenEntry(manifest);
  const absl::StatusCode code = store.status().code();
  // With more room, or the rights to another user's entry, it may be opened as it is.
  if (store.ok() || code == absl::StatusCode::kResourceExhausted ||
      (code == absl::StatusCode::kPermissionDenied && s.st_uid != geteuid())) {
    return store;
  }
  if (header.empty()) return DataLoss("the cached weights are damaged: {}", Message(store.status()));
  const std::string away = folder + "." + NewUserName() + ".gone";
  if (rename(folder.c_str(), away.c_str()) != 0) {
    return Annotate(store.status(), "the cached weights are damaged, and they can't be replaced");
  }
  Log(LogLevel::kWarn, "the cached weights are damaged and are fetched again: {}", Message(store.status()));
  std::error_code error;
  fs::remove_all(away, error);
  GYRE_RETURN_IF_ERROR(Make(*manifest, header));
  return OpenEntry(std::move(manifest));
}

uint64_t WeightCache::Capacity(const Hash256& own) const {
  uint64_t taken = 0, others = 0;
  for (const Entry& e : List()) (e.users == 0 || e.name == Hex(own) ? taken : others) += e.bytes;
  const uint64_t room = taken + FreeBytes(folder_);
  return limit_ == 0 ? room : std::min(room, limit_ - std::min(limit_, others));
}

Status WeightCache::MakeRoom(PieceStore& store, const std::vector<uint32_t>& pieces,
                             const std::vector<uint32_t>& keep) const {
  std::vector<std::string> removed;  // under names that nobody looks for; they go when the lock is free again
  const Status status = MakeRoomLocked(store, pieces, keep, &removed);
  std::error_code error;
  for (const std::string& path : removed) fs::remove_all(path, error);
  // The space for this process was free, so only another process can have taken it meanwhile.
  return status.ok() ? store.Reserve(pieces) : status;
}

Status WeightCache::MakeRoomLocked(PieceStore& store, const std::vector<uint32_t>& pieces,
                                   const std::vector<uint32_t>& keep, std::vector<std::string>* removed) const {
  uint64_t bytes = 0;
  for (uint32_t p : pieces) bytes += store.manifest().pieces[p].at.bytes;
  GYRE_ASSIGN_OR_RETURN(const auto all, FileLock::Wait(Root() + "/lock", FileLock::Mode::kExclusive));
  const std::string own = Hex(store.manifest().root);
  const std::vector<Entry> entries = List();
  uint64_t taken = 0;
  for (const Entry& e : entries) taken += e.bytes;
  uint64_t free = FreeBytes(Root());
  auto fits = [&] { return bytes <= free && (limit_ == 0 || taken + bytes <= limit_); };
  auto gone = [&](uint64_t n) {
    taken -= std::min(taken, n);
    free += n;
  };
  for (const Entry& e : entries) {
    if (fits()) break;
    if (e.name == own || e.users > 0) continue;
    const std::string path = Root() + "/" + e.name, away = path + "." + NewUserName() + ".gone";
    if (rename(path.c_str(), away.c_str()) != 0) continue;
    removed->push_back(away);
    Log(LogLevel::kInfo, "{}: {} of fetched weights that nobody uses are removed", path, DescribeBytes(e.bytes));
    gone(e.bytes);
  }
  for (const Entry& e : entries) {
    if (fits() || e.name != own || e.users > 1) continue;
    const std::unordered_set<uint32_t> kept(keep.begin(), keep.end());
    std::vector<uint32_t> unused;
    for (uint32_t i = 0; i < store.manifest().pieces.size(); ++i) {
      if (store.manifest().pieces[i].tensor != kHeaderPiece && kept.count(i) == 0) unused.push_back(i);
    }
    gone(store.Drop(unused));
  }
  if (fits()) return absl::OkStatus();
  if (limit_ != 0 && taken + bytes > limit_) {
    return ResourceExhausted(
        "the layers need {} more in {}, and with the {} that must stay there that is over --cache-limit {}",
        DescribeBytes(bytes), Root(), DescribeBytes(taken), DescribeBytes(limit_));
  }
  return ResourceExhausted("the layers need {} more in {}, and the disk has {} free", DescribeBytes(bytes), Root(),
                           DescribeBytes(free));
}

std::optional<Manifest> WeightCache::FindManifest(const ModelBytes& files) const {
  if (folder_.empty()) return std::nullopt;
  const std::string key = KeyOf(files);
  if (key.empty()) return std::nullopt;
  const auto bytes = ReadWhole(folder_ + "/manifests/" + key, kMaxManifest + sizeof(Hash256));
  if (!bytes.ok() || bytes->size() < sizeof(Hash256)) return std::nullopt;
  // Its own hash follows the manifest, to detect a damaged disk.
  const std::span<const std::byte> all(*bytes), text = all.first(all.size() - sizeof(Hash256));
  StatusOr<Manifest> manifest = DecodeManifest(text);
  if (!manifest.ok() || std::memcmp(all.last(sizeof(Hash256)).data(), manifest->root.data(), sizeof(Hash256)) != 0) {
    return std::nullopt;
  }
  return *std::move(manifest);
}

Status WeightCache::KeepManifest(const ModelBytes& files, const Manifest& manifest) const {
  if (folder_.empty()) return FailedPrecondition("there is no cache");
  const std::string key = KeyOf(files);
  if (key.empty()) return NotFound("{} is gone", files.paths[0]);
  GYRE_RETURN_IF_ERROR(MakeFolder(folder_ + "/manifests"));
  std::vector<std::byte> bytes = EncodeManifest(manifest);
  bytes.insert(bytes.end(), manifest.root.begin(), manifest.root.end());
  return ReplaceFile(folder_ + "/manifests/" + key, TextOf(bytes), 0666);
}

StatusOr<std::shared_ptr<PieceStore>> WeightCache::OverFiles(std::shared_ptr<const Manifest> manifest, ModelBytes files,
                                                             bool trusted) const {
  const auto first = trusted ? PieceState::kThere : PieceState::kUnchecked;
  std::string path;
  if (const std::string key = trusted || folder_.empty() ? "" : KeyOf(files);
      !key.empty() && MakeFolder(folder_ + "/manifests").ok()) {
    path = fmt::format("{}/manifests/{}.{}.have", folder_, key, Hex(manifest->root).substr(0, 16));
  }
  StatusOr<std::unique_ptr<PieceStates>> states =
      PieceStates::Open(path, manifest->root, manifest->pieces.size(), first, false);
  if (!states.ok()) {  // a cache that can't be written
    states = PieceStates::Open("", manifest->root, manifest->pieces.size(), first, false);
  }
  GYRE_RETURN_IF_ERROR(states.status());
  return std::make_shared<PieceStore>(std::move(manifest), std::move(files), *std::move(states), trusted);
}

}  // namespace gyre
