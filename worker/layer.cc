#include "worker/layer.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace gyre {
namespace {

std::atomic<size_t> live_pools{0};

// The parts that the forward pass computes.
Status CheckParts(const LayerSpec& spec) {
  const char* missing = std::holds_alternative<LatentAttentionSpec>(spec.mixer)    ? "latent attention"
                        : std::holds_alternative<DeltaNetSpec>(spec.mixer)         ? "a gated delta net"
                        : std::holds_alternative<Mamba2Spec>(spec.mixer)           ? "a Mamba-2 state space"
                        : std::holds_alternative<ShortConvolutionSpec>(spec.mixer) ? "a short convolution"
                                                                                   : nullptr;
  if (missing != nullptr) return Unimplemented("it has {}, which is not computed yet", missing);
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<PagePool>> PagePool::Make(const LayerSpec& spec, uint32_t num_blocks, int block_size,
                                                   KvType type) {
  std::unique_ptr<PagePool> pool(new PagePool);
  KvView& v = pool->view_;
  v.type = type;
  v.block_size = block_size;
  v.kv_heads = spec.attention()->kv_heads;
  v.head_dim = spec.attention()->head_dim;
  GYRE_RETURN_IF_ERROR(CheckKvType(type, spec));
  size_t half = 0;
  if (__builtin_mul_overflow(v.PageBytes(), size_t{num_blocks}, &half) || half > SIZE_MAX / 2) {
    return ResourceExhausted("{} KV blocks of {} positions are too many", num_blocks, block_size);
  }
  pool->num_blocks_ = num_blocks;
  pool->bytes_ = 2 * half;
  void* memory =
      mmap(nullptr, pool->bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return ResourceExhausted("no memory for {} KV blocks of {} positions, {} MiB a layer: {}", num_blocks, block_size,
                             pool->bytes_ >> 20, std::strerror(errno));
  }
  // Huge pages save walks of the page table where a context is long; a small pool would only waste memory with them.
  constexpr size_t kLarge = size_t{16} << 20;
  if (pool->bytes_ >= kLarge) madvise(memory, pool->bytes_, MADV_HUGEPAGE);
  pool->memory_ = memory;
  ++live_pools;
  pool->written_.resize(num_blocks);
  v.k = static_cast<std::byte*>(memory);
  v.v = v.k + half;
  return pool;
}

PagePool::~PagePool() {
  if (memory_ == nullptr) return;
  munmap(memory_, bytes_);
  --live_pools;
}

size_t PagePool::Live() { return live_pools; }

void PagePool::Read(BlockId page, std::byte* out) const {
  const size_t half = page_bytes() / 2;
  std::memcpy(out, view_.k + page * half, half);
  std::memcpy(out + half, view_.v + page * half, half);
}

void PagePool::Write(BlockId page, const std::byte* from) {
  const size_t half = page_bytes() / 2;
  std::memcpy(view_.k + page * half, from, half);
  std::memcpy(view_.v + page * half, from + half, half);
}

Status CheckKvType(KvType type, const LayerSpec& spec) {
  if (spec.attention() == nullptr) return absl::OkStatus();
  const int head_dim = spec.attention()->head_dim;
  if (!KvHasScales(type) || head_dim % static_cast<int>(kKvBlock) == 0) return absl::OkStatus();
  return InvalidArgument("a KV cache of {} needs heads of a multiple of {}, this model's have {}: use --kv-type f16",
                         KvTypeName(type), kKvBlock, head_dim);
}

std::shared_ptr<Layer> Layer::Weights() const {
  auto copy = std::make_shared<Layer>(*this);
  copy->pages = nullptr;
  return copy;
}

size_t Layer::weight_bytes() const {
  size_t sum = 0;
  auto add = [&](const std::shared_ptr<const PackedWeight>& w) { sum += w == nullptr ? 0 : w->bytes; };
  auto add_ffn = [&](const PackedFfn& f) {
    for (const auto* w : {&f.gate, &f.up, &f.down}) add(*w);
  };
  for (const auto& w : packed) add(w);
  for (const PackedFfn& e : experts) add_ffn(e);
  return sum;
}

StatusOr<std::shared_ptr<Layer>> LoadLayer(const Model& model, int index, Backend& backend, const BytesDone& done) {
  auto layer = std::make_shared<Layer>();
  layer->index = index;
  layer->spec = model.spec().layers[static_cast<size_t>(index)];
  GYRE_RETURN_IF_ERROR(Annotate(CheckParts(layer->spec), fmt::format("layer {}", index)));
  GYRE_ASSIGN_OR_RETURN(layer->weights, model.Layer(index));
  const LayerWeights& w = layer->weights;
  auto pack = [&](const WeightView& v) { return v.n > 0 ? backend.Pack(v, done) : nullptr; };
  auto pack_ffn = [&](const FfnWeights& f) { return PackedFfn{pack(f.gate), pack(f.up), pack(f.down)}; };
  for (size_t slot = 0; slot < kSlots; ++slot) layer->packed[slot] = pack(w.matrices[slot]);
  for (const FfnWeights& e : w.experts) layer->experts.push_back(pack_ffn(e));
  return layer;
}

StatusOr<Ends> LoadEnds(const Model& model, bool first, bool last, Backend& backend, const BytesDone& done) {
  Ends ends;
  if (first) {
    GYRE_ASSIGN_OR_RETURN(const WeightView embedding, model.Embedding());
    ends.embedding = backend.Pack(embedding, done);
  }
  if (last) {
    GYRE_ASSIGN_OR_RETURN(HeadWeights head, model.Head());
    ends.final_norm = std::move(head.final_norm);
    ends.output = first && model.spec().tied_head ? ends.embedding : backend.Pack(head.output, done);
  }
  return ends;
}

}  // namespace gyre
