#include "coordinator/planner.h"

#include <algorithm>
#include <limits>
#include <set>

#include "base/range.h"

namespace gyre {
namespace {

std::vector<std::string> Split(const std::string& text, const std::string& separators) {
  std::vector<std::string> out;
  std::string word;
  for (char c : text) {
    if (separators.find(c) == std::string::npos) {
      word += c;
    } else if (!word.empty()) {
      out.push_back(std::move(word));
      word.clear();
    }
  }
  if (!word.empty()) out.push_back(std::move(word));
  return out;
}

// "A-B" with both ends inclusive, or "A".
StatusOr<LayerRange> ParseLayers(const std::string& text, int num_layers) {
  const auto range = ParseRange(text);
  if (!range) return InvalidArgument("'{}': expected a range A-B, as 0-{}", text, num_layers - 1);
  if (range->last < range->first) return InvalidArgument("'{}': the range ends before it begins", text);
  if (range->last >= num_layers)
    return InvalidArgument("'{}' is out of range: the model has layers 0-{}", text, num_layers - 1);
  return LayerRange{range->first, range->last + 1};
}

struct Part {
  std::string name;  // may be empty
  LayerRange layers;
};

// Members that are not named, in join order, local ones last.
std::vector<const PlanMember*> Unnamed(const std::vector<PlanMember>& members, const std::set<std::string>& named) {
  std::vector<const PlanMember*> out;
  for (bool local : {false, true}) {
    for (const PlanMember& m : members) {
      if (m.local == local && named.count(m.name) == 0) out.push_back(&m);
    }
  }
  return out;
}

std::string Gib(uint64_t bytes) { return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1u << 30)); }

}  // namespace

StatusOr<ModelSizes> SizesOf(const Model& model, uint32_t num_blocks, int block_size, KvType kv_type) {
  ModelSizes sizes;
  uint64_t widest = 0;
  for (size_t i = 0; i < model.spec().layers.size(); ++i) {
    GYRE_ASSIGN_OR_RETURN(const size_t bytes, LayerBytes(model, static_cast<int>(i)));
    sizes.layers.push_back(bytes);
    widest = std::max<uint64_t>(widest, ModelSpec::KvElems(model.spec().layers[i]));
  }
  GYRE_ASSIGN_OR_RETURN(sizes.first, EndBytes(model, true, false));
  GYRE_ASSIGN_OR_RETURN(sizes.last, EndBytes(model, false, true));
  GYRE_ASSIGN_OR_RETURN(sizes.both, EndBytes(model, true, true));
  sizes.kv_per_layer = KvBytes(kv_type, widest * static_cast<uint64_t>(block_size)) * num_blocks;
  return sizes;
}

uint64_t RangeBytes(const ModelSizes& sizes, LayerRange range) {
  uint64_t sum = 0;
  for (int i = range.begin; i < range.end; ++i) sum += sizes.layers[static_cast<size_t>(i)];
  const bool first = range.begin == 0, last = range.end == sizes.num_layers();
  return sum + (first && last ? sizes.both : first ? sizes.first : last ? sizes.last : 0);
}

StatusOr<std::vector<Assignment>> BalanceLayers(const ModelSizes& sizes, const std::vector<PlanMember>& members) {
  const size_t layers = sizes.layers.size(), n = members.size();
  if (n == 0) return InvalidArgument("a plan needs at least one worker");
  if (n > layers) return InvalidArgument("{} workers for {} layers: each needs at least one", n, layers);
  // Wishes decide where all have one and they fit together.
  std::vector<Assignment> wished;
  for (const PlanMember& m : members) {
    if (m.wish) wished.push_back({m.name, m.address, *m.wish});
  }
  if (wished.size() == n) {
    std::sort(wished.begin(), wished.end(),
              [](const Assignment& a, const Assignment& b) { return a.layers.begin < b.layers.begin; });
    const Plan plan{.num_layers = sizes.num_layers(), .stages = MakeStages(wished)};
    GYRE_RETURN_IF_ERROR(plan.Validate());
    return wished;
  }
  // A decode step reads every byte of a stage once but for the embedding, of which it reads a row.
  auto cost = [&sizes](size_t begin, size_t end) {
    uint64_t sum = end == sizes.layers.size() ? sizes.last : 0;
    for (size_t i = begin; i < end; ++i) sum += sizes.layers[i];
    return sum;
  };
  // best[k][e]: the smallest largest share of k ranges over the first e layers.
  constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  std::vector<std::vector<uint64_t>> best(n + 1, std::vector<uint64_t>(layers + 1, kNone));
  std::vector<std::vector<size_t>> cut(n + 1, std::vector<size_t>(layers + 1, 0));
  best[0][0] = 0;
  for (size_t k = 1; k <= n; ++k) {
    for (size_t end = k; end <= layers; ++end) {
      for (size_t begin = k - 1; begin < end; ++begin) {
        if (best[k - 1][begin] == kNone) continue;
        const uint64_t share = std::max(best[k - 1][begin], cost(begin, end));
        if (share < best[k][end]) best[k][end] = share, cut[k][end] = begin;
      }
    }
  }
  std::vector<Assignment> out(n);
  size_t end = layers;
  for (size_t k = n; k > 0; --k) {
    const size_t begin = cut[k][end];
    out[k - 1] = {members[k - 1].name, members[k - 1].address, {static_cast<int>(begin), static_cast<int>(end)}};
    end = begin;
  }
  return out;
}

