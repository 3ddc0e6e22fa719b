#include "worker/layer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <random>

#include "model/layer_reader.h"
#include "model/mapped_file.h"

namespace gyre {
namespace {

std::atomic<size_t> live_pools{0};

uint64_t NextPoolNumber() {
  static std::atomic<uint64_t> next = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return next++;
}

size_t SlotBytes(size_t floats) { return (floats * sizeof(float) + 63) / 64 * 64; }

// The widths of a layer's keys and values; 0 heads where it has none.
KvView WidthsOf(const LayerSpec& spec) {
  KvView v;
  if (const AttentionSpec* a = spec.attention()) {
    v.kv_heads = a->kv_heads;
    v.head_dim = a->head_dim;
    v.value_dim = a->value_dim;
  } else if (const auto* latent = std::get_if<LatentAttentionSpec>(&spec.mixer)) {
    v.kv_heads = 1;
    v.head_dim = latent->kv_rank + latent->rope.dims;
    v.value_dim = latent->kv_rank;
    v.values_in_keys = true;
  }
  return v;
}

}  // namespace

StatusOr<std::unique_ptr<PagePool>> PagePool::For(const LayerSpec& spec, int dim, const PoolSizes& size,
                                                  Device& device) {
  if (const size_t floats = ModelSpec::StateOf(spec, dim).floats(); floats > 0)
    return MakeSlots(floats, size.UnitsOf(spec), device);
  if (ModelSpec::KvElems(spec) == 0) return std::unique_ptr<PagePool>();
  if (size.UnitsOf(spec) == 0)
    return InvalidArgument("a layer of KV group {} needs {}s, got none", spec.kv_group, KindOf(spec.kv_group).unit);
  return Make(spec, size.UnitsOf(spec), size.block_size, size.type, device);
}

size_t PagePool::PageBytesOf(const LayerSpec& spec, int dim, const PoolSizes& size) {
  if (const size_t floats = ModelSpec::StateOf(spec, dim).floats(); floats > 0) return kHeaderBytes + SlotBytes(floats);
  if (ModelSpec::KvElems(spec) == 0) return 0;
  KvView v = WidthsOf(spec);
  v.type = size.type;
  v.block_size = size.block_size;
  return v.PageBytes() + v.ValuePageBytes();
}

StatusOr<std::unique_ptr<PagePool>> PagePool::Make(const LayerSpec& spec, uint32_t num_blocks, int block_size,
                                                   KvType type, Device& device) {
  GYRE_RETURN_IF_ERROR(CheckKvType(type, spec));
  std::unique_ptr<PagePool> pool(new PagePool);
  KvView& v = pool->view_;
  v = WidthsOf(spec);
  v.type = type;
  v.block_size = block_size;
  GYRE_RETURN_IF_ERROR(Annotate(pool->Allocate(num_blocks, v.PageBytes(), v.ValuePageBytes(), device),
                                fmt::format("KV blocks of {} positions", block_size)));
  v.k = pool->memory_.data();
  if (!v.values_in_keys) v.v = v.k + num_blocks * pool->page_k_;
  return pool;
}

StatusOr<std::unique_ptr<PagePool>> PagePool::MakeSlots(size_t floats, uint32_t num_slots, Device& device) {
  if (num_slots == 0) return InvalidArgument("a model with recurrent state needs slots for it, got none");
  std::unique_ptr<PagePool> pool(new PagePool);
  pool->floats_ = floats;
  GYRE_RETURN_IF_ERROR(Annotate(pool->Allocate(num_slots, SlotBytes(floats), 0, device), "slots of recurrent state"));
  pool->view_.k = pool->memory_.data();
  pool->headers_.resize(num_slots);
  return pool;
}

Status PagePool::Allocate(uint32_t pages, size_t page_k, size_t page_v, Device& device) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(page_k + page_v, size_t{pages}, &bytes)) {
    return ResourceExhausted("{} of {} bytes are too many", pages, page_k + page_v);
  }
  try {
    memory_ = device.Allocate(bytes);
  } catch (const OutOfDeviceMemory& e) {
    return ResourceExhausted("no memory for {}, {} MiB a layer: {}", pages, bytes >> 20, e.what());
  }
  ++live_pools;
  num_blocks_ = pages;
  page_k_ = page_k;
  page_v_ = page_v;
  written_.resize(pages);
  full_.resize(pages);
  before_.assign(size_t{pages} + 1, pages);
  after_.assign(size_t{pages} + 1, pages);
  number_ = NextPoolNumber();
  return absl::OkStatus();
}

