#include "weights/piece_store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "base/files.h"
#include "base/log.h"
#include "base/sha256_pair.h"
#include "model/mapped_file.h"
#include "transport/local_socket.h"

namespace gyre {
namespace {

// The head of the states' file.
struct StatesHead {
  char magic[8] = {'G', 'Y', 'R', 'E', 'H', 'A', 'V', '2'};
  std::array<std::byte, 32> root{};
  char boot[16] = {};
  uint64_t pieces = 0;
};
static_assert(sizeof(StatesHead) == 64);

// From the states' first byte to the sums.
size_t SumsAt(size_t pieces) { return (pieces + 7) / 8 * 8; }
size_t StatesBytes(size_t pieces) { return SumsAt(pieces) + pieces * sizeof(PieceSum); }

struct OpenFd {
  int fd = -1;
  ~OpenFd() {
    if (fd >= 0) close(fd);
  }
};

StatesHead HeadFor(const Hash256& root, size_t pieces) {
  StatesHead head;
  head.root = root;
  head.pieces = pieces;
  const std::string boot = HostId();  // it changes with each start of the machine
  std::memcpy(head.boot, boot.data(), std::min(boot.size(), sizeof head.boot));
  return head;
}

// Makes the file if it is missing. Where it becomes longer it has holes.
Status GiveSize(const std::string& path, uint64_t size) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) return InvalidArgument("{}: it is no file", path);
  const OpenFd file{open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)};
  if (file.fd < 0) return FileError(path, "can't open it for writing", errno);
  if (fstat(file.fd, &info) != 0) return FileError(path, "can't read its size", errno);
  if (static_cast<uint64_t>(info.st_size) == size) return absl::OkStatus();
  if (info.st_size > 0) {
    Log(LogLevel::kWarn, "{}: {} bytes, expected {}: what is damaged is fetched again", path, info.st_size, size);
  }
  return ftruncate(file.fd, static_cast<off_t>(size)) == 0 ? absl::OkStatus()
                                                           : FileError(path, "can't give it its size", errno);
}

Status WriteAt(const std::string& path, int fd, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return FileError(path, "can't write", n == 0 ? ENOSPC : errno);
    offset += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<PieceStates>> PieceStates::Open(const std::string& path, const Hash256& root, size_t pieces,
                                                         PieceState first, bool per_boot) {
  std::unique_ptr<PieceStates> states(new PieceStates);
  states->pieces_ = pieces;
  if (path.empty()) {
    states->memory_.assign(StatesBytes(pieces) / 8, 0);
    states->bytes_ = reinterpret_cast<uint8_t*>(states->memory_.data());
    std::memset(states->bytes_, static_cast<int>(first), pieces);
    return states;
  }
  OpenFd file{open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)};
  if (file.fd < 0) return FileError(path, "can't open it", errno);
  struct stat info {};
  if (fstat(file.fd, &info) != 0) return FileError(path, "can't read its size", errno);
  const StatesHead head = HeadFor(root, pieces);
  StatesHead found{};
  const size_t bytes = sizeof head + StatesBytes(pieces);
  const bool whole = static_cast<size_t>(info.st_size) == bytes &&
                     pread(file.fd, &found, sizeof found, 0) == static_cast<ssize_t>(sizeof found) &&
                     std::memcmp(found.magic, head.magic, sizeof head.magic) == 0 && found.root == head.root &&
                     found.pieces == head.pieces;
  if (!whole) {
    std::vector<std::byte> fresh(bytes);
    std::memcpy(fresh.data(), &head, sizeof head);
    std::memset(fresh.data() + sizeof head, static_cast<int>(first), pieces);
    if (ftruncate(file.fd, 0) != 0) return FileError(path, "can't empty it", errno);
    GYRE_RETURN_IF_ERROR(WriteAt(path, file.fd, 0, fresh));
  }
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
  if (mapped == MAP_FAILED) return FileError(path, "can't map it", errno);
  states->mapped_ = mapped;
  states->mapped_bytes_ = bytes;
  states->bytes_ = static_cast<uint8_t*>(mapped) + sizeof head;
  // When the machine went down, the system may have lost bytes that it had not written yet.
  if (whole && per_boot && std::memcmp(found.boot, head.boot, sizeof head.boot) != 0) {
    for (uint32_t i = 0; i < pieces; ++i) {
      const uint8_t was = states->bytes_[i];
      states->Set(i, was == static_cast<uint8_t>(PieceState::kAbsent) ? PieceState::kAbsent : PieceState::kUnchecked);
    }
    std::memcpy(static_cast<char*>(mapped) + offsetof(StatesHead, boot), head.boot, sizeof head.boot);
  }
  return states;
}