StatusOr<std::vector<Assignment>> ParseResize(const std::string& text, const ModelSizes& sizes,
                                              const std::vector<PlanMember>& members) {
  if (text.size() > kMaxResizeText) {
    return InvalidArgument("the ranges take {} bytes, at most {} are read", text.size(), kMaxResizeText);
  }
  const int layers = sizes.num_layers();
  std::vector<Part> parts;
  std::set<std::string> named;
  if (Split(text, ", \t").empty()) {
    return InvalidArgument("no ranges: expected 0-3,4-7 or NAME=0-3,... or boundaries as 4 8");
  }
  const bool ranges = text.find_first_of("-=,") != std::string::npos;
  if (!ranges) {  // boundaries
    int begin = 0;
    for (const std::string& word : Split(text, " \t")) {
      const auto at = ParseNumber(word);
      if (!at) return InvalidArgument("'{}': expected ranges as 0-3,4-7 or boundaries as 4 8", word);
      if (*at <= begin || *at >= layers) {
        return InvalidArgument("boundary {}: expected rising numbers from 1 to {}", *at, layers - 1);
      }
      parts.push_back({"", {begin, *at}});
      begin = *at;
    }
    parts.push_back({"", {begin, layers}});
  } else {
    for (const std::string& word : Split(text, ", \t")) {
      const size_t equals = word.find('=');
      Part part;
      std::string range = word;
      if (equals != std::string::npos) {
        part.name = word.substr(0, equals);
        range = word.substr(equals + 1);
        const bool known =
            std::any_of(members.begin(), members.end(), [&part](const PlanMember& m) { return m.name == part.name; });
        if (!known) {
          std::string names;
          for (const PlanMember& m : members) names += (names.empty() ? "" : ", ") + m.name;
          return NotFound("no worker '{}'; there are {}", part.name, names.empty() ? "none" : names);
        }
        if (!named.insert(part.name).second) return InvalidArgument("{} is named twice", part.name);
        if (range == "-") continue;
      }
      GYRE_ASSIGN_OR_RETURN(part.layers, ParseLayers(range, layers));
      parts.push_back(std::move(part));
    }
  }
  if (parts.empty()) return InvalidArgument("no ranges: expected 0-3,4-7 or NAME=0-3,... or boundaries as 4 8");
  const auto rest = Unnamed(members, named);
  size_t next = 0;
  std::vector<Assignment> out;
  for (Part& part : parts) {
    const PlanMember* member = nullptr;
    if (part.name.empty()) {
      if (next == rest.size()) {
        return InvalidArgument("{} ranges for {} workers: layers {} are left over", parts.size(), members.size(),
                               FormatRange(part.layers));
      }
      member = rest[next++];
    } else {
      member =
          &*std::find_if(members.begin(), members.end(), [&part](const PlanMember& m) { return m.name == part.name; });
    }
    out.push_back({member->name, member->address, part.layers});
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Assignment& a, const Assignment& b) { return a.layers.begin < b.layers.begin; });
  return out;
}

namespace {

// What a member has to hold while `next` takes the place of what it holds.
struct Need {
  LayerRange next;
  uint64_t weights = 0;  // bytes
  uint64_t layers = 0;   // with pages
};
Need NeedOf(const ModelSizes& sizes, const PlanMember& member, const Plan& next) {
  Need need;
  const LayerRange held = member.holds;
  const int stage = next.StageOf(member.name);
  if (stage >= 0) need.next = next.stages[static_cast<size_t>(stage)].layers;
  const int layers = sizes.num_layers();
  for (int i = 0; i < layers; ++i) {
    if (!(i >= need.next.begin && i < need.next.end) && !(i >= held.begin && i < held.end)) continue;
    need.weights += sizes.layers[static_cast<size_t>(i)];
    ++need.layers;
  }
  auto is_first = [](LayerRange r) { return r.size() > 0 && r.begin == 0; };
  auto is_last = [layers](LayerRange r) { return r.size() > 0 && r.end == layers; };
  const bool first = is_first(need.next) || is_first(held), last = is_last(need.next) || is_last(held);
  need.weights += first && last ? sizes.both : first ? sizes.first : last ? sizes.last : 0;
  return need;
}

}  // namespace

uint32_t FitBlocks(const ModelSizes& sizes, const std::vector<PlanMember>& members, const Plan& next,
                   uint32_t num_blocks) {
  const uint64_t page = std::max<uint64_t>(1, sizes.kv_per_layer / num_blocks);  // of a layer
  uint64_t fit = num_blocks;
  for (const PlanMember& m : members) {
    if (m.memory == 0 || next.StageOf(m.name) < 0) continue;
    const Need need = NeedOf(sizes, m, next);
    const uint64_t more = (static_cast<uint64_t>(need.next.size()) + 3) / 4;
    const uint64_t weights = need.weights + more * *std::max_element(sizes.layers.begin(), sizes.layers.end());
    fit = std::min(fit, weights >= m.memory ? 0 : (m.memory - weights) / (page * (need.layers + more)));
  }
  return static_cast<uint32_t>(fit);
}

std::vector<Shortage> FindShortages(const ModelSizes& sizes, const std::vector<PlanMember>& members, const Plan& next) {
  std::vector<Shortage> out;
  for (const PlanMember& m : members) {
    if (m.memory == 0 || next.StageOf(m.name) < 0) continue;
    const Need need = NeedOf(sizes, m, next);
    const uint64_t pages = need.layers * sizes.kv_per_layer;
    if (need.weights + pages <= m.memory) continue;
    out.push_back(
        {m.name, m.memory,
         ResourceExhausted("{} needs {} for layers {}{} ({} of weights, {} of KV cache) and has {}", m.name,
                           Gib(need.weights + pages), FormatRange(need.next),
                           m.holds.size() > 0 ? fmt::format(" beside {} meanwhile", FormatRange(m.holds)) : "",
                           Gib(need.weights), Gib(pages), Gib(m.memory))});
  }
  return out;
}

}  // namespace gyre