bool PagePool::Fits(const LayerSpec& spec, const PoolSizes& size) const {
  if (size.least ? num_blocks_ < size.UnitsOf(spec) : num_blocks_ != size.UnitsOf(spec)) return false;
  return has_slots() || (view_.block_size == size.block_size && view_.type == size.type);
}

void PagePool::StampFull(BlockId page, uint64_t step) {
  const BlockId end = num_blocks_;
  if (full_[page] != 0) {
    after_[before_[page]] = after_[page];
    before_[after_[page]] = before_[page];
  }
  full_[page] = step;
  if (step == 0) return;
  // Steps rise, so its place is the last one but for pages that are copied.
  BlockId at = before_[end];
  while (at != end && full_[at] > step) at = before_[at];
  before_[page] = at;
  after_[page] = after_[at];
  before_[after_[at]] = page;
  after_[at] = page;
}

std::vector<BlockId> PagePool::FullSince(uint64_t step, BlockId from) const {
  std::vector<BlockId> out;
  for (BlockId at = before_[num_blocks_]; at != num_blocks_ && full_[at] > step; at = before_[at]) {
    if (at >= from) out.push_back(at);
  }
  std::sort(out.begin(), out.end());
  return out;
}

PagePool::~PagePool() {
  if (memory_.data() != nullptr) --live_pools;
}

size_t PagePool::Live() { return live_pools; }

void PagePool::Read(BlockId page, std::byte* out, Backend& queue) const {
  static_assert(sizeof(SlotHeader) <= kHeaderBytes);
  if (has_slots()) {
    std::memset(out, 0, kHeaderBytes);
    std::memcpy(out, &headers_[page], sizeof(SlotHeader));
    out += kHeaderBytes;
  }
  queue.CopyOut(view_.k + page * page_k_, out, page_k_);
  if (page_v_ > 0) queue.CopyOut(view_.v + page * page_v_, out + page_k_, page_v_);
}

void PagePool::Write(BlockId page, const std::byte* from, Backend& queue) {
  if (has_slots()) {
    std::memcpy(&headers_[page], from, sizeof(SlotHeader));
    from += kHeaderBytes;
  }
  queue.CopyIn(from, view_.k + page * page_k_, page_k_);
  if (page_v_ > 0) queue.CopyIn(from + page_k_, view_.v + page * page_v_, page_v_);
}

Status CheckKvType(KvType type, const LayerSpec& spec) {
  const KvView v = WidthsOf(spec);
  if (!KvHasScales(type)) return absl::OkStatus();
  for (const size_t width : {static_cast<size_t>(v.head_dim), v.ValueDim()}) {
    if (width % kKvBlock == 0) continue;
    return InvalidArgument("--kv-type {}: it needs heads of a multiple of {}, this model's have {}; f16 takes any",
                           KvTypeName(type), kKvBlock, width);
  }
  return absl::OkStatus();
}

DeviceVectors DeviceVectors::Upload(std::span<const std::vector<float>> host, Backend& queue) {
  constexpr size_t kAlignment = 64 / sizeof(float);
  const auto room = [](const std::vector<float>& v) { return (v.size() + kAlignment - 1) / kAlignment * kAlignment; };
  size_t floats = 0;
  for (const auto& v : host) floats += room(v);
  const auto memory = std::make_shared<DeviceMemory>(queue.device().Allocate(floats * sizeof(float)));
  DeviceVectors out;
  auto* at = reinterpret_cast<float*>(memory->data());
  for (const auto& v : host) {
    out.places_.push_back(v.empty() ? nullptr : at);
    queue.CopyIn(v.data(), at, v.size() * sizeof(float));
    at += room(v);
  }
  out.memory_ = memory;
  return out;
}

