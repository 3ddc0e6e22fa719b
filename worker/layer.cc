#include "worker/layer.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "model/mapped_file.h"

namespace gyre {
namespace {

std::atomic<size_t> live_pools{0};

// The widths of a layer's keys and values; 0 heads where it has none.
KvView WidthsOf(const LayerSpec& spec) {
  KvView v;
  if (const AttentionSpec* a = spec.attention()) {
    v.kv_heads = a->kv_heads;
    v.head_dim = a->head_dim;
  } else if (const auto* latent = std::get_if<LatentAttentionSpec>(&spec.mixer)) {
    v.kv_heads = 1;
    v.head_dim = latent->kv_rank + latent->rope.dims;
    v.value_dim = latent->kv_rank;
    v.values_in_keys = true;
  }
  return v;
}

}  // namespace

StatusOr<std::unique_ptr<PagePool>> PagePool::For(const LayerSpec& spec, int dim, const CacheSize& size) {
  if (const size_t floats = ModelSpec::StateOf(spec, dim).floats(); floats > 0)
    return MakeSlots(floats, size.num_slots);
  if (ModelSpec::KvElems(spec) == 0) return std::unique_ptr<PagePool>();
  if (size.PagesOf(spec) == 0)
    return InvalidArgument("a layer with a window of {} needs blocks, got none", spec.attention()->window);
  return Make(spec, size.PagesOf(spec), size.block_size, size.type);
}

StatusOr<std::unique_ptr<PagePool>> PagePool::Make(const LayerSpec& spec, uint32_t num_blocks, int block_size,
                                                   KvType type) {
  GYRE_RETURN_IF_ERROR(CheckKvType(type, spec));
  std::unique_ptr<PagePool> pool(new PagePool);
  KvView& v = pool->view_;
  v = WidthsOf(spec);
  v.type = type;
  v.block_size = block_size;
  GYRE_RETURN_IF_ERROR(Annotate(pool->Map(num_blocks, v.PageBytes(), v.ValuePageBytes()),
                                fmt::format("KV blocks of {} positions", block_size)));
  v.k = static_cast<std::byte*>(pool->memory_);
  if (!v.values_in_keys) v.v = v.k + num_blocks * pool->page_k_;
  return pool;
}

StatusOr<std::unique_ptr<PagePool>> PagePool::MakeSlots(size_t floats, uint32_t num_slots) {
  if (num_slots == 0) return InvalidArgument("a model with recurrent state needs slots for it, got none");
  std::unique_ptr<PagePool> pool(new PagePool);
  pool->floats_ = floats;
  const size_t bytes = (kHeaderBytes + floats * sizeof(float) + 63) / 64 * 64;
  GYRE_RETURN_IF_ERROR(Annotate(pool->Map(num_slots, bytes, 0), "slots of recurrent state"));
  pool->view_.k = static_cast<std::byte*>(pool->memory_);
  return pool;
}

Status PagePool::Map(uint32_t pages, size_t page_k, size_t page_v) {
  if (__builtin_mul_overflow(page_k + page_v, size_t{pages}, &bytes_)) {
    return ResourceExhausted("{} of {} bytes are too many", pages, page_k + page_v);
  }
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return ResourceExhausted("no memory for {}, {} MiB a layer: {}", pages, bytes_ >> 20, std::strerror(errno));
  }
  // Huge pages save walks of the page table where a context is long; a small pool would only waste memory with them.
  constexpr size_t kLarge = size_t{16} << 20;
  if (bytes_ >= kLarge) madvise(memory, bytes_, MADV_HUGEPAGE);
  memory_ = memory;
  ++live_pools;
  num_blocks_ = pages;
  page_k_ = page_k;
  page_v_ = page_v;
  written_.resize(pages);
  return absl::OkStatus();
}

bool PagePool::Fits(const LayerSpec& spec, const CacheSize& size) const {
  if (has_slots()) return num_blocks_ == size.num_slots;
  return num_blocks_ == size.PagesOf(spec) && view_.block_size == size.block_size && view_.type == size.type;
}

