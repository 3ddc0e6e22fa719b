#include "hub/choose_files.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "hub/file_names.h"
#include "hub/quant_name.h"

namespace gyre {
namespace {

constexpr std::string_view kGguf = ".gguf";
constexpr size_t kMaxParts = 99999;
constexpr size_t kMaxListed = 12;  // names in one message

std::string List(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size() && i < kMaxListed; ++i) out += (i > 0 ? ", " : "") + names[i];
  if (names.size() > kMaxListed) out += fmt::format(" and {} more", names.size() - kMaxListed);
  return out;
}

// "NAME-00002-of-00003.EXT": the place where the tail begins, and its numbers.
struct PartName {
  size_t at = 0;  // of "-00002"
  size_t number = 0, count = 0;
};

bool ReadPart(const std::string& path, std::string_view extension, PartName* out) {
  constexpr size_t kNumbers = sizeof "-00002-of-00003" - 1;
  if (path.size() <= kNumbers + extension.size() || !HasEnding(Lowercase(path), extension)) return false;
  out->at = path.size() - extension.size() - kNumbers;
  const auto number = [&](size_t at) {
    size_t v = 0;
    for (size_t i = at; i < at + 5; ++i) {
      if (path[i] < '0' || path[i] > '9') return size_t{0};
      v = 10 * v + static_cast<size_t>(path[i] - '0');
    }
    return v;
  };
  if (path[out->at] != '-' || path.compare(out->at + 6, 4, "-of-") != 0) return false;
  out->number = number(out->at + 1);
  out->count = number(out->at + 10);
  return out->number >= 1 && out->number <= out->count && out->count <= kMaxParts;
}

std::string PartPath(const std::string& path, const PartName& part, size_t number) {
  return fmt::format("{}-{:05}-of-{:05}{}", path.substr(0, part.at), number, part.count,
                     path.substr(path.size() - kGguf.size()));
}

// One model of a repository: a GGUF file, or the parts of one.
struct GgufModel {
  std::string path;  // of the file, or of the first part
  std::string quant;
  std::vector<RepoFile> files;
  std::vector<std::string> missing;  // parts
};

std::vector<GgufModel> GgufModels(const std::vector<RepoFile>& files, std::vector<std::string>* left_out) {
  std::map<std::string, const RepoFile*> by_path;
  for (const RepoFile& f : files) {
    const std::string base = Lowercase(FileName(f.path));
    if (!HasEnding(base, kGguf) || !IsPrintable(f.path)) continue;
    if (base.find("mmproj") != base.npos || base.find("imatrix") != base.npos) {
      left_out->push_back(f.path);
    } else {
      by_path.emplace(f.path, &f);
    }
  }
  std::vector<GgufModel> out;
  std::set<std::string> done;
  for (const auto& [path, file] : by_path) {
    PartName part;
    const bool split = ReadPart(path, kGguf, &part);
    GgufModel model{.path = split ? PartPath(path, part, 1) : path};
    if (!done.insert(model.path).second) continue;
    model.quant = QuantOf(model.path);
    if (!split) model.files.push_back(*file);
    // A name may claim any number of parts, so the list of missing ones is limited.
    for (size_t i = 1; i <= part.count && model.missing.size() <= kMaxListed; ++i) {
      const auto it = by_path.find(PartPath(path, part, i));
      if (it == by_path.end()) {
        model.missing.push_back(PartPath(path, part, i));
      } else {
        model.files.push_back(*it->second);
      }
    }
    out.push_back(std::move(model));
  }
  return out;
}

std::vector<std::string> Quants(const std::vector<GgufModel>& models) {
  std::vector<std::string> out;
  for (const GgufModel& m : models) {
    const std::string& name = m.quant.empty() ? m.path : m.quant;
    if (std::find(out.begin(), out.end(), name) == out.end()) out.push_back(name);
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return BitsOf(a) < BitsOf(b); });
  return out;
}

