#include "coordinator/cluster/planner.h"

#include <algorithm>
#include <limits>
#include <set>

#include "base/counted.h"
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
      if (m.local == local && !m.drained && named.count(m.name) == 0) out.push_back(&m);
    }
  }
  return out;
}

// Multiplications that a row costs on the layer.
StatusOr<uint64_t> ProductsOf(const Model& model, int layer) {
  GYRE_ASSIGN_OR_RETURN(const LayerWeights weights, model.Layer(layer));
  uint64_t dense = 0, experts = 0;
  const auto count = [](const WeightView& v) { return uint64_t{v.n} * v.k; };
  for (const WeightView& v : weights.matrices) dense += count(v);
  for (const FfnWeights& e : weights.experts) experts += count(e.gate) + count(e.up) + count(e.down);
  const ExpertSpec* spec = model.spec().layers[static_cast<size_t>(layer)].experts();
  if (spec == nullptr || spec->count <= 0) return dense + experts;
  return dense + experts * static_cast<uint64_t>(spec->used) / static_cast<uint64_t>(spec->count);
}

}  // namespace

StatusOr<ModelSizes> SizesOf(const Model& model, const MemoryCounts& counts, int block_size, KvType kv_type, bool mtp) {
  ModelSizes sizes;
  sizes.counts = counts;
  const ModelSpec& spec = model.spec();
  const std::vector<LayerSpec>& layers = spec.layers;
  for (size_t i = 0; i < layers.size(); ++i) {
    GYRE_ASSIGN_OR_RETURN(const size_t bytes, LayerBytes(model, static_cast<int>(i)));
    sizes.layers.push_back(bytes);
    GYRE_ASSIGN_OR_RETURN(const uint64_t products, ProductsOf(model, static_cast<int>(i)));
    sizes.products.push_back(products);
    sizes.memory.push_back({layers[i].kv_group, spec.UnitBytes(layers[i], kv_type, static_cast<uint32_t>(block_size))});
  }
  GYRE_ASSIGN_OR_RETURN(sizes.first, EndBytes(model, true, false));
  GYRE_ASSIGN_OR_RETURN(sizes.last, EndBytes(model, false, true));
  GYRE_ASSIGN_OR_RETURN(sizes.both, EndBytes(model, true, true));
  if (mtp) {
    GYRE_ASSIGN_OR_RETURN(uint64_t drafts, MtpBytes(model));
    drafts += uint64_t{counts[kPageGroup]} * spec.UnitBytes(*spec.mtp, kv_type, static_cast<uint32_t>(block_size));
    sizes.last += drafts;
    sizes.both += drafts;
  }
  sizes.last_products = static_cast<uint64_t>(model.spec().vocab) * static_cast<uint64_t>(model.spec().dim);
  for (size_t i = 0; i < layers.size(); ++i) {
    const int from = spec.JoinedFrom(static_cast<int>(i));
    if (from == static_cast<int>(i)) continue;
    sizes.joined.resize(layers.size());
    std::fill(sizes.joined.begin() + from + 1, sizes.joined.begin() + static_cast<std::ptrdiff_t>(i) + 1, true);
  }
  return sizes;
}

uint64_t EndBytes(const ModelSizes& sizes, bool first, bool last) {
  return first && last ? sizes.both : first ? sizes.first : last ? sizes.last : 0;
}

uint64_t RangeBytes(const ModelSizes& sizes, LayerRange range) {
  uint64_t sum = EndBytes(sizes, range.begin == 0, range.end == sizes.num_layers());
  for (int i = range.begin; i < range.end; ++i) sum += sizes.layers[static_cast<size_t>(i)];
  return sum;
}

LayerRange ReplicatedBy(const Plan& plan, const std::string& worker) {
  for (const StagePlan& s : plan.stages) {
    if (!worker.empty() && s.replicated_by == worker) return s.layers;
  }
  return {};
}

