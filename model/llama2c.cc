#include "model/llama2c.h"

#include <cmath>
#include <cstring>
#include <new>

#include "base/kv_type.h"

namespace gyre {
namespace {

constexpr uint32_t kLlama2cMagic = 0x616B3432;
constexpr size_t kHeaderBytes = 256;  // v1, v2
constexpr int kLlama3Vocab = 128256;

struct Config {
  int32_t dim, hidden, layers, heads, kv_heads, vocab, seq_len;
};

// One tensor of the file; a per-layer tensor is stored for all layers, one after the other.
struct Slot {
  const char* name;  // {} = the layer
  uint64_t n, k;     // k = 0: a vector of n
  bool per_layer;
};

class Parser {
 public:
  Parser(std::span<const std::byte> file, const OpenOptions& options) : file_(file), options_(options) {}

  StatusOr<Llama2cFile> Parse() {
    for (double option : {options_.rope_base, options_.norm_eps}) {
      if (!(option >= 0) || !std::isfinite(option)) {
        return InvalidArgument("rope base {} and epsilon {}, expected numbers above 0", options_.rope_base,
                               options_.norm_eps);
      }
    }
    if (file_.size() < 28) return DataLoss("{} bytes are too few for a header of a .bin model", file_.size());
    uint32_t magic = 0;
    std::memcpy(&magic, file_.data(), 4);
    size_t config_at = 0;
    bool shared = true;
    if (magic == kLlama2cMagic) {
      if (file_.size() < kHeaderBytes) return DataLoss("{} bytes, the header takes {}", file_.size(), kHeaderBytes);
      std::memcpy(&out_.version, file_.data() + 4, 4);
      if (out_.version != 1 && out_.version != 2)
        return Unimplemented("offset 4: version {}, expected 1 or 2", out_.version);
      config_at = 8;
    }
    Config c{};
    std::memcpy(&c, file_.data() + config_at, sizeof c);
    if (magic == kLlama2cMagic) {
      shared = file_[36] != std::byte{0};
      if (out_.version == 2) std::memcpy(&group_, file_.data() + 37, 4);
      at_ = kHeaderBytes;
    } else {
      shared = c.vocab > 0;
      if (c.vocab < 0 && c.vocab != INT32_MIN) c.vocab = -c.vocab;
      at_ = 28;
    }
    GYRE_RETURN_IF_ERROR(Check(c));
    MakeSpec(c, shared);
    GYRE_RETURN_IF_ERROR(ReadTensors(c, shared));
    return std::move(out_);
  }

 private:
  Status Check(const Config& c) const {
    const std::pair<const char*, int32_t> fields[] = {
        {"dim", c.dim},        {"hidden_dim", c.hidden},   {"n_layers", c.layers},
        {"n_heads", c.heads},  {"n_kv_heads", c.kv_heads}, {"vocab_size", c.vocab},
        {"seq_len", c.seq_len}};
    for (const auto& [name, value] : fields) {
      const int32_t max = std::string(name) == "seq_len" ? INT32_MAX : 1 << 24;
      if (value < 1 || value > max) return DataLoss("header: {} is {}, expected 1 to {}", name, value, max);
    }
    if (c.layers > 4096) return DataLoss("header: n_layers is {}, expected 1 to 4096", c.layers);
    if (c.dim % c.heads != 0 || c.dim / c.heads % 2 != 0) {
      return DataLoss("header: {} heads do not divide a dimension of {} into even parts", c.heads, c.dim);
    }
    if (c.dim / c.heads > kMaxHeadDim) {
      return DataLoss("header: {} heads of a dimension of {} have {} elements each, expected at most {}", c.heads,
                      c.dim, c.dim / c.heads, kMaxHeadDim);
    }
    if (c.heads % c.kv_heads != 0) return DataLoss("header: {} heads, {} key-value heads", c.heads, c.kv_heads);
    if (out_.version == 2 && group_ < 1) return DataLoss("header: group_size is {}, expected 1 or more", group_);
    return absl::OkStatus();
  }

  void MakeSpec(const Config& c, bool shared) {
    ModelSpec& s = out_.spec;
    s.architecture = "llama";
    s.dim = c.dim;
    s.vocab = c.vocab;
    s.context = c.seq_len;
    s.tied_head = shared;
    s.final_norm_eps = options_.norm_eps > 0 ? static_cast<float>(options_.norm_eps) : 1e-5f;
    LayerSpec l;
    AttentionSpec a;
    a.heads = c.heads;
    a.kv_heads = c.kv_heads;
    a.head_dim = c.dim / c.heads;
    l.norm_eps = s.final_norm_eps;
    a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
    a.rope.dims = a.head_dim;
    a.rope.base = options_.rope_base > 0 ? options_.rope_base : (c.vocab == kLlama3Vocab ? 500000.0 : 10000.0);
    l.mixer = std::move(a);
    l.feed_forward = DenseSpec{.width = c.hidden};
    // The layer count is checked against the file's size before layers are allocated.
    layer_ = l;
  }