SlotHeader PagePool::Header(BlockId slot) const {
  SlotHeader header;
  std::memcpy(&header, view_.k + slot * page_k_, sizeof header);
  return header;
}
void PagePool::SetHeader(BlockId slot, const SlotHeader& header) {
  static_assert(sizeof header <= kHeaderBytes);
  std::memcpy(view_.k + slot * page_k_, &header, sizeof header);
}
float* PagePool::State(BlockId slot) const { return reinterpret_cast<float*>(view_.k + slot * page_k_ + kHeaderBytes); }
void PagePool::Clear(BlockId slot) { std::fill_n(State(slot), floats_, 0.0f); }
void PagePool::CopyState(BlockId from, BlockId to) { std::memcpy(State(to), State(from), floats_ * sizeof(float)); }

PagePool::~PagePool() {
  if (memory_ == nullptr) return;
  munmap(memory_, bytes_);
  --live_pools;
}

size_t PagePool::Live() { return live_pools; }

void PagePool::Read(BlockId page, std::byte* out) const {
  std::memcpy(out, view_.k + page * page_k_, page_k_);
  if (page_v_ > 0) std::memcpy(out + page_k_, view_.v + page * page_v_, page_v_);
}

void PagePool::Write(BlockId page, const std::byte* from) {
  std::memcpy(view_.k + page * page_k_, from, page_k_);
  if (page_v_ > 0) std::memcpy(view_.v + page * page_v_, from + page_k_, page_v_);
}

Status CheckKvType(KvType type, const LayerSpec& spec) {
  const KvView v = WidthsOf(spec);
  if (!KvHasScales(type)) return absl::OkStatus();
  for (const size_t width : {static_cast<size_t>(v.head_dim), v.ValueDim()}) {
    if (width % kKvBlock == 0) continue;
    return InvalidArgument("a KV cache of {} needs heads of a multiple of {}, this model's have {}: use --kv-type f16",
                           KvTypeName(type), kKvBlock, width);
  }
  return absl::OkStatus();
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
  for (const auto* heads : {&key_heads, &value_heads}) {
    for (const auto& w : *heads) add(w);
  }
  return sum;
}

// What was packed is not read from its file again, and would count twice in memory.
static std::shared_ptr<const PackedWeight> PackFrom(const std::vector<std::shared_ptr<const MappedFile>>& files,
                                                    const WeightView& w, Backend& backend, const BytesDone& done) {
  std::shared_ptr<const PackedWeight> packed = backend.Pack(w, done);
  if (packed->in_place) return packed;
  for (const auto& file : files) file->Drop({w.data, w.bytes()});
  return packed;
}

StatusOr<std::shared_ptr<Layer>> LoadLayer(const Model& model, int index, Backend& backend, const BytesDone& done) {
  auto layer = std::make_shared<Layer>();
  layer->index = index;
  layer->spec = model.spec().layers[static_cast<size_t>(index)];
  GYRE_ASSIGN_OR_RETURN(layer->weights, model.Layer(index));
  const LayerWeights& w = layer->weights;
  const auto files = model.files();
  auto pack = [&](const WeightView& v) { return v.n > 0 ? PackFrom(files, v, backend, done) : nullptr; };
  auto pack_ffn = [&](const FfnWeights& f) { return PackedFfn{pack(f.gate), pack(f.up), pack(f.down)}; };
  const auto* latent = std::get_if<LatentAttentionSpec>(&layer->spec.mixer);
  const auto of_heads = [](size_t slot) { return slot == Index(Slot::kKeyHeads) || slot == Index(Slot::kValueHeads); };
  for (size_t slot = 0; slot < kSlots; ++slot) {
    if (!of_heads(slot)) layer->packed[slot] = pack(w.matrices[slot]);
  }
  for (size_t h = 0; latent != nullptr && h < Unsigned(latent->heads); ++h) {
    const uint64_t rank = Unsigned(latent->kv_rank), value = Unsigned(latent->value_dim);
    layer->key_heads.push_back(pack(RowsOf(w.matrix(Slot::kKeyHeads), h * rank, rank)));
    layer->value_heads.push_back(pack(RowsOf(w.matrix(Slot::kValueHeads), h * value, value)));
  }
  // Convolutions pass over their channels together.
  if (auto& conv = layer->weights.vectors[Index(Slot::kConv)]; !conv.empty()) {
    const size_t taps = ModelSpec::StateOf(layer->spec, model.spec().dim).taps, channels = conv.size() / taps;
    const std::vector<float> file = conv;
    for (size_t t = 0; t < taps; ++t) {
      for (size_t c = 0; c < channels; ++c) conv[t * channels + c] = file[c * taps + t];
    }
  }
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