namespace {

constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();

// The best ways to cut consecutive layers into 1, 2, ... ranges: the largest share is as small as it can be.
class BestCuts {
 public:
  BestCuts(const ModelSizes& sizes, LayerRange layers, size_t most) : layers_(layers) {
    const auto count = static_cast<size_t>(layers.size());
    most = std::min(most, count);
    // best_[k][e]: the smallest largest share of k ranges over the first e layers.
    best_.assign(most + 1, std::vector<uint64_t>(count + 1, kNone));
    cut_.assign(most + 1, std::vector<size_t>(count + 1, 0));
    best_[0][0] = 0;
    for (size_t k = 1; k <= most; ++k) {
      for (size_t end = k; end <= count; ++end) {
        // A decode step reads every byte of a stage once but for the embedding, of which it reads a row.
        const bool head = layers.begin + static_cast<int>(end) == sizes.num_layers();
        uint64_t cost = head ? sizes.last : 0;
        for (size_t begin = end; begin-- > k - 1;) {
          cost += sizes.layers[static_cast<size_t>(layers.begin) + begin];
          if (best_[k - 1][begin] == kNone || !sizes.CanBegin(layers.begin + static_cast<int>(begin))) continue;
          const uint64_t share = std::max(best_[k - 1][begin], cost);
          if (share <= best_[k][end]) best_[k][end] = share, cut_[k][end] = begin;
        }
      }
    }
  }
  // kNone: there are not as many layers.
  uint64_t share(size_t ranges) const { return ranges < best_.size() ? best_[ranges].back() : kNone; }
  std::vector<LayerRange> Ranges(size_t ranges) const {
    std::vector<LayerRange> out(ranges);
    size_t end = best_[0].size() - 1;
    for (size_t k = ranges; k > 0; --k) {
      const size_t begin = cut_[k][end];
      out[k - 1] = {layers_.begin + static_cast<int>(begin), layers_.begin + static_cast<int>(end)};
      end = begin;
    }
    return out;
  }

 private:
  const LayerRange layers_;
  std::vector<std::vector<uint64_t>> best_;
  std::vector<std::vector<size_t>> cut_;
};

// Into how many ranges a gap can be cut.
size_t MostRanges(const ModelSizes& sizes, LayerRange gap) {
  size_t most = 1;
  for (int i = gap.begin + 1; i < gap.end; ++i) most += sizes.CanBegin(i) ? 1 : 0;
  return most;
}

Status CheckBegins(const ModelSizes& sizes, const std::vector<Assignment>& assignments) {
  for (const Assignment& a : assignments) {
    if (a.layers.size() <= 0 || sizes.CanBegin(a.layers.begin)) continue;
    return InvalidArgument("no range can begin at layer {}: layers from it on read what earlier ones have made",
                           a.layers.begin);
  }
  return absl::OkStatus();
}

// `n` ranges that fill the gaps, each gap at least one, in order. REQUIRES: n >= gaps, and the gaps can be cut into n.
std::vector<LayerRange> FillGaps(const ModelSizes& sizes, const std::vector<LayerRange>& gaps, size_t n) {
  // best[g][k]: the smallest largest share of k ranges in the first g gaps; last[g][k]: how many are in gap g - 1.
  std::vector<BestCuts> cuts;
  std::vector<std::vector<uint64_t>> best(gaps.size() + 1, std::vector<uint64_t>(n + 1, kNone));
  std::vector<std::vector<size_t>> last(gaps.size() + 1, std::vector<size_t>(n + 1, 0));
  best[0][0] = 0;
  for (size_t g = 1; g <= gaps.size(); ++g) {
    cuts.emplace_back(sizes, gaps[g - 1], n - (gaps.size() - 1));
    for (size_t k = g; k <= n; ++k) {
      for (size_t here = 1; here <= k; ++here) {
        const uint64_t share = std::max(best[g - 1][k - here], cuts.back().share(here));
        if (share < best[g][k]) best[g][k] = share, last[g][k] = here;
      }
    }
  }
  std::vector<LayerRange> out;
  for (size_t g = gaps.size(); g > 0; --g) {
    const size_t here = last[g][n];
    const std::vector<LayerRange> ranges = cuts[g - 1].Ranges(here);
    out.insert(out.begin(), ranges.begin(), ranges.end());
    n -= here;
  }
  return out;
}

void SortByLayers(std::vector<Assignment>* assignments) {
  std::stable_sort(assignments->begin(), assignments->end(),
                   [](const Assignment& a, const Assignment& b) { return a.layers.begin < b.layers.begin; });
}

// The layers that nobody prefers; nullopt: preferences overlap. `preferred` is in ring order.
std::optional<std::vector<LayerRange>> Gaps(const std::vector<Assignment>& preferred, int num_layers) {
  std::vector<LayerRange> gaps;
  int end = 0;
  for (const Assignment& a : preferred) {
    if (a.layers.begin < end) return std::nullopt;
    if (a.layers.begin > end) gaps.push_back({end, a.layers.begin});
    end = a.layers.end;
  }
  if (end < num_layers) gaps.push_back({end, num_layers});
  return gaps;
}

}  // namespace