  Status ReadTensors(const Config& c, bool shared) {
    const auto dim = static_cast<uint64_t>(c.dim), hidden = static_cast<uint64_t>(c.hidden);
    const auto vocab = static_cast<uint64_t>(c.vocab);
    const uint64_t kv = dim / static_cast<uint64_t>(c.heads) * static_cast<uint64_t>(c.kv_heads);
    layers_ = static_cast<uint64_t>(c.layers);
    const Slot embedding{"token_embd.weight", vocab, dim, false}, output{"output.weight", vocab, dim, false};
    const Slot attn_norm{"blk.{}.attn_norm.weight", dim, 0, true}, ffn_norm{"blk.{}.ffn_norm.weight", dim, 0, true};
    const Slot final_norm{"output_norm.weight", dim, 0, false};
    const Slot q{"blk.{}.attn_q.weight", dim, dim, true}, k{"blk.{}.attn_k.weight", kv, dim, true};
    const Slot v{"blk.{}.attn_v.weight", kv, dim, true}, o{"blk.{}.attn_output.weight", dim, dim, true};
    const Slot gate{"blk.{}.ffn_gate.weight", hidden, dim, true}, down{"blk.{}.ffn_down.weight", dim, hidden, true};
    const Slot up{"blk.{}.ffn_up.weight", hidden, dim, true};
    std::vector<Slot> order;
    if (out_.version == 0) {
      order = {embedding, attn_norm, q, k, v, o, ffn_norm, gate, down, up, final_norm};
    } else {
      order = {attn_norm, ffn_norm, final_norm, embedding, q, k, v, o, gate, down, up};
    }
    for (const Slot& slot : order) GYRE_RETURN_IF_ERROR(Read(slot));
    if (out_.version == 0) {  // rotary tables, which follow from the base
      const uint64_t skip = 4 * static_cast<uint64_t>(c.seq_len) * (dim / static_cast<uint64_t>(c.heads)) / 2 * 2;
      GYRE_RETURN_IF_ERROR(Take(skip, "the rotary tables").status());
    }
    if (!shared) GYRE_RETURN_IF_ERROR(Read(output));
    if (at_ != file_.size()) {
      return DataLoss("the header describes {} bytes, the file has {}: not a .bin model, or a damaged one", at_,
                      file_.size());
    }
    out_.spec.layers.assign(static_cast<size_t>(layers_), layer_);
    return absl::OkStatus();
  }

  StatusOr<const std::byte*> Take(uint64_t bytes, const std::string& what) {
    if (bytes > file_.size() - at_) {
      return DataLoss("offset {}: {} takes {} bytes, the file has {} left", at_, what, bytes, file_.size() - at_);
    }
    const std::byte* data = file_.data() + at_;
    at_ += static_cast<size_t>(bytes);
    return data;
  }

  Status Read(const Slot& slot) {
    const uint64_t elems = slot.n * std::max<uint64_t>(slot.k, 1);  // each below 2^24
    const uint64_t count = slot.per_layer ? layers_ : 1;
    for (uint64_t i = 0; i < count; ++i) {
      const std::string name = slot.per_layer ? fmt::format(fmt::runtime(slot.name), i) : slot.name;
      TensorView t;
      if (slot.k != 0) t.dims.push_back(slot.k);
      t.dims.push_back(slot.n);
      t.bytes = static_cast<size_t>(elems * 4);
      if (out_.version == 2 && slot.k != 0) {
        GYRE_RETURN_IF_ERROR(ReadInt8(name, elems, &t));
      } else {
        GYRE_ASSIGN_OR_RETURN(t.data, Take(elems * 4, "tensor " + name));
      }
      GYRE_RETURN_IF_ERROR(out_.tensors.Add(name, std::move(t)));
    }
    return absl::OkStatus();
  }

  // q[elems], then a scale for each group; groups run over the flattened tensor.
  Status ReadInt8(const std::string& name, uint64_t elems, TensorView* t) {
    const auto group = static_cast<uint64_t>(group_);
    if (elems % group != 0)
      return DataLoss("tensor {}: {} elements are no multiple of the group of {}", name, elems, group);
    t->type = DType::kI8;
    t->bytes = static_cast<size_t>(elems);
    t->group = static_cast<size_t>(group);
    GYRE_ASSIGN_OR_RETURN(t->data, Take(elems, "tensor " + name));
    GYRE_ASSIGN_OR_RETURN(t->scales, Take(elems / group * 4, "scales of tensor " + name));
    return absl::OkStatus();
  }

  const std::span<const std::byte> file_;
  const OpenOptions& options_;
  Llama2cFile out_;
  LayerSpec layer_;
  uint64_t layers_ = 0;
  int32_t group_ = 0;
  size_t at_ = 0;
};

}  // namespace

StatusOr<Llama2cFile> ParseLlama2c(std::span<const std::byte> file, const OpenOptions& options) {
  return Parser(file, options).Parse();
}

}  // namespace gyre