// The only one of `models` with the quantization; if several differ only in a prefix, the one that is written
// exactly as `quant`.
StatusOr<const GgufModel*> Only(const std::vector<GgufModel>& models, const std::string& quant,
                                const std::string& repo) {
  std::vector<const GgufModel*> exact, same;
  for (const GgufModel& m : models) {
    if (Lowercase(m.quant) == Lowercase(quant)) exact.push_back(&m);
    if (SameQuant(m.quant, quant)) same.push_back(&m);
  }
  const std::vector<const GgufModel*>& found = exact.empty() ? same : exact;
  if (found.empty()) return static_cast<const GgufModel*>(nullptr);
  if (found.size() == 1) return found[0];
  std::vector<std::string> paths;
  for (const GgufModel* m : found) paths.push_back(m->path);
  return InvalidArgument("{} has several models as {}: {}; name the file, as {}:{}", repo,
                         quant.empty() ? "GGUF files" : quant, List(paths), repo, paths[0]);
}

StatusOr<const GgufModel*> ChooseGguf(const std::vector<GgufModel>& models, const ModelReference& name,
                                      std::vector<std::string>* notes) {
  if (!name.file.empty()) {
    PartName part;
    const std::string first = ReadPart(name.file, kGguf, &part) ? PartPath(name.file, part, 1) : name.file;
    for (const GgufModel& m : models) {
      if (m.path == first) return &m;
    }
    std::vector<std::string> paths;
    for (const GgufModel& m : models) paths.push_back(m.path);
    return NotFound("{} has no file {}; there are {}", name.repo, name.file, List(paths));
  }
  const std::vector<std::string> quants = Quants(models);
  if (!name.quant.empty()) {
    GYRE_ASSIGN_OR_RETURN(const GgufModel* found, Only(models, name.quant, name.repo));
    if (found != nullptr) return found;
    const size_t nearest = NearestQuant(quants, name.quant);
    return NotFound("{} has no {}; there {} {}{}", name.repo, name.quant, quants.size() == 1 ? "is" : "are",
                    List(quants),
                    nearest < quants.size() ? fmt::format("; the nearest is {}:{}", name.repo, quants[nearest]) : "");
  }
  if (models.size() == 1) {
    const std::string& quant = models[0].quant;
    if (!quant.empty() && !SameQuant(quant, kDefaultQuant)) {
      notes->push_back(fmt::format("{} has no {}: {} is all that is there", name.repo, kDefaultQuant, quant));
    }
    return &models[0];
  }
  const size_t nearest = NearestQuant(quants, kDefaultQuant);
  const std::string quant = nearest < quants.size() ? quants[nearest] : "";
  GYRE_ASSIGN_OR_RETURN(const GgufModel* found, Only(models, quant, name.repo));
  if (!SameQuant(quant, kDefaultQuant)) {
    notes->push_back(
        fmt::format("{} has no {}: {} is the nearest of {}", name.repo, kDefaultQuant, quant, List(quants)));
  }
  return found;
}

// The files beside the weights that model/hf reads from a folder; the first one is required.
constexpr std::string_view kFolderFiles[] = {
    "config.json",           "generation_config.json",  "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja",   "chat_template.json",      "additional_chat_templates/tool_use.jinja"};
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::string_view kSafetensors = ".safetensors";

// The shards of an index. Their names follow a pattern, so the index need not be downloaded to choose them.
StatusOr<std::vector<RepoFile>> Shards(const std::map<std::string, const RepoFile*>& top, const std::string& repo) {
  std::vector<RepoFile> out;
  std::set<size_t> counts;
  for (const auto& [path, file] : top) {
    PartName part;
    if (path.rfind("model", 0) != 0 || !ReadPart(path, kSafetensors, &part)) continue;
    counts.insert(part.count);
    out.push_back(*file);
  }
  if (out.empty()) {  // an index over files with other names
    for (const auto& [path, file] : top) {
      if (path.rfind("model", 0) == 0 && HasEnding(path, kSafetensors)) out.push_back(*file);
    }
    if (out.empty()) return FailedPrecondition("{} has {}, but no shards", repo, kIndex);
    return out;
  }
  if (counts.size() > 1 || out.size() != *counts.begin()) {
    return FailedPrecondition("{} has {} of the {} shards of its safetensors: has its upload ended?", repo, out.size(),
                              *counts.rbegin());
  }
  return out;
}

