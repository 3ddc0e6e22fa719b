// gyre inspect: the contents of a model file.
#include <algorithm>
#include <cmath>
#include <map>

#include <boost/json.hpp>

#include "base/counted.h"
#include "base/describe_bytes.h"
#include "base/plan.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "fmt/core.h"
#include "model/layer_reader.h"
#include "model/quantize.h"
#include "model/tensor_table.h"
#include "model/tokenizer.h"
#include "model/weights.h"

namespace gyre {
namespace {

namespace json = boost::json;

struct Sum {
  uint64_t tensors = 0, bytes = 0;
};

std::map<std::string, Sum> ByType(const Model& model) {
  std::map<std::string, Sum> sums;
  for (const auto& [name, t] : model.tensors().all()) {
    Sum& s = sums[Info(t.type).name];
    ++s.tensors;
    s.bytes += t.bytes;
  }
  return sums;
}

struct Whole {
  uint64_t parameters = 0;
  uint64_t files = 0, bytes = 0;
  std::string quantization;
};

Whole Sizes(const Model& model) {
  Whole w;
  w.parameters = model.tensors().Parameters();
  w.files = model.files().size();
  w.bytes = model.file_bytes();
  w.quantization = QuantizationOf(model);
  return w;
}

// "1.24 billion", or all digits of a small number.
std::string DescribeCount(uint64_t n) {
  const auto in = [&](double unit, const char* name) {
    return fmt::format("{:.4g} {}", static_cast<double>(n) / unit, name);
  };
  return n >= 1'000'000'000 ? in(1e9, "billion") : n >= 1'000'000 ? in(1e6, "million") : fmt::format("{}", n);
}

template <typename Part, typename Variant>
Part FirstOf(const ModelSpec& s, Variant LayerSpec::*variant) {
  for (const LayerSpec& l : s.layers) {
    if (const Part* part = std::get_if<Part>(&(l.*variant))) return *part;
  }
  return {};
}

std::string Heads(int count) { return Counted(static_cast<uint64_t>(count), "head"); }

// A description of a layer's parts.
std::string Describe(const LayerSpec& l) {
  struct Words {
    std::string operator()(const AttentionSpec& a) const {
      std::string text =
          fmt::format("attention of {}, {} for keys and values, {} wide", Heads(a.heads), a.kv_heads, a.head_dim);
      if (a.window > 0) text += fmt::format(", window {}", a.window);
      if (a.rope.dims == 0) text += ", no positions";
      if (a.kv_layer >= 0) text += fmt::format(", which reads layer {}'s keys and values", a.kv_layer);
      return text;
    }
    std::string operator()(const LatentAttentionSpec& a) const {
      return fmt::format("latent attention of {}, {} kept", Heads(a.heads), a.kv_rank + a.rope.dims);
    }
    std::string operator()(const DeltaNetSpec& d) const {
      return fmt::format("a gated delta net of {}, {} wide", Heads(d.value_heads), d.head_dim);
    }
    std::string operator()(const KimiDeltaSpec& k) const {
      return fmt::format("Kimi delta attention of {}, {} wide", Heads(k.heads), k.head_dim);
    }
    std::string operator()(const MambaSpec& m) const {
      return fmt::format("a Mamba state space, {} wide, {} kept of each", m.inner, m.state);
    }
    std::string operator()(const Mamba2Spec& m) const {
      return fmt::format("a Mamba-2 state space, {} wide, {}", m.inner, Heads(m.heads));
    }
    std::string operator()(const ShortConvolutionSpec& c) const {
      return fmt::format("a convolution over {}", Counted(static_cast<uint64_t>(c.kernel), "position"));
    }
    std::string operator()(const TimeMixSpec& t) const {
      return fmt::format("time mixing of {}, {} wide", Heads(t.heads), t.head_dim);
    }
    std::string operator()(const ChannelMixSpec& c) const { return fmt::format("channel mixing {}", c.width); }
    std::string operator()(const DenseSpec& d) const { return fmt::format("feed-forward {}", d.width); }
    std::string operator()(const ExpertSpec& e) const {
      return fmt::format("{} of {}, {} for a token{}", Counted(static_cast<uint64_t>(e.count), "expert"), e.width,
                         e.used, e.shared_width > 0 ? fmt::format(", and a shared one of {}", e.shared_width) : "");
    }
    std::string operator()(const NoMixer&) const { return {}; }
    std::string operator()(const NoFeedForward&) const { return {}; }
  };
  const std::string mixer = std::visit(Words(), l.mixer) + (l.same_input ? " beside the layer before" : ""),
                    feed = std::visit(Words(), l.feed_forward);
  return mixer + (mixer.empty() || feed.empty() ? "" : "; ") + feed;
}

std::string NameOf(LayerRange range) {
  return fmt::format("layer{} {}", range.size() > 1 ? "s" : "", FormatRange(range));
}

// The layers of each kind, as ranges, in the order of their first layers.
std::vector<std::pair<std::vector<LayerRange>, std::string>> LayerKinds(const ModelSpec& s) {
  std::vector<std::pair<std::vector<LayerRange>, std::string>> out;
  for (int i = 0; i < static_cast<int>(s.layers.size()); ++i) {
    const std::string text = Describe(s.layers[static_cast<size_t>(i)]);
    auto kind = std::find_if(out.begin(), out.end(), [&](const auto& k) { return k.second == text; });
    if (kind == out.end()) kind = out.insert(kind, {{}, text});
    std::vector<LayerRange>& ranges = kind->first;
    if (!ranges.empty() && ranges.back().end == i)
      ++ranges.back().end;
    else
      ranges.push_back({i, i + 1});
  }
  return out;
}

// All ranges if they are few, else the first and the last.
std::string NameOf(const std::vector<LayerRange>& ranges) {
  if (ranges.size() == 1) return NameOf(ranges[0]);
  std::string text;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (i == 3 && ranges.size() > 4) text += ", ...", i = ranges.size() - 1;
    text += (text.empty() ? "layers " : ", ") + FormatRange(ranges[i]);
  }
  return text;
}

void PrintJson(const Model& model, bool tensors) {
  const ModelSpec& s = model.spec();
  json::object root;
  root["architecture"] = s.architecture;
  root["name"] = s.name;
  const Whole whole = Sizes(model);
  root["parameters"] = whole.parameters;
  root["quantization"] = whole.quantization;
  root["file_bytes"] = whole.bytes;
  root["layers"] = s.layers.size();
  root["encoder"] = s.encoder;
  root["dim"] = s.dim;
  root["streams"] = s.streams;
  root["vocab"] = s.vocab;
  root["context"] = s.context;
  // For each part the first layer that has it is described.
  const AttentionSpec attention = FirstOf<AttentionSpec>(s, &LayerSpec::mixer);
  const DenseSpec dense = FirstOf<DenseSpec>(s, &LayerSpec::feed_forward);
  const ExpertSpec experts = FirstOf<ExpertSpec>(s, &LayerSpec::feed_forward);
  root["heads"] = attention.heads;
  root["kv_heads"] = attention.kv_heads;
  root["head_dim"] = attention.head_dim;
  root["ffn"] = experts.count > 0 && dense.width == 0 ? experts.shared_width : dense.width;
  root["experts"] = {{"count", experts.count}, {"used", experts.used}, {"ffn", experts.width}};
  json::array parts;
  for (const auto& [ranges, text] : LayerKinds(s)) {
    json::array layers;
    for (const LayerRange& r : ranges) layers.push_back(json::value(FormatRange(r)));
    parts.push_back({{"layers", std::move(layers)}, {"parts", text}});
  }
  root["layer_kinds"] = std::move(parts);
  root["tokenizer"] = model.tokenizer() != nullptr ? json::value(model.tokenizer()->kind()) : json::value(nullptr);
  root["content_hash"] = fmt::format("{:016x}", model.content_hash());
  json::object types;
  for (const auto& [type, sum] : ByType(model)) types[type] = {{"tensors", sum.tensors}, {"bytes", sum.bytes}};
  root["types"] = std::move(types);
  json::object metadata;
  for (const auto& [key, value] : model.DescribeMetadata()) metadata[key] = value;
  root["metadata"] = std::move(metadata);
  json::array layer_bytes;
  for (size_t i = 0; i < s.layers.size(); ++i)
    layer_bytes.push_back(LayerBytes(model, static_cast<int>(i)).value_or(0));
  root["layer_bytes"] = std::move(layer_bytes);
  if (tensors) {
    json::array list;
    for (const auto& [name, t] : model.tensors().InFileOrder()) {
      list.push_back(
          {{"name", name}, {"type", Info(t->type).name}, {"shape", json::value_from(t->dims)}, {"bytes", t->bytes}});
    }
    root["tensors"] = std::move(list);
  }
  fmt::print("{}\n", json::serialize(root));
}

// Says whether `gyre` uses the layers for drafts that the file has, or why it does not.
std::string DraftsNote(const Model& model) {
  const Status usable = ReadMtp(model.tensors(), model.spec()).status();
  if (!usable.ok()) return fmt::format(", not used: {}", Message(usable));
  return model.spec().draft_layers > 1 ? ", the first of which is used (--speculation mtp)" : " (--speculation mtp)";
}

void PrintText(const Model& model, bool tensors) {
  const ModelSpec& s = model.spec();
  fmt::print("architecture  {}{}{}\n", s.architecture, s.name.empty() ? "" : " (" + s.name + ")",
             s.encoder ? ", an encoder: it makes vectors of texts" : "");
  const Whole whole = Sizes(model);
  fmt::print("parameters    {}\n", DescribeCount(whole.parameters));
  fmt::print("quantization  {}\n", whole.quantization);
  fmt::print("size          {}{}\n", DescribeBytes(whole.bytes),
             whole.files > 1 ? fmt::format(" in {} files", whole.files) : "");
  fmt::print("layers        {}{}\n", s.layers.size(),
             s.draft_layers > 0 ? fmt::format(", and {} for drafts{}", s.draft_layers, DraftsNote(model)) : "");
  fmt::print("dimension     {}{}\n", s.dim, s.streams > 1 ? fmt::format(", in {} streams", s.streams) : "");
  for (const auto& [ranges, text] : LayerKinds(s)) fmt::print("{:<14}{}\n", NameOf(ranges) + " ", text);
  fmt::print("vocabulary    {}{}\n", s.vocab, s.tied_head ? ", output tied to the embedding" : "");
  fmt::print("context       {}\n", s.context);
  fmt::print("tokenizer     {}\n", model.tokenizer() != nullptr ? model.tokenizer()->kind() : model.tokenizer_note());
  for (const auto& [type, sum] : ByType(model)) {
    fmt::print("{:<14}{}, {:.1f} MiB\n", type, Counted(sum.tensors, "tensor"),
               static_cast<double>(sum.bytes) / (1 << 20));
  }
  // Consecutive layers of one size are printed as one line.
  for (int i = 0, n = static_cast<int>(s.layers.size()), begin = 0; i < n; ++i) {
    const auto bytes = LayerBytes(model, i), next = i + 1 < n ? LayerBytes(model, i + 1) : bytes;
    if (!bytes.ok() || !next.ok() || (i + 1 < n && *bytes == *next)) continue;
    fmt::print("{:<14}{:.2f} MiB{}\n", NameOf({begin, i + 1}), static_cast<double>(*bytes) / (1 << 20),
               begin < i ? " each" : "");
    begin = i + 1;
  }
  const auto metadata = model.DescribeMetadata();
  if (!metadata.empty()) fmt::print("\n");
  for (const auto& [key, value] : metadata) fmt::print("{} = {}\n", key, value);
  if (!tensors) return;
  fmt::print("\n");
  for (const auto& [name, t] : model.tensors().InFileOrder()) {
    fmt::print("{:<32} {:<6} {:>16} {:>12}\n", name, Info(t->type).name, DescribeDims(t->dims), t->bytes);
  }
}

// Statistics of the values as they are dequantized.
Status PrintTensor(const Model& model, const std::string& name, bool as_json) {
  const TensorView* t = model.tensors().Find(name);
  if (t == nullptr)
    return UsageError("--tensor {}: {} has no tensor of this name; --tensors lists them", name, model.path());
  if (!t->dequantizes()) return Unimplemented("tensor {} has the type {}", name, Info(t->type).name);
  uint64_t infinite = 0, zeros = 0;
  MadeTensor::Bytes held;
  const WeightView w = t->WithData(&held).Rows();
  std::vector<float> row(w.k);
  double sum = 0, squares = 0, lowest = INFINITY, highest = -INFINITY;
  std::vector<float> first;
  for (uint64_t r = 0; r < w.n; ++r) {
    DequantizeRow(w, r, row.data());
    if (r == 0) first.assign(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(8, row.size())));
    for (float f : row) {
      const auto v = static_cast<double>(f);
      if (!std::isfinite(v)) {
        ++infinite;
        continue;
      }
      zeros += v == 0;
      sum += v;
      squares += v * v;
      lowest = std::min(lowest, v);
      highest = std::max(highest, v);
    }
  }
  const auto n = static_cast<double>(std::max<uint64_t>(1, w.n * w.k - infinite));
  const double mean = sum / n, deviation = std::sqrt(std::max(0.0, squares / n - mean * mean));
  if (as_json) {
    fmt::print("{}\n", json::serialize(json::object{{"name", name},
                                                    {"type", Info(t->type).name},
                                                    {"shape", json::value_from(t->dims)},
                                                    {"bytes", t->bytes},
                                                    {"min", lowest},
                                                    {"max", highest},
                                                    {"mean", mean},
                                                    {"deviation", deviation},
                                                    {"rms", std::sqrt(squares / n)},
                                                    {"zeros", zeros},
                                                    {"not_finite", infinite},
                                                    {"first", json::value_from(first)}}));
    return absl::OkStatus();
  }
  fmt::print("{}: {}, {}, {} bytes\n", name, Info(t->type).name, DescribeDims(t->dims), t->bytes);
  fmt::print("range          {:.6g} to {:.6g}\n", lowest, highest);
  fmt::print("mean           {:.6g}, deviation {:.6g}, root mean square {:.6g}\n", mean, deviation,
             std::sqrt(squares / n));
  fmt::print("zeros          {}{}\n", zeros,
             infinite > 0 ? fmt::format(", and {} that are no finite numbers", infinite) : "");
  fmt::print("first         ");
  for (float f : first) fmt::print(" {:.6g}", f);
  fmt::print("\n");
  return absl::OkStatus();
}

}  // namespace

Status InspectCommand(const InspectOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const auto model, OpenModel(options.model, options.open));
  if (!options.tensor.empty()) return PrintTensor(*model, options.tensor, options.json);
  if (options.json) {
    PrintJson(*model, options.tensors);
  } else {
    PrintText(*model, options.tensors);
  }
  return absl::OkStatus();
}

}  // namespace gyre
