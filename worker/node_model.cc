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
    return FailedPrecondition(
        "{} is another model file than the coordinator's {}, or has other adapters (hash {:016x}, expected {:016x})",
        path, facts.model_path, (*model)->content_hash(), facts.model_hash);
  }
  return model;
}

StatusOr<WeightsPart> NodeModel::AskForPart(v1::Cluster::Stub& stub, uint64_t offset) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::WeightsRequest request;
  request.set_offset(offset);
  v1::WeightsReply reply;
  const grpc::Status status = stub.Weights(&context, request, &reply);
  if (status.ok()) return Decode(reply);
  passing_ = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
             status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  return FromGrpcAt(status, options_.join);
}

std::function<bool(uint64_t, uint64_t, bool)> NodeModel::WhileItHashes() {
  return [this, next_word = Deadline::min()](uint64_t done, uint64_t all, bool hashing) mutable {
    if (hashing && all > 1 && Clock::now() >= next_word) {
      say_(fmt::format("the coordinator hashes its model: {:.1f} of {:.1f} GiB", static_cast<double>(done) / (1u << 30),
                       static_cast<double>(all) / (1u << 30)));
      next_word = After(std::chrono::seconds(5));
    }
    return ends_();
  };
}

StatusOr<std::shared_ptr<PieceStore>> NodeModel::OpenStore(v1::Cluster::Stub& stub, const WeightCache& cache) {
  passing_ = false;
  StatusOr<std::shared_ptr<PieceStore>> store =
      OpenRemote([&](uint64_t offset) { return AskForPart(stub, offset); }, cache, WhileItHashes());
  if (absl::IsResourceExhausted(store.status())) {
    // Others of this machine fill and empty its disk too, and a worker that ends is not there when they have.
    passing_ = true;
    if (!std::exchange(told_full_, true)) say_("waiting for room on the disk: " + Message(store.status()));
  } else {
    told_full_ = false;
  }
  return store;
}

StatusOr<std::shared_ptr<PieceStore>> NodeModel::Compare(const std::shared_ptr<const Model>& model,
                                                         v1::Cluster::Stub& stub, const WeightCache& cache) {
  passing_ = false;
  const auto remote =
      FetchManifest([&](uint64_t offset) { return AskForPart(stub, offset); }, nullptr, false, WhileItHashes());
  if (passing_ || absl::IsCancelled(remote.status())) return remote.status();
  if (!remote.ok()) {
    say_(fmt::format("{}: only a sample of it is compared with the coordinator's file: {}", model->path(),
                     Message(remote.status())));
    return std::shared_ptr<PieceStore>();
  }
  GYRE_ASSIGN_OR_RETURN(ModelBytes bytes, BytesOf(model));
  const auto same_size = [](const ManifestFile& a, const ManifestFile& b) { return a.size == b.size; };
  const std::vector<ManifestFile>& files = remote->manifest->files;
  if (!std::equal(bytes.files.begin(), bytes.files.end(), files.begin(), files.end(), same_size)) {
    return FailedPrecondition("{}: its files have other sizes than the coordinator's", model->path());
  }
  GYRE_ASSIGN_OR_RETURN(std::shared_ptr<PieceStore> store, cache.OverFiles(remote->manifest, std::move(bytes), false));
  const std::vector<uint32_t> wrong =
      CheckPieces(*store, HeaderPieces(store->manifest()), options_.threads, [this] { return ends_(); });
  if (!wrong.empty()) return store->Differs(wrong[0]);
  return store;
}

Status NodeModel::OpenFor(const ClusterFacts& facts, v1::Cluster::Stub& stub, WeightStock& stock, bool in_use) {
  const bool same = in_use && model_->content_hash() == facts.model_hash && exact_ == facts.exact;
  if (same && store_ == nullptr && !facts.weights) return absl::OkStatus();
  OpenOptions open = options_.open;
  if (open.rope_base == 0) open.rope_base = facts.rope_base;
  if (open.norm_eps == 0) open.norm_eps = facts.norm_eps;
  open.context = facts.context;
  if (open.adapters.empty()) {
    for (const std::string& path : facts.adapters) open.adapters.push_back({.name = {}, .path = path});
  }
  StatusOr<std::shared_ptr<const Model>> model = NotFound("--weights fetch: no file is looked for");
  std::shared_ptr<PieceStore> store, over_file;
  const bool may_fetch =
      options_.weights == WeightsFrom::kFetch || (options_.weights == WeightsFrom::kAuto && options_.model.empty());
  if (options_.weights != WeightsFrom::kFetch && store_ == nullptr) {
    model = same ? model_ : OpenFile(facts, open);
    if (model.ok() && facts.weights) {
      const auto compared = Compare(*model, stub, stock.cache());
      if (passing_ || absl::IsCancelled(compared.status())) return compared.status();
      if (compared.ok()) over_file = *compared;
      if (!compared.ok()) model = compared.status();
      if (!model.ok() && may_fetch) say_(Message(model.status()));
    }
    // The coordinator may have begun again with a file that differs in what the hash does not see.
    const std::shared_ptr<PieceStore> known = stock.store();
    if (same && model.ok() &&
        (over_file == nullptr || (known != nullptr && known->manifest().root == over_file->manifest().root))) {
      return absl::OkStatus();
    }
  }
  if (!model.ok() && may_fetch && facts.weights && !options_.cache.empty()) {
    GYRE_ASSIGN_OR_RETURN(store, OpenStore(stub, stock.cache()));
    if (same && store_ != nullptr && store->manifest().root == store_->manifest().root) return absl::OkStatus();
    // The hash is taken over, so everything that it covers is the coordinator's.
    open.known_hash = facts.model_hash;
    open.rope_base = facts.rope_base;
    open.norm_eps = facts.norm_eps;
    open.adapters.clear();
    for (const std::string& path : store->AdapterPaths()) open.adapters.push_back({.name = {}, .path = path});
    if (options_.open.rope_base != 0 || options_.open.norm_eps != 0) {
      say_("the weights are fetched, so --rope-base and --norm-eps are those of the coordinator");
    }
    model = OpenModel(store->ModelPath(), open);
    if (model.ok()) {
      say_(fmt::format("the coordinator's file is not here: the weights of this worker's layers are fetched into {}",
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
  stock.SetStore(store_ != nullptr ? store_ : std::move(over_file));
  exact_ = facts.exact;
  return absl::OkStatus();
}

}  // namespace gyre