StatusOr<FileChoice> ChooseSafetensors(const RepoListing& listing, const ModelReference& name) {
  std::map<std::string, const RepoFile*> top;
  bool adapter = false, pickles = false, anywhere = false;
  for (const RepoFile& f : listing.files) {
    anywhere |= HasEnding(f.path, kSafetensors);
    pickles |= HasEnding(f.path, ".bin") || HasEnding(f.path, ".pt") || HasEnding(f.path, ".pth");
    const bool read = std::find(std::begin(kFolderFiles), std::end(kFolderFiles), f.path) != std::end(kFolderFiles);
    if ((f.path.find('/') != f.path.npos && !read) || !IsPrintable(f.path)) continue;
    adapter |= f.path == "adapter_config.json";
    top.emplace(f.path, &f);
  }
  FileChoice out{.type = "safetensors"};
  if (top.count(std::string(kIndex)) > 0) {
    out.files.push_back(*top.at(std::string(kIndex)));
    GYRE_ASSIGN_OR_RETURN(const std::vector<RepoFile> shards, Shards(top, name.repo));
    out.files.insert(out.files.end(), shards.begin(), shards.end());
  } else if (const auto one = top.find("model.safetensors"); one != top.end()) {
    out.files.push_back(*one->second);
  } else if (adapter) {
    return NotFound("{} is an adapter, not a whole model; name the model that it was made from", name.repo);
  } else {
    return NotFound("{} has no GGUF file and no model.safetensors{}", name.repo,
                    pickles || anywhere ? ": its weights are in a form that Gyre does not read; look for a repository "
                                          "of the same model with GGUF in its name"
                                        : "");
  }
  if (top.count(std::string(kFolderFiles[0])) == 0) {
    return NotFound("{} has safetensors without a {}", name.repo, kFolderFiles[0]);
  }
  std::vector<RepoFile> small;
  for (const std::string_view file : kFolderFiles) {
    if (const auto it = top.find(std::string(file)); it != top.end()) small.push_back(*it->second);
  }
  out.files.insert(out.files.begin(), small.begin(), small.end());
  return out;
}

}  // namespace

uint64_t TotalBytes(const std::vector<RepoFile>& files) {
  uint64_t sum = 0;
  for (const RepoFile& f : files) {
    if (__builtin_add_overflow(sum, f.size, &sum)) return UINT64_MAX;
  }
  return sum;
}

std::vector<std::string> PartPaths(const std::string& path) {
  PartName part;
  if (!ReadPart(path, kGguf, &part)) return {path};
  std::vector<std::string> out;
  for (size_t i = 1; i <= part.count; ++i) out.push_back(PartPath(path, part, i));
  return out;
}

StatusOr<FileChoice> ChooseFiles(const RepoListing& listing, const ModelReference& name) {
  std::vector<std::string> left_out;
  const std::vector<GgufModel> models = GgufModels(listing.files, &left_out);
  if (models.empty()) {
    if (!left_out.empty()) {
      return NotFound("{} has only {}, which is a part of a multimodal model", name.repo, List(left_out));
    }
    GYRE_ASSIGN_OR_RETURN(FileChoice out, ChooseSafetensors(listing, name));
    if (!name.quant.empty() || !name.file.empty()) {
      return NotFound("{} has no {}: it has safetensors; {} alone names them", name.repo,
                      name.file.empty() ? name.quant : name.file, name.repo);
    }
    return out;
  }
  FileChoice out;
  GYRE_ASSIGN_OR_RETURN(const GgufModel* model, ChooseGguf(models, name, &out.notes));
  if (!model->missing.empty()) {
    return FailedPrecondition("{}: parts of {} are missing: {}", name.repo, model->path, List(model->missing));
  }
  out.files = model->files;
  out.open = model->path;
  out.type = model->quant;
  if (!left_out.empty()) {
    out.notes.push_back(fmt::format("left out: {}; Gyre reads text only", List(left_out)));
  }
  return out;
}

}  // namespace gyre