std::shared_ptr<Layer> Layer::Weights() const {
  auto copy = std::make_shared<Layer>(*this);
  copy->pages = nullptr;
  return copy;
}

const PackedLowRank* Layer::FindAdapter(uint32_t adapter, Slot slot) const {
  if (adapter == 0 || adapter > adapters.size()) return nullptr;
  for (const PackedLowRank& p : adapters[adapter - 1]) {
    if (p.slot == slot) return &p;
  }
  return nullptr;
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
  for (const auto& adapter : adapters) {
    for (const PackedLowRank& p : adapter) add(p.a), add(p.b);
  }
  return sum;
}

// Packed weights are not read from their file again, and would count twice in memory.
static std::shared_ptr<const PackedWeight> PackFrom(const std::vector<std::shared_ptr<const MappedFile>>& files,
                                                    const WeightView& w, Backend& queue, const BytesDone& done) {
  std::shared_ptr<const PackedWeight> packed = queue.Pack(w, done);
  if (packed->in_place) return packed;
  for (const auto& file : files) file->Drop({w.data, w.bytes()});
  return packed;
}

StatusOr<std::shared_ptr<Layer>> LoadLayer(const Model& model, int index, Backend& queue, const BytesDone& done,
                                           bool exact) {
  auto layer = std::make_shared<Layer>();
  layer->index = index;
  layer->spec = model.spec().LayerOf(index);
  GYRE_ASSIGN_OR_RETURN(layer->weights, model.Layer(index));
  const LayerWeights& w = layer->weights;
  // The system reads the whole layer while its first matrices are packed.
  ForEachMatrix(w, [](const WeightView& v) { HintRead({v.data, v.bytes()}, ReadHint::kSoon); });
  auto files = model.files();
  for (const auto& adapter : model.adapters())
    files.insert(files.end(), adapter->files().begin(), adapter->files().end());
  bool in_place = false;
  auto pack = [&](const WeightView& v) {
    auto packed = v.n > 0 ? PackFrom(files, v, queue, done) : nullptr;
    in_place = in_place || (packed != nullptr && packed->in_place);
    return packed;
  };
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
  const bool time = std::holds_alternative<TimeMixSpec>(layer->spec.mixer);
  const bool shifts = time || std::holds_alternative<ChannelMixSpec>(layer->spec.mixer);
  if (shifts) {
    // A mixture of a row and the row before is a convolution over two positions.
    auto& conv = layer->weights.vectors[Index(Slot::kConv)];
    const std::vector<float> before = std::move(conv);
    const auto dim = static_cast<size_t>(model.spec().dim);
    conv.clear();
    for (size_t at = 0; at < before.size(); at += dim) {
      for (size_t c = 0; c < dim; ++c) conv.push_back(before[at + c]);
      for (size_t c = 0; c < dim; ++c) conv.push_back(1 - before[at + c]);
    }
  }
  if (time)
    layer->weights.vectors[Index(Slot::kDecay)].assign(static_cast<size_t>(model.spec().dim),
                                                       static_cast<float>(-std::exp(-0.5)));
  // Convolutions pass over their channels together.
  for (const Slot slot : {Slot::kConv, Slot::kKeyConv, Slot::kValueConv}) {
    auto& conv = layer->weights.vectors[Index(slot)];
    if (conv.empty() || shifts) continue;
    const size_t taps = ModelSpec::StateOf(layer->spec, model.spec().dim).taps, channels = conv.size() / taps;
    const std::vector<float> file = conv;
    for (size_t t = 0; t < taps; ++t) {
      for (size_t c = 0; c < channels; ++c) conv[t * channels + c] = file[c * taps + t];
    }
  }
  if (const auto* kimi = std::get_if<KimiDeltaSpec>(&layer->spec.mixer)) {
    auto& decay = layer->weights.vectors[Index(Slot::kDecay)];
    const std::vector<float> of_heads = std::move(decay);
    decay.clear();
    for (const float v : of_heads) decay.insert(decay.end(), static_cast<size_t>(kimi->head_dim), v);
  }
  if (const DenseSpec* dense = layer->spec.dense(); dense != nullptr && dense->sparsity != 0)
    layer->weights.vectors[Index(Slot::kGateShift)].assign(static_cast<size_t>(dense->width), -dense->sparsity);
  for (const FfnWeights& e : w.experts) layer->experts.push_back(pack_ffn(e));
  for (const auto& adapter : w.adapters) {
    auto& packed = layer->adapters.emplace_back();
    for (const LowRankWeights& p : adapter)
      packed.push_back({.slot = p.slot, .a = pack(p.a), .b = pack(p.b), .scale = p.scale});
  }
  if (!in_place && !exact) layer->weights.made.clear();
  layer->vectors = DeviceVectors::Upload(layer->weights.vectors, queue);
  queue.Finish();
  return layer;
}

