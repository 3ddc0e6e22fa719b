#include "weights/weight_offer.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "base/plan.h"
#include "base/thread.h"

namespace gyre {
namespace {

// Hashing runs beside serving, and needs no more speed than most disks have.
int HashThreads() { return static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 2, 1u, 4u)); }

}  // namespace

WeightOffer::WeightOffer(std::shared_ptr<const Model> model, WeightStock* stock)
    : model_(std::move(model)), key_(RandomRingKey()), stock_(*stock) {
  stock_.SetKey(key_);
}

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
  if (manifest->HeaderBytes() > kMaxHeaderBytes) {
    return Unimplemented(
        "{}: opening it takes {:.1f} GiB of it, too much for workers without the file; convert it to GGUF",
        model_->path(), static_cast<double>(manifest->HeaderBytes()) / (1u << 30));
  }
  made->bytes = EncodeManifest(*manifest);
  made->manifest_bytes = made->bytes.size();
  for (const Piece& p : manifest->pieces) {
    if (p.tensor != kHeaderPiece) continue;
    const auto part = bytes.bytes[p.at.file].subspan(p.at.offset, p.at.bytes);
    made->bytes.insert(made->bytes.end(), part.begin(), part.end());
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
  running_ = false;
  made_ = std::move(made);
}

StatusOr<WeightsPart> WeightOffer::Part(uint64_t offset) {
  std::shared_ptr<const Made> made;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return Unavailable("the coordinator stops");
    if (!made_ && !running_) {
      if (thread_.joinable()) thread_.join();  // it has ended
      GYRE_ASSIGN_OR_RETURN(thread_, StartThread("model's hashes", [this] { Run(); }));
      running_ = true;
    }
    if (!made_) return WeightsPart{.hashed = hashed_, .to_hash = to_hash_};
    GYRE_ASSIGN_OR_RETURN(made, *made_);
  }
  WeightsPart part{.hashed = to_hash_,
                   .to_hash = to_hash_,
                   .root = made->store->manifest().root,
                   .manifest_bytes = made->manifest_bytes,
                   .header_bytes = made->bytes.size() - made->manifest_bytes,
                   .data = {}};
  if (offset > made->bytes.size()) return OutOfRange("offset {} of {}", offset, made->bytes.size());
  const auto from = std::span(made->bytes).subspan(offset);
  const auto data = from.first(std::min<size_t>(from.size(), kWeightsPartBytes));
  part.data.assign(data.begin(), data.end());
  return part;
}

}  // namespace gyre