StatusOr<std::vector<Assignment>> BalanceLayers(const ModelSizes& sizes, const std::vector<PlanMember>& members) {
  const size_t layers = sizes.layers.size();
  if (members.empty()) return InvalidArgument("a plan needs at least one worker");
  if (members.size() > layers) {
    return InvalidArgument("{} for {}: each needs at least one", Counted(members.size(), "worker"),
                           Counted(layers, "layer"));
  }
  std::vector<Assignment> out;
  std::vector<const PlanMember*> others;
  for (const PlanMember& m : members) {
    if (m.preference) {
      out.push_back({m.name, m.address, *m.preference});
    } else {
      others.push_back(&m);
    }
  }
  SortByLayers(&out);
  if (others.empty()) {
    const Plan plan{.num_layers = sizes.num_layers(), .stages = MakeStages(out)};
    GYRE_RETURN_IF_ERROR(plan.Validate());
    GYRE_RETURN_IF_ERROR(CheckBegins(sizes, out));
    return out;
  }
  std::optional<std::vector<LayerRange>> gaps = Gaps(out, sizes.num_layers());
  const bool whole =
      gaps && std::all_of(gaps->begin(), gaps->end(), [&](LayerRange g) { return sizes.CanBegin(g.begin); });
  if (!whole || gaps->size() > others.size() || !CheckBegins(sizes, out).ok()) {
    gaps = {{0, sizes.num_layers()}};
    out.clear();
    others.clear();
    for (const PlanMember& m : members) others.push_back(&m);
  }
  size_t left = 0;
  for (LayerRange gap : *gaps) left += MostRanges(sizes, gap);
  const std::vector<LayerRange> ranges = FillGaps(sizes, *gaps, std::min(left, others.size()));
  for (size_t i = 0; i < ranges.size(); ++i) out.push_back({others[i]->name, others[i]->address, ranges[i]});
  SortByLayers(&out);
  return out;
}

namespace {

constexpr size_t kMostPlaced = 16;  // members among which one has its place chosen

// The bytes that members have to load: the most of one of them, then of all. Members load at the same time.
std::pair<uint64_t, uint64_t> BytesToLoad(const ModelSizes& sizes, const std::vector<PlanMember>& members) {
  const StatusOr<std::vector<Assignment>> shares = BalanceLayers(sizes, members);
  if (!shares.ok()) return {kNone, kNone};
  uint64_t most = 0, all = 0;
  for (const Assignment& a : *shares) {
    const auto m = std::find_if(members.begin(), members.end(),
                                [&a](const PlanMember& member) { return member.name == a.worker; });
    const LayerRange& held = m->holds;
    const LayerRange here{std::max(a.layers.begin, held.begin), std::min(a.layers.end, held.end)};
    const uint64_t bytes = RangeBytes(sizes, a.layers) - (here.size() > 0 ? RangeBytes(sizes, here) : 0);
    most = std::max(most, bytes);
    all += bytes;
  }
  return {most, all};
}

}  // namespace

std::vector<PlanMember> OrderByHeld(const ModelSizes& sizes, const std::vector<PlanMember>& members) {
  std::vector<PlanMember> out, others;
  for (const PlanMember& m : members) (m.holds.size() > 0 ? out : others).push_back(m);
  if (out.empty()) return members;
  std::stable_sort(out.begin(), out.end(), [](const PlanMember& a, const PlanMember& b) {
    return a.holds.begin + a.holds.end < b.holds.begin + b.holds.end;
  });
  for (const PlanMember& m : others) {
    size_t best = out.size();
    std::pair<uint64_t, uint64_t> least = {kNone, kNone};
    for (size_t place = out.size() + 1; place-- > 0 && members.size() <= kMostPlaced;) {
      std::vector<PlanMember> with = out;
      with.insert(with.begin() + static_cast<std::ptrdiff_t>(place), m);
      if (const auto bytes = BytesToLoad(sizes, with); bytes < least) least = bytes, best = place;
    }
    out.insert(out.begin() + static_cast<std::ptrdiff_t>(best), m);
  }
  return out;
}

Status NoSuchWorker(const std::string& name, const std::vector<PlanMember>& members) {
  std::string names;
  for (const PlanMember& m : members) names += (names.empty() ? "" : ", ") + m.name;
  return NotFound("no worker '{}'; there are {}", name, names.empty() ? "none" : names);
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
        if (!known) return NoSuchWorker(part.name, members);
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
        return InvalidArgument("{} for {}: nobody is left for {}", Counted(parts.size(), "range"),
                               Counted(members.size(), "worker"), LayersText(part.layers));
      }
      member = rest[next++];
    } else {
      member =
          &*std::find_if(members.begin(), members.end(), [&part](const PlanMember& m) { return m.name == part.name; });
    }
    if (member->drained) return FailedPrecondition("{} is drained: it gets no layers before an undrain", member->name);
    out.push_back({member->name, member->address, part.layers});
  }
  SortByLayers(&out);
  GYRE_RETURN_IF_ERROR(CheckBegins(sizes, out));
  return out;
}

}  // namespace gyre
