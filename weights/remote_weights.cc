#include "weights/remote_weights.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/log.h"

namespace gyre {
namespace {

using Waiting = std::function<bool(uint64_t done, uint64_t all, bool hashing)>;

using std::chrono::milliseconds;

constexpr milliseconds kTick(100);

Status GivenUp() { return absl::CancelledError("it was given up"); }

}  // namespace

StatusOr<RemoteManifest> FetchManifest(const AskForPart& ask, const WeightCache* cache, bool with_header,
                                       const Waiting& waiting) {
  RemoteManifest out;
  std::vector<std::byte> bytes;
  std::optional<WeightsPart> first;
  uint64_t end = 0;  // of what is wanted
  milliseconds pause(10);
  for (;;) {
    GYRE_ASSIGN_OR_RETURN(WeightsPart part, ask(bytes.size()));
    if (part.hashed < part.to_hash) {
      if (first) return DataLoss("the coordinator's manifest is gone");
      for (milliseconds slept(0); slept < pause; slept += kTick) {
        if (waiting(part.hashed, part.to_hash, true)) return GivenUp();
        std::this_thread::sleep_for(std::min(pause, kTick));
      }
      pause = std::min(2 * pause, 3 * kTick);
      continue;
    }
    if (!first) {
      if (part.manifest_bytes > kMaxManifest || part.header_bytes > kMaxHeaderBytes) {
        return DataLoss("a manifest of {} bytes and a header of {}", part.manifest_bytes, part.header_bytes);
      }
      end = part.manifest_bytes + (with_header ? part.header_bytes : 0);
      // The manifest may be known from an earlier time.
      if (std::optional<Manifest> known = cache == nullptr ? std::nullopt : cache->Find(part.root)) {
        out.manifest = std::make_shared<const Manifest>(*std::move(known));
        return out;
      }
    } else if (part.root != first->root || part.manifest_bytes != first->manifest_bytes ||
               part.header_bytes != first->header_bytes) {
      return DataLoss("the coordinator's model changed meanwhile");
    }
    if (part.data.empty() && bytes.size() < end) return DataLoss("a part without bytes came");
    bytes.insert(bytes.end(), part.data.begin(), part.data.end());
    if (!first) first = std::move(part);
    if (bytes.size() >= end) break;
    if (waiting(bytes.size(), end, false)) return GivenUp();
  }
  if (bytes.size() < first->manifest_bytes) return DataLoss("a manifest that is cut");
  GYRE_ASSIGN_OR_RETURN(Manifest manifest, DecodeManifest(std::span(bytes).first(first->manifest_bytes)));
  if (manifest.root != first->root) return DataLoss("a manifest with another root than was told");
  out.manifest = std::make_shared<const Manifest>(std::move(manifest));
  if (with_header) {
    bytes.resize(end);
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(first->manifest_bytes));
    out.header = std::move(bytes);
  }
  return out;
}

StatusOr<std::shared_ptr<PieceStore>> OpenRemote(const AskForPart& ask, const WeightCache& cache,
                                                 const Waiting& waiting) {
  GYRE_ASSIGN_OR_RETURN(RemoteManifest remote, FetchManifest(ask, &cache, true, waiting));
  StatusOr<std::shared_ptr<PieceStore>> opened = cache.Open(remote.manifest, remote.header);
  const auto fetch_header = [&]() -> Status {
    GYRE_ASSIGN_OR_RETURN(RemoteManifest again, FetchManifest(ask, nullptr, true, waiting));
    if (again.manifest->root != remote.manifest->root) return DataLoss("the coordinator's model changed meanwhile");
    remote = std::move(again);
    return absl::OkStatus();
  };
  if (absl::IsDataLoss(opened.status()) && remote.header.empty()) {
    GYRE_RETURN_IF_ERROR(fetch_header());
    opened = cache.Open(remote.manifest, remote.header);
  }
  GYRE_RETURN_IF_ERROR(opened.status());
  PieceStore& store = **opened;
  const std::vector<uint32_t> header = HeaderPieces(store.manifest());
  const std::vector<uint32_t> wrong = CheckPieces(store, header, 1, [] { return false; });
  if (wrong.empty()) return opened;
  Log(LogLevel::kWarn, "{}: {} is damaged and is fetched again", store.ModelPath(),
      store.manifest().Describe(wrong[0]));
  if (remote.header.empty()) GYRE_RETURN_IF_ERROR(fetch_header());
  std::span<const std::byte> left(remote.header);
  for (uint32_t i : header) {
    const uint64_t bytes = store.manifest().pieces[i].at.bytes;
    if (bytes > left.size()) return DataLoss("a header of {} bytes is cut", remote.header.size());
    GYRE_RETURN_IF_ERROR(store.Put(i, left.first(bytes)));
    left = left.subspan(bytes);
  }
  return opened;
}

}  // namespace gyre
