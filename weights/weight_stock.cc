#include "weights/weight_stock.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>

#include "model/quoted.h"
#include "transport/probe.h"

namespace gyre {

std::vector<uint32_t> CheckPieces(PieceStore& store, const std::vector<uint32_t>& pieces, int threads,
                                  const std::function<bool()>& cancelled) {
  std::vector<uint32_t> unchecked;
  for (uint32_t p : pieces) {
    if (store.state(p) == PieceState::kUnchecked) unchecked.push_back(p);
  }
  std::vector<char> wrong(store.manifest().pieces.size(), 0);
  std::atomic<size_t> next{0};
  std::atomic<bool> ends{false};
  auto work = [&](bool asks) {
    for (size_t i = next++; i < unchecked.size() && !ends; i = next++) {
      if (!store.Check(unchecked[i])) wrong[unchecked[i]] = 1;
      if (asks && cancelled()) ends = true;
    }
  };
  std::vector<std::thread> others;
  const size_t most = std::min<size_t>(static_cast<size_t>(std::max(threads, 1)), unchecked.size());
  try {
    for (size_t i = 1; i < most; ++i) others.emplace_back(work, false);
  } catch (const std::system_error&) {  // with fewer then
  }
  work(true);
  for (std::thread& t : others) t.join();
  std::vector<uint32_t> out;
  if (ends) return out;
  for (uint32_t p : pieces) {
    if (wrong[p] != 0 || store.state(p) == PieceState::kAbsent) out.push_back(p);
  }
  return out;
}

Status WeightLoading::WaitFor(const std::vector<uint32_t>& pieces, const std::function<bool()>& cancelled) {
  if (store_ == nullptr) return absl::OkStatus();
  if (fetch_ != nullptr) return fetch_->Wait(pieces, cancelled);
  const std::vector<uint32_t> wrong = CheckPieces(*store_, pieces, threads_, cancelled);
  if (cancelled()) return absl::CancelledError("the plan was given up");
  checked_ += pieces.size();
  if (wrong.empty()) return absl::OkStatus();
  return FailedPrecondition("{}: {} is not what the coordinator's file has: the two files differ", store_->ModelPath(),
                            store_->manifest().Describe(wrong[0]));
}

Status WeightLoading::WaitForLayer(int layer, const std::function<bool()>& cancelled) {
  if (store_ == nullptr) return absl::OkStatus();
  return WaitFor(needed_.layers[static_cast<size_t>(layer - range_.begin)], cancelled);
}

Status WeightLoading::WaitForEnds(const std::function<bool()>& cancelled) { return WaitFor(needed_.ends, cancelled); }

void WeightStock::SetKey(const RingKey& key) {
  server_.SetKey(key);
  MutexLock lock(&mutex_);
  key_ = key;
}

LinkSpeed WeightStock::Probe(const WeightSource& peer, const std::string& name, Transport transport) {
  Hello hello{
      .role = LinkRole::kWeights, .epoch = kWeightsEpoch, .from = name, .to = peer.name, .transport = transport};
  {
    MutexLock lock(&mutex_);
    hello.key = key_;
  }
  return ProbeLink(*port_, peer.address, hello);
}

void WeightStock::SetStore(std::shared_ptr<PieceStore> store) {
  server_.SetStore(store);
  MutexLock lock(&mutex_);
  store_.swap(store);
}

std::shared_ptr<PieceStore> WeightStock::store() {
  MutexLock lock(&mutex_);
  return store_;
}

StatusOr<std::unique_ptr<WeightLoading>> WeightStock::Begin(const LoadingRequest& r,
                                                            const std::function<bool()>& cancelled) {
  auto loading = std::make_unique<WeightLoading>();
  loading->store_ = store();
  if (loading->store_ == nullptr) return loading;
  PieceStore& store = *loading->store_;
  loading->threads_ = r.threads;
  loading->range_ = r.range;
  loading->needed_ = PiecesOf(store.manifest(), r.range, r.first, r.last, r.tied_head);
  if (!store.partial()) return loading;
  std::vector<uint32_t> wanted;
  auto add = [&wanted](const std::vector<uint32_t>& pieces) {
    wanted.insert(wanted.end(), pieces.begin(), pieces.end());
  };
  for (int layer : r.layers) add(loading->needed_.layers[static_cast<size_t>(layer - r.range.begin)]);
  if (r.ends) add(loading->needed_.ends);
  const std::vector<uint32_t> missing = CheckPieces(store, wanted, r.threads, cancelled);
  if (cancelled()) return absl::CancelledError("the plan was given up");
  if (!missing.empty()) {
    std::vector<uint32_t> keep = wanted;
    auto keep_all = [&keep](const NeededPieces& needed) {
      for (const auto& layer : needed.layers) keep.insert(keep.end(), layer.begin(), layer.end());
      keep.insert(keep.end(), needed.ends.begin(), needed.ends.end());
    };
    keep_all(loading->needed_);
    if (r.in_use.size() > 0) keep_all(PiecesOf(store.manifest(), r.in_use, true, true, true));
    GYRE_RETURN_IF_ERROR(cache_.MakeRoom(store, missing, keep));
  }
  FetchOptions options;
  options.port = port_;
  options.from = r.name;
  options.transport = r.transport;
  {
    MutexLock lock(&mutex_);
    options.key = key_;
  }
  loading->fetch_ = std::make_unique<Fetch>(loading->store_, missing, r.sources, std::move(options));
  return loading;
}

}  // namespace gyre
