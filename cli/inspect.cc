// gyre inspect: what is in a model file.
#include <algorithm>
#include <map>

#include <boost/json.hpp>

#include "cli/commands.h"
#include "fmt/core.h"
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

// In the file's order.
std::vector<std::pair<std::string, const TensorView*>> InOrder(const Model& model) {
  std::vector<std::pair<std::string, const TensorView*>> out;
  for (const auto& [name, t] : model.tensors().all()) out.emplace_back(name, &t);
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.second->data < b.second->data; });
  return out;
}

void PrintJson(const Model& model, bool tensors) {
  const ModelSpec& s = model.spec();
  json::object root;
  root["architecture"] = s.architecture;
  root["name"] = s.name;
  root["layers"] = s.layers.size();
  root["dim"] = s.dim;
  root["vocab"] = s.vocab;
  root["context"] = s.context;
  root["heads"] = s.layers[0].heads;
  root["kv_heads"] = s.layers[0].kv_heads;
  root["head_dim"] = s.layers[0].head_dim;
  root["ffn"] = s.layers[0].ffn;
  root["tokenizer"] = model.tokenizer() != nullptr ? json::value(model.tokenizer()->kind()) : json::value(nullptr);
  root["content_hash"] = fmt::format("{:016x}", model.content_hash());
  json::object types;
  for (const auto& [type, sum] : ByType(model)) types[type] = {{"tensors", sum.tensors}, {"bytes", sum.bytes}};
  root["types"] = std::move(types);
  json::object metadata;
  for (const auto& [key, value] : model.DescribeMetadata()) metadata[key] = value;
  root["metadata"] = std::move(metadata);
  if (tensors) {
    json::array list;
    for (const auto& [name, t] : InOrder(model)) {
      list.push_back({{"name", name}, {"type", Info(t->type).name}, {"shape", json::value_from(t->dims)}, {"bytes", t->bytes}});
    }
    root["tensors"] = std::move(list);
  }
  fmt::print("{}\n", json::serialize(root));
}

void PrintText(const Model& model, bool tensors) {
  const ModelSpec& s = model.spec();
  const LayerSpec& l = s.layers[0];
  fmt::print("architecture  {}{}\n", s.architecture, s.name.empty() ? "" : " (" + s.name + ")");
  fmt::print("layers        {}\n", s.layers.size());
  fmt::print("dimension     {}, feed-forward {}\n", s.dim, l.ffn);
  fmt::print("attention     {} heads, {} for keys and values, {} wide\n", l.heads, l.kv_heads, l.head_dim);
  fmt::print("vocabulary    {}{}\n", s.vocab, s.tied_head ? ", output tied to the embedding" : "");
  fmt::print("context       {}\n", s.context);
  fmt::print("tokenizer     {}\n", model.tokenizer() != nullptr ? model.tokenizer()->kind() : model.tokenizer_note());
  for (const auto& [type, sum] : ByType(model)) {
    fmt::print("{:<14}{} tensors, {:.1f} MiB\n", type, sum.tensors, static_cast<double>(sum.bytes) / (1 << 20));
  }
  const auto metadata = model.DescribeMetadata();
  if (!metadata.empty()) fmt::print("\n");
  for (const auto& [key, value] : metadata) fmt::print("{} = {}\n", key, value);
  if (!tensors) return;
  fmt::print("\n");
  for (const auto& [name, t] : InOrder(model)) {
    fmt::print("{:<32} {:<6} {:>16} {:>12}\n", name, Info(t->type).name, DescribeDims(t->dims), t->bytes);
  }
}

}  // namespace

Status InspectCommand(const InspectOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const auto model, OpenModel(options.model, options.open));
  if (options.json) {
    PrintJson(*model, options.tensors);
  } else {
    PrintText(*model, options.tensors);
  }
  return absl::OkStatus();
}

}  // namespace gyre
