#include "weights/weight_stock.h"

#include <algorithm>
#include <atomic>
#include <iterator>

#include "base/log.h"
#include "base/thread.h"
#include "model/quoted.h"
#include "transport/probe.h"

namespace gyre {

std::vector<uint32_t> CheckPieces(PieceStore& store, const std::vector<uint32_t>& pieces, int threads,
                                  const std::function<bool()>& cancelled) {
  uint64_t bytes = 0;
  for (uint32_t p : pieces) bytes += store.manifest().pieces[p].at.bytes;
  std::vector<char> wrong(store.manifest().pieces.size(), 0);
  std::atomic<size_t> next{0};
  std::atomic<bool> ends{false};
  const auto work = [&](bool caller) {
    for (size_t i = next++; i < pieces.size() && !ends; i = next++) {
      if (!store.Check(pieces[i])) wrong[pieces[i]] = 1;
      if (caller && cancelled()) ends = true;
    }
  };
  // For few bytes a thread costs more than it saves.
  const size_t most = std::min<size_t>(static_cast<size_t>(std::max(threads, 1)), bytes / kPieceBytes);
  OnThreads(most, work);
  std::vector<uint32_t> out;
  if (ends) return out;
  for (uint32_t p : pieces) {
    if (wrong[p] != 0) out.push_back(p);
  }
  return out;
}

uint64_t WeightLoading::Sum(uint64_t (Fetch::*bytes)() const) const {
  uint64_t sum = 0;
  for (const auto& fetch : fetches_) sum += (*fetch.*bytes)();
  return sum;
}

Status WeightLoading::FetchPieces(const std::vector<uint32_t>& pieces) {
  if (!pieces.empty()) GYRE_RETURN_IF_ERROR(cache_->MakeRoom(*store_, pieces, keep_));
  fetches_.push_back(std::make_unique<Fetch>(store_, pieces, sources_, options_));
  return absl::OkStatus();
}

Status WeightLoading::WaitFor(const std::vector<uint32_t>& pieces, const std::function<bool()>& cancelled) {
  if (store_ == nullptr) return absl::OkStatus();
  std::vector<uint32_t> coming;
  for (uint32_t p : pieces) {
    if (std::binary_search(absent_.begin(), absent_.end(), p)) coming.push_back(p);
  }
  for (int round = 0;; ++round) {
    if (!coming.empty()) {
      Fetch& fetch = round == 0 ? *fetches_.front() : *fetches_.back();
      GYRE_RETURN_IF_ERROR(fetch.Wait(coming, cancelled));
    }
    coming = CheckPieces(*store_, pieces, threads_, cancelled);
    if (cancelled()) return absl::CancelledError("the plan was given up");
    checked_ += pieces.size();
    if (coming.empty()) return absl::OkStatus();
    if (!store_->partial()) return store_->Differs(coming[0]);
    const std::string what = store_->manifest().Describe(coming[0]);
    constexpr int kMostRounds = 3;
    if (round == kMostRounds) {
      return DataLoss(
          "{}: {} was fetched {} times and is damaged again: the disk, or what else writes there, changes it",
          store_->ModelPath(), what, kMostRounds);
    }
    Log(LogLevel::kWarn, "{}: {} of {} checked pieces are damaged, {} first; they are fetched again",
        store_->ModelPath(), coming.size(), pieces.size(), what);
    GYRE_RETURN_IF_ERROR(FetchPieces(coming));
  }
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

StatusOr<std::unique_ptr<WeightLoading>> WeightStock::Begin(const LoadingRequest& r) {
  auto loading = std::make_unique<WeightLoading>();
  loading->store_ = store();
  if (loading->store_ == nullptr) return loading;
  PieceStore& store = *loading->store_;
  loading->threads_ = r.threads;
  loading->range_ = r.range;
  loading->needed_ = PiecesOf(store.manifest(), r.range, r.first, r.last, r.tied_head, r.mtp, r.per_block);
  if (!store.partial()) return loading;
  std::vector<uint32_t> absent;  // in the order in which they are needed
  auto add = [&](const std::vector<uint32_t>& pieces) {
    std::copy_if(pieces.begin(), pieces.end(), std::back_inserter(absent),
                 [&](uint32_t p) { return store.state(p) == PieceState::kAbsent; });
  };
  for (int layer : r.layers) add(loading->needed_.layers[static_cast<size_t>(layer - r.range.begin)]);
  if (r.ends) add(loading->needed_.ends);
  auto keep_all = [&keep = loading->keep_](const NeededPieces& needed) {
    for (const auto& layer : needed.layers) keep.insert(keep.end(), layer.begin(), layer.end());
    keep.insert(keep.end(), needed.ends.begin(), needed.ends.end());
  };
  keep_all(loading->needed_);
  if (r.in_use.size() > 0) keep_all(PiecesOf(store.manifest(), r.in_use, true, true, true, r.mtp, r.per_block));
  loading->cache_ = &cache_;
  loading->sources_ = r.sources;
  loading->options_.port = port_;
  loading->options_.from = r.name;
  loading->options_.transport = r.transport;
  {
    MutexLock lock(&mutex_);
    loading->options_.key = key_;
  }
  GYRE_RETURN_IF_ERROR(loading->FetchPieces(absent));
  std::sort(absent.begin(), absent.end());
  loading->absent_ = std::move(absent);
  return loading;
}

}  // namespace gyre