StatusOr<std::shared_ptr<MtpHead>> LoadMtp(const Model& model, Backend& queue, const BytesDone& done) {
  GYRE_ASSIGN_OR_RETURN(MtpWeights w, ReadMtp(model.tensors(), model.spec()));
  auto head = std::make_shared<MtpHead>();
  GYRE_ASSIGN_OR_RETURN(head->layer, LoadLayer(model, static_cast<int>(model.spec().layers.size()), queue, done));
  head->join = queue.Pack(w.join, done);
  if (w.output.n > 0) head->output = queue.Pack(w.output, done);
  head->embedding = w.embedding;
  const std::vector<float> vectors[] = {std::move(w.embedding_norm), std::move(w.hidden_norm), std::move(w.head_norm)};
  head->vectors = DeviceVectors::Upload(vectors, queue);
  queue.Finish();
  return head;
}

StatusOr<Ends> LoadEnds(const Model& model, bool first, bool last, Backend& queue, const BytesDone& done) {
  Ends ends;
  for (const bool at_end : {false, true}) {
    if (model.spec().streams == 1 || !(at_end ? last : first)) continue;
    GYRE_ASSIGN_OR_RETURN(const auto streams, ReadStreams(model.tensors(), model.spec(), at_end));
    for (const WeightView& w : streams) (at_end ? ends.streams_end : ends.streams_begin).push_back(queue.Pack(w, done));
  }
  if (first) {
    GYRE_ASSIGN_OR_RETURN(const WeightView embedding, model.Embedding());
    HintRead({embedding.data, embedding.bytes()}, ReadHint::kSoon);
    ends.embedding = queue.Pack(embedding, done);
    if (model.spec().positions > 0) {
      GYRE_ASSIGN_OR_RETURN(const WeightView positions, model.Positions());
      ends.positions = queue.Pack(positions, done);
    }
    if (model.spec().embedding_norm) {
      GYRE_ASSIGN_OR_RETURN(EmbeddingVectors of, ReadEmbeddingVectors(model.tensors(), model.spec()));
      const std::vector<float> vectors[] = {std::move(of.token_type), std::move(of.norm), std::move(of.norm_bias)};
      ends.embedding_vectors = DeviceVectors::Upload(vectors, queue);
      queue.Finish();
    }
  }
  if (last) {
    GYRE_ASSIGN_OR_RETURN(HeadWeights head, model.Head());
    HintRead({head.output.data, head.output.bytes()}, ReadHint::kSoon);
    const std::vector<float> vectors[] = {std::move(head.final_norm), std::move(head.final_norm_bias),
                                          std::move(head.bias)};
    ends.vectors = DeviceVectors::Upload(vectors, queue);
    if (!model.spec().encoder)
      ends.output = first && model.spec().tied_head ? ends.embedding : queue.Pack(head.output, done);
    queue.Finish();
  }
  return ends;
}

}  // namespace gyre
