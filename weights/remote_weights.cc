#include "weights/remote_weights.h"

#include <thread>

namespace gyre {
namespace {

using Waiting = std::function<bool(uint64_t done, uint64_t all, bool hashing)>;

Status GivenUp() { return absl::CancelledError("it was given up"); }

}  // namespace

StatusOr<RemoteManifest> FetchManifest(const AskForPart& ask, const WeightCache* cache, bool with_header,
                                       const Waiting& waiting) {
  RemoteManifest out;
  std::vector<std::byte> bytes;
  std::optional<WeightsPart> first;
  uint64_t end = 0;  // of what is wanted
  for (;;) {
    GYRE_ASSIGN_OR_RETURN(WeightsPart part, ask(bytes.size()));
    if (part.hashed < part.to_hash) {
      if (first) return DataLoss("the coordinator's manifest is gone");
      for (int i = 0; i < 3; ++i) {
        if (waiting(part.hashed, part.to_hash, true)) return GivenUp();
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
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
  GYRE_ASSIGN_OR_RETURN(const RemoteManifest remote, FetchManifest(ask, &cache, true, waiting));
  GYRE_ASSIGN_OR_RETURN(std::shared_ptr<PieceStore> store, cache.Open(remote.manifest, remote.header));
  const Manifest& manifest = store->manifest();
  std::vector<uint32_t> header;
  for (uint32_t i = 0; i < manifest.pieces.size(); ++i) {
    if (manifest.pieces[i].tensor == kHeaderPiece) header.push_back(i);
  }
  if (CheckPieces(*store, header, 1, [] { return false; }).empty()) return store;
  // The machine went down before the pieces were on the disk.
  GYRE_ASSIGN_OR_RETURN(const RemoteManifest again, FetchManifest(ask, nullptr, true, waiting));
  if (again.manifest->root != manifest.root) return DataLoss("the coordinator's model changed meanwhile");
  std::span<const std::byte> left(again.header);
  for (uint32_t i : header) {
    const uint64_t bytes = manifest.pieces[i].at.bytes;
    if (bytes > left.size()) return DataLoss("a header of {} bytes is cut", again.header.size());
    GYRE_RETURN_IF_ERROR(store->Put(i, left.first(bytes)));
    left = left.subspan(bytes);
  }
  return store;
}

}  // namespace gyre
