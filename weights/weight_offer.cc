#include "weights/weight_offer.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "base/log.h"

namespace gyre {
namespace {

// Beside serving, and no faster than most disks.
int HashThreads() { return static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 2, 1u, 4u)); }

}  // namespace

WeightOffer::WeightOffer(std::shared_ptr<const Model> model, WeightCache cache, RingPort* port)
    : model_(std::move(model)), stock_(std::move(cache), port) {}

WeightOffer::~WeightOffer() {
  stopping_ = true;
  std::thread thread;
  {
    MutexLock lock(&mutex_);
    thread.swap(thread_);
  }
  if (thread.joinable()) thread.join();
}

StatusOr<std::shared_ptr<const WeightOffer::Made>> WeightOffer::Make() {
  GYRE_ASSIGN_OR_RETURN(ModelBytes bytes, BytesOf(model_));
  auto made = std::make_shared<Made>();
  std::optional<Manifest> manifest = stock_.cache().FindManifest(bytes);
  if (!manifest) {
    GYRE_ASSIGN_OR_RETURN(manifest, LayoutOf(*model_, bytes));
    const Deadline began = Clock::now();
    GYRE_RETURN_IF_ERROR(HashPieces(
        bytes, HashThreads(),
        [this](uint64_t done, uint64_t total) {
          to_hash_ = total;
          hashed_ = std::min(done, total - 1);
          return stopping_.load();
        },
        &*manifest));
    Log(LogLevel::kInfo, "{}: hashed {:.2f} GiB in {:.1f} s, for workers without the file", model_->path(),
        static_cast<double>(to_hash_) / (1u << 30), std::chrono::duration<double>(Clock::now() - began).count());
    if (const Status kept = stock_.cache().KeepManifest(bytes, *manifest); !kept.ok()) {
      Log(LogLevel::kWarn, "the hashes of {} are not kept and will be computed again: {}", model_->path(),
          Message(kept));
    }
  }
  made->manifest = EncodeManifest(*manifest);
  for (uint32_t i = 0; i < manifest->pieces.size(); ++i) {
    if (manifest->pieces[i].tensor == kHeaderPiece) made->header.push_back(i);
  }
  made->header_bytes = manifest->HeaderBytes();
  if (made->header_bytes > kMaxHeaderBytes) {
    return Unimplemented(
        "{}: opening it takes {:.1f} GiB of it, too much for workers without the file; convert it to GGUF",
        model_->path(), static_cast<double>(made->header_bytes) / (1u << 30));
  }
  GYRE_ASSIGN_OR_RETURN(made->store, stock_.cache().OverFiles(std::make_shared<const Manifest>(*std::move(manifest)),
                                                              std::move(bytes), true));
  return std::shared_ptr<const Made>(std::move(made));
}

void WeightOffer::Run() {
  StatusOr<std::shared_ptr<const Made>> made = Unavailable("no memory is left");
  try {
    made = Make();
  } catch (const std::exception& e) {
    made = ResourceExhausted("the hashes of {}: {}", model_->path(), e.what());
  }
  if (made.ok()) {
    stock_.SetStore((*made)->store);
  } else if (!stopping_) {
    Log(LogLevel::kWarn, "workers without the file can't join: {}", Message(made.status()));
  }
  MutexLock lock(&mutex_);
  made_ = std::move(made);
}

StatusOr<WeightsPart> WeightOffer::Part(uint64_t offset) {
  std::shared_ptr<const Made> made;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return Unavailable("the coordinator stops");
    if (!made_) {
      if (!thread_.joinable()) {
        try {
          thread_ = std::thread([this] { Run(); });
        } catch (const std::system_error& e) {
          return ResourceExhausted("no thread for the model's hashes: {}", e.what());
        }
      }
      return WeightsPart{.hashed = hashed_, .to_hash = to_hash_};
    }
    GYRE_ASSIGN_OR_RETURN(made, *made_);
  }
  const PieceStore& store = *made->store;
  WeightsPart part{.hashed = to_hash_,
                   .to_hash = to_hash_,
                   .root = store.manifest().root,
                   .manifest_bytes = made->manifest.size(),
                   .header_bytes = made->header_bytes,
                   .data = {}};
  const uint64_t all = part.manifest_bytes + part.header_bytes;
  if (offset > all) return OutOfRange("offset {} of {}", offset, all);
  uint64_t left = std::min(all - offset, kWeightsPartBytes);
  auto add = [&](std::span<const std::byte> bytes, uint64_t begin) {
    if (left == 0 || offset >= begin + bytes.size() || offset < begin) return;
    const std::span<const std::byte> take =
        bytes.subspan(offset - begin, std::min(left, begin + bytes.size() - offset));
    part.data.insert(part.data.end(), take.begin(), take.end());
    offset += take.size();
    left -= take.size();
  };
  add(made->manifest, 0);
  uint64_t begin = part.manifest_bytes;
  for (uint32_t piece : made->header) {
    add(store.bytes(piece), begin);
    begin += store.manifest().pieces[piece].at.bytes;
    if (left == 0) break;
  }
  return part;
}

}  // namespace gyre
