#include "worker/node_model.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "proto/channel.h"
#include "proto/convert.h"
#include "weights/remote_weights.h"

namespace gyre {

std::shared_ptr<const Model> NodeModel::FindByHash(uint64_t hash, const OpenOptions& open) const {
  for (const std::string& path : options_.other_models ? options_.other_models() : std::vector<std::string>()) {
    StatusOr<std::shared_ptr<const Model>> model = OpenModel(path, open);
    if (model.ok() && (*model)->content_hash() == hash) return *std::move(model);
  }
  return nullptr;
}

StatusOr<std::shared_ptr<const Model>> NodeModel::OpenFile(const ClusterFacts& facts, const OpenOptions& open) const {
  const std::string path = options_.model.empty() ? facts.model_path : options_.model;
  StatusOr<std::shared_ptr<const Model>> model = OpenModel(path, open);
  if (options_.model.empty() && (!model.ok() || (*model)->content_hash() != facts.model_hash)) {
    if (auto other = FindByHash(facts.model_hash, open)) model = std::move(other);
  }
  if (!model.ok()) {
    if (!options_.model.empty()) return model.status();
    return Annotate(model.status(),
                    "the coordinator's model can't be opened here; name this machine's with --model FILE, or pull it "
                    "here");
  }
  if ((*model)->content_hash() != facts.model_hash) {
    return FailedPrecondition("{} is another model file than the coordinator's {} (hash {:016x}, expected {:016x})",
                              path, facts.model_path, (*model)->content_hash(), facts.model_hash);
  }
  return model;
}

StatusOr<WeightsPart> NodeModel::AskForPart(v1::Cluster::Stub& stub, uint64_t offset, bool only_known) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::WeightsRequest request;
  request.set_offset(offset);
  request.set_only_known(only_known);
  v1::WeightsReply reply;
  const grpc::Status status = stub.Weights(&context, request, &reply);
  if (status.ok()) return Decode(reply);
  passing_ = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
             status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  return FromGrpcAt(status, options_.join);
}

StatusOr<std::shared_ptr<PieceStore>> NodeModel::OpenStore(v1::Cluster::Stub& stub, const WeightCache& cache) {
  passing_ = false;
  Deadline next_word = Deadline::min();
  StatusOr<std::shared_ptr<PieceStore>> store =
      OpenRemote([&](uint64_t offset) { return AskForPart(stub, offset, false); }, cache,
                 [&](uint64_t done, uint64_t all, bool hashing) {
                   if (hashing && all > 1 && Clock::now() >= next_word) {
                     say_(fmt::format("the coordinator hashes its model: {:.1f} of {:.1f} GiB",
                                      static_cast<double>(done) / (1u << 30), static_cast<double>(all) / (1u << 30)));
                     next_word = After(std::chrono::seconds(5));
                   }
                   return ends_();
                 });
  if (absl::IsResourceExhausted(store.status())) {
    // Others of this machine fill and empty its disk too, and a worker that ends is not there when they have.
    passing_ = true;
    if (!std::exchange(told_full_, true)) say_("waiting for room on the disk: " + Message(store.status()));
  } else {
    told_full_ = false;
  }
  return store;
}

void NodeModel::CompareLater(v1::Cluster::Stub& stub, WeightStock& stock) {
  const auto remote = FetchManifest([&](uint64_t offset) { return AskForPart(stub, offset, true); }, nullptr, false,
                                    [this](uint64_t, uint64_t, bool) { return ends_(); });
  passing_ = false;  // then there is nothing to compare with
  if (!remote.ok()) return;
  StatusOr<ModelBytes> bytes = BytesOf(model_);
  if (!bytes.ok()) return Log(LogLevel::kWarn, "{}", Message(bytes.status()));
  const bool alike = std::equal(bytes->files.begin(), bytes->files.end(), remote->manifest->files.begin(),
                                remote->manifest->files.end(),
                                [](const ManifestFile& a, const ManifestFile& b) { return a.size == b.size; });
  if (!alike) return Log(LogLevel::kWarn, "{}: its files are cut in other ways than the coordinator's", model_->path());
  StatusOr<std::shared_ptr<PieceStore>> store = stock.cache().OverFiles(remote->manifest, *std::move(bytes), false);
  if (store.ok()) stock.SetStore(*std::move(store));
}

Status NodeModel::OpenFor(const ClusterFacts& facts, v1::Cluster::Stub& stub, WeightStock& stock, bool in_use) {
  const bool same = in_use && model_->content_hash() == facts.model_hash && exact_ == facts.exact;
  if (same && store_ == nullptr) return absl::OkStatus();
  OpenOptions open = options_.open;
  if (open.rope_base == 0) open.rope_base = facts.rope_base;
  if (open.norm_eps == 0) open.norm_eps = facts.norm_eps;
  open.context = facts.context;
  StatusOr<std::shared_ptr<const Model>> model = NotFound("--weights fetch: no file is looked for");
  if (options_.weights != WeightsFrom::kFetch && store_ == nullptr) model = OpenFile(facts, open);
  std::shared_ptr<PieceStore> store;
  const bool may_fetch =
      options_.weights == WeightsFrom::kFetch || (options_.weights == WeightsFrom::kAuto && options_.model.empty());
  if (!model.ok() && may_fetch && facts.weights && !options_.cache.empty()) {
    GYRE_ASSIGN_OR_RETURN(store, OpenStore(stub, stock.cache()));
    // The coordinator may have begun again with a file that differs in what the hash does not see.
    if (same && store->manifest().root == store_->manifest().root) return absl::OkStatus();
    open.known_hash = facts.model_hash;
    model = OpenModel(store->ModelPath(), open);
    if (model.ok()) {
      say_(fmt::format("the model's file is not here: the weights of this worker's layers are fetched into {}",
                       store->ModelPath()));
    }
  } else if (!model.ok() && options_.weights == WeightsFrom::kFetch) {
    return FailedPrecondition("--weights fetch: {}", facts.weights
                                                         ? "there is no folder for them: name one with --cache"
                                                         : "this coordinator does not give weights");
  }
  GYRE_RETURN_IF_ERROR(model.status());
  before_change_();
  model_ = *std::move(model);
  store_ = store;
  stock.SetStore(std::move(store));
  exact_ = facts.exact;
  if (store_ == nullptr && facts.weights) CompareLater(stub, stock);
  return absl::OkStatus();
}

}  // namespace gyre