PieceStates::~PieceStates() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
}

PieceState PieceStates::Get(uint32_t piece) const {
  const uint8_t state = std::atomic_ref<uint8_t>(bytes_[piece]).load(std::memory_order_acquire);
  return state == 1 ? PieceState::kThere : state == 0 ? PieceState::kAbsent : PieceState::kUnchecked;
}

void PieceStates::Set(uint32_t piece, PieceState state) {
  std::atomic_ref<uint8_t>(bytes_[piece]).store(static_cast<uint8_t>(state), std::memory_order_release);
}

uint32_t* PieceStates::SumAt(uint32_t piece) const {
  return reinterpret_cast<uint32_t*>(bytes_ + SumsAt(pieces_) + piece * sizeof(PieceSum));
}

PieceSum PieceStates::sum(uint32_t piece) const {
  PieceSum out{};
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = std::atomic_ref<uint32_t>(SumAt(piece)[i]).load(std::memory_order_relaxed);
  }
  return out;
}

// A process that ends in between leaves a piece that is hashed again.
void PieceStates::SetThere(uint32_t piece, const PieceSum& sum) {
  for (size_t i = 0; i < sum.size(); ++i) {
    std::atomic_ref<uint32_t>(SumAt(piece)[i]).store(sum[i], std::memory_order_relaxed);
  }
  Set(piece, PieceState::kThere);
}

PieceStore::PieceStore(std::shared_ptr<const Manifest> manifest, ModelBytes files, std::unique_ptr<PieceStates> states,
                       bool own)
    : manifest_(std::move(manifest)), files_(std::move(files)), states_(std::move(states)), own_(own) {}

StatusOr<std::shared_ptr<PieceStore>> PieceStore::OpenPartial(std::shared_ptr<const Manifest> manifest,
                                                              const std::string& folder,
                                                              std::unique_ptr<PieceStates> states,
                                                              std::shared_ptr<void> lock) {
  ModelBytes files{.files = manifest->files, .open = manifest->open, .paths = {}, .bytes = {}, .mapped = {}};
  for (const ManifestFile& f : manifest->files) {
    files.paths.push_back(folder + "/" + f.name);
    GYRE_RETURN_IF_ERROR(GiveSize(files.paths.back(), f.size));
    GYRE_ASSIGN_OR_RETURN(const auto mapped, MappedFile::Open(files.paths.back()));
    if (mapped->bytes().size() != f.size) {
      return DataLoss("{}: {} bytes, expected {}", files.paths.back(), mapped->bytes().size(), f.size);
    }
    files.bytes.push_back(mapped->bytes());
    files.mapped.push_back(mapped);
  }
  auto store = std::make_shared<PieceStore>(std::move(manifest), std::move(files), std::move(states));
  store->folder_ = folder;
  store->partial_ = true;
  store->lock_ = std::move(lock);
  for (const std::string& path : store->files_.paths) {
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return FileError(path, "can't open it for writing", errno);
    store->written_.push_back(fd);
  }
  return store;
}

PieceStore::~PieceStore() {
  for (int fd : written_) close(fd);
}

std::span<const std::byte> PieceStore::bytes(uint32_t piece) const {
  const Extent& at = manifest_->pieces[piece].at;
  return files_.bytes[at.file].subspan(at.offset, at.bytes);
}

void PieceStore::SetWrong(uint32_t piece) {
  states_->Set(piece, partial() ? PieceState::kAbsent : PieceState::kUnchecked);
}

bool PieceStore::CheckBytes(uint32_t piece, std::span<const std::byte> bytes) {
  const PieceSum sum = Crc32cOfQuarters(bytes);
  if (state(piece) == PieceState::kThere && sum == states_->sum(piece)) return true;
  // The sum may be what is damaged.
  if (Sha256OfHalves(bytes) == manifest_->pieces[piece].hash) {
    states_->SetThere(piece, sum);
    return true;
  }
  SetWrong(piece);
  return false;
}

bool PieceStore::Check(uint32_t piece) {
  if (state(piece) == PieceState::kAbsent) return false;
  // A file that became shorter would end the process when its mapping is read.
  const Extent& at = manifest_->pieces[piece].at;
  struct stat info {};
  if (fstat(files_.mapped[at.file]->fd(), &info) == 0 && static_cast<uint64_t>(info.st_size) >= at.offset + at.bytes) {
    return CheckBytes(piece, bytes(piece));
  }
  SetWrong(piece);
  return false;
}

Status PieceStore::Put(uint32_t piece, std::span<const std::byte> bytes) {
  if (!partial()) return Internal("a piece is to be written into {}", files_.paths[0]);
  const Piece& p = manifest_->pieces[piece];
  if (bytes.size() != p.at.bytes || Sha256OfHalves(bytes) != p.hash) {
    return DataLoss("{}: its bytes are not those of the manifest", manifest_->Describe(piece));
  }
  const int fd = written_[p.at.file];
  const std::string& path = files_.paths[p.at.file];
  const uint64_t size = manifest_->files[p.at.file].size;
  struct stat info {};
  // Somebody may have cut the file, and the mapping is read up to its end.
  if (fstat(fd, &info) == 0 && static_cast<uint64_t>(info.st_size) < size &&
      ftruncate(fd, static_cast<off_t>(size)) != 0) {
    return FileError(path, "can't give it its size", errno);
  }
  GYRE_RETURN_IF_ERROR(WriteAt(path, fd, p.at.offset, bytes));
  states_->SetThere(piece, Crc32cOfQuarters(bytes));
  return absl::OkStatus();
}

// It reads through the descriptor, not the mapping: a file that is truncated meanwhile must not end the process.
Status PieceStore::Read(uint32_t piece, std::vector<std::byte>* out) {
  {
    MutexLock lock(&mutex_);
    ++read_[piece];
  }
  const Extent& at = manifest_->pieces[piece].at;
  Status status;
  if (state(piece) == PieceState::kAbsent) status = NotFound("{} is not here", manifest_->Describe(piece));
  out->resize(at.bytes);
  const int fd = files_.mapped[at.file]->fd();
  for (uint64_t done = 0; done < at.bytes && status.ok();) {
    const ssize_t n = pread(fd, out->data() + done, at.bytes - done, static_cast<off_t>(at.offset + done));
    if (n > 0) done += static_cast<uint64_t>(n);
    if (n == 0) status = DataLoss("{}: the file became shorter", files_.paths[at.file]);
    if (n < 0 && errno != EINTR) status = FileError(files_.paths[at.file], "can't read it", errno);
  }
  const bool believed = !partial() && state(piece) == PieceState::kThere && states_->sum(piece) == PieceSum{};
  if (status.ok() && !believed && !CheckBytes(piece, *out)) {
    status = NotFound("{} is not here as it should be", manifest_->Describe(piece));
  }
  MutexLock lock(&mutex_);
  if (--read_[piece] == 0) read_.erase(piece);
  return status;
}

Status PieceStore::Reserve(const std::vector<uint32_t>& pieces) {
  for (uint32_t i : pieces) {
    const Extent& at = manifest_->pieces[i].at;
    if (state(i) != PieceState::kAbsent) continue;
    if (fallocate(written_[at.file], 0, static_cast<off_t>(at.offset), static_cast<off_t>(at.bytes)) == 0) continue;
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
      return FileError(files_.paths[at.file], "can't take the space for its layers", errno);
    }
    return absl::OkStatus();  // a file system that takes space only as it is written
  }
  return absl::OkStatus();
}

uint64_t PieceStore::Drop(const std::vector<uint32_t>& pieces) {
  uint64_t sum = 0;
  if (!partial()) return sum;
  for (uint32_t i : pieces) {
    {
      // A later reader finds the piece absent.
      MutexLock lock(&mutex_);
      if (state(i) == PieceState::kAbsent || read_.count(i) > 0) continue;
      states_->Set(i, PieceState::kAbsent);
    }
    // If the file system has no holes, the space stays allocated.
    const Extent& at = manifest_->pieces[i].at;
    if (fallocate(written_[at.file], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at.offset),
                  static_cast<off_t>(at.bytes)) == 0) {
      sum += at.bytes;
    }
  }
  return sum;
}

Status PieceStore::Differs(uint32_t piece) const {
  if (own_) {
    return FailedPrecondition("{}: {} is not what it was when the file was hashed: the file has changed", ModelPath(),
                              manifest_->Describe(piece));
  }
  return FailedPrecondition("{}: {} is not what the coordinator's file has: the two files differ", ModelPath(),
                            manifest_->Describe(piece));
}

std::vector<std::string> PieceStore::AdapterPaths() const {
  std::vector<std::string> paths;
  for (const std::string& name : manifest_->Adapters()) paths.push_back(folder_ + "/" + name);
  return paths;
}

std::string PieceStore::ModelPath() const {
  if (partial()) return manifest_->open == "." ? folder_ : folder_ + "/" + manifest_->open;
  return manifest_->open == "." ? files_.paths[0].substr(0, files_.paths[0].rfind('/')) : files_.paths[0];
}

}  // namespace gyre
