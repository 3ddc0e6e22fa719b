#include "hub/cached_model.h"

#include <algorithm>
#include <boost/json.hpp>
#include <numeric>
#include <set>

#include "base/describe_bytes.h"
#include "base/sha256.h"
#include "hub/choose_files.h"
#include "hub/file_names.h"
#include "hub/quant_name.h"

namespace gyre {
namespace {

constexpr size_t kCommitShown = 12;  // digits
constexpr size_t kCommitFewest = 7;  // digits that may stand for a commit
constexpr int64_t kManifestVersion = 1;
constexpr uint64_t kMostBytes = uint64_t{1} << 60;

bool IsHash(const std::string& text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

// Whether a path stays below the folder to which it is relative.
bool StaysBelow(const std::string& path) {
  if (path.empty() || path[0] == '/' || !IsPrintable(path)) return false;
  const std::string slashed = "/" + path + "/";
  return slashed.find("//") == path.npos && slashed.find("/./") == path.npos && slashed.find("/../") == path.npos;
}

std::optional<std::string> Text(const boost::json::object& o, const char* key) {
  const boost::json::value* v = o.if_contains(key);
  if (v == nullptr || !v->is_string()) return std::nullopt;
  return std::string(v->get_string().data(), v->get_string().size());
}

std::optional<int64_t> Whole(const boost::json::object& o, const char* key) {
  const boost::json::value* v = o.if_contains(key);
  if (v == nullptr || !v->is_int64() || v->get_int64() < 0) return std::nullopt;
  return v->get_int64();
}

std::optional<CachedFile> DecodeFile(const boost::json::value& v) {
  if (!v.is_object()) return std::nullopt;
  const boost::json::object& o = v.get_object();
  const auto path = Text(o, "path"), sha256 = Text(o, "sha256"), git = Text(o, "git_sha1");
  const auto size = Whole(o, "size");
  if (!path || !sha256 || !git || !size || !StaysBelow(*path)) return std::nullopt;
  if (!sha256->empty() && !IsHash(*sha256, 64)) return std::nullopt;
  return CachedFile{.path = *path, .size = static_cast<uint64_t>(*size), .sha256 = *sha256, .git_sha1 = *git};
}

bool IsMain(const std::string& revision) { return revision.empty() || revision == "main"; }

bool MatchesFile(const CachedModel& model, const std::string& file) {
  return std::any_of(model.files.begin(), model.files.end(), [&](const CachedFile& f) { return f.path == file; });
}

}  // namespace

uint64_t CachedModel::bytes() const {
  return std::accumulate(files.begin(), files.end(), uint64_t{0},
                         [](uint64_t sum, const CachedFile& f) { return std::min(sum + f.size, kMostBytes); });
}

std::string EncodeModel(const CachedModel& model) {
  boost::json::array files;
  for (const CachedFile& f : model.files) {
    files.push_back({{"path", f.path}, {"size", f.size}, {"sha256", f.sha256}, {"git_sha1", f.git_sha1}});
  }
  const boost::json::object root{{"version", kManifestVersion}, {"name", model.name},         {"repo", model.repo},
                                 {"revision", model.revision},  {"commit", model.commit},     {"type", model.type},
                                 {"open", model.open},          {"complete", model.complete}, {"pulled", model.pulled},
                                 {"files", std::move(files)}};
  return boost::json::serialize(root) + "\n";
}

std::optional<CachedModel> DecodeModel(const std::string& text) {
  boost::json::error_code error;
  const boost::json::value v = boost::json::parse(text, error);
  if (error || !v.is_object()) return std::nullopt;
  const boost::json::object& o = v.get_object();
  const auto name = Text(o, "name"), repo = Text(o, "repo"), revision = Text(o, "revision"), commit = Text(o, "commit"),
             type = Text(o, "type"), open = Text(o, "open");
  const auto pulled = Whole(o, "pulled"), version = Whole(o, "version");
  const boost::json::value* const complete = o.if_contains("complete");
  const boost::json::value* const files = o.if_contains("files");
  if (!name || !repo || !revision || !commit || !type || !open || !pulled || version != kManifestVersion ||
      complete == nullptr || !complete->is_bool() || files == nullptr || !files->is_array() ||
      (!open->empty() && !StaysBelow(*open))) {
    return std::nullopt;
  }
  CachedModel out{.name = *name,
                  .repo = *repo,
                  .revision = *revision,
                  .commit = *commit,
                  .type = *type,
                  .open = *open,
                  .complete = complete->get_bool(),
                  .pulled = *pulled};
  for (const boost::json::value& file : files->get_array()) {
    std::optional<CachedFile> f = DecodeFile(file);
    if (!f) return std::nullopt;
    out.files.push_back(*std::move(f));
  }
  return out;
}

std::string ModelId(const CachedModel& model, const std::string& url) {
  constexpr size_t kDigits = 16, kMostShown = 160;
  std::string shown = model.repo.empty() ? FileOfUrl(url) : model.repo;
  shown = shown.substr(0, kMostShown);
  for (char& c : shown) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '.') c = '_';
  }
  if (!shown.empty() && shown[0] == '.') shown[0] = '_';
  return shown + "-" +
         Hex(Sha256(model.repo + "\n" + url + "\n" + model.commit + "\n" + model.open)).substr(0, kDigits);
}

std::vector<std::string> NamesToType(const std::vector<CachedModel>& models) {
  std::vector<std::string> out;
  for (const CachedModel& m : models) {
    std::string name = m.name;
    const bool newer = std::any_of(models.begin(), models.end(), [&](const CachedModel& other) {
      return other.name == m.name && IsMain(other.revision) && other.id != m.id &&
             (other.pulled > m.pulled || (other.pulled == m.pulled && other.id > m.id));
    });
    if (!m.repo.empty() && !IsMain(m.revision)) {
      name += "@" + m.revision;
    } else if (!m.repo.empty() && newer) {
      name += "@" + m.commit.substr(0, kCommitShown);
    }
    out.push_back(std::move(name));
  }
  return out;
}

bool Matches(const CachedModel& model, const ModelReference& name) {
  if (name.kind == ModelReference::Kind::kUrl) return model.repo.empty() && model.name == name.url;
  if (name.kind != ModelReference::Kind::kRepo || model.repo.empty() || model.repo != name.repo) return false;
  if (!name.file.empty() && !MatchesFile(model, name.file)) return false;
  if (!name.quant.empty() && (model.type == "safetensors" || !SameQuant(model.type, name.quant))) return false;
  if (name.revision.empty() || name.revision == model.revision) return true;
  return name.revision.size() >= kCommitFewest && model.commit.rfind(name.revision, 0) == 0;
}

const CachedModel* FindModel(const std::vector<CachedModel>& models, const ModelReference& name) {
  std::vector<const CachedModel*> found;
  for (const CachedModel& m : models) {
    if (m.complete && Matches(m, name)) found.push_back(&m);
  }
  const auto keep = [&found](const auto& wanted) {
    std::vector<const CachedModel*> kept;
    std::copy_if(found.begin(), found.end(), std::back_inserter(kept), wanted);
    if (!kept.empty()) found = kept;
  };
  if (name.revision.empty()) keep([](const CachedModel* m) { return IsMain(m->revision); });
  if (name.quant.empty() && name.file.empty()) {
    keep([](const CachedModel* m) { return m->type != "safetensors"; });
    std::vector<std::string> types;
    for (const CachedModel* m : found) types.push_back(m->type);
    if (const size_t nearest = NearestQuant(types, kDefaultQuant); nearest < types.size()) {
      keep([&](const CachedModel* m) { return m->type == types[nearest]; });
    }
  }
  if (!name.quant.empty()) {  // as it is written, before one with a publisher's prefix
    keep([&](const CachedModel* m) { return Lowercase(m->type) == Lowercase(name.quant); });
  }
  const auto newest = std::max_element(found.begin(), found.end(), [](const CachedModel* a, const CachedModel* b) {
    return std::tie(a->pulled, a->id) < std::tie(b->pulled, b->id);
  });
  return newest == found.end() ? nullptr : *newest;
}

std::string BlobName(const CachedModel& model, const CachedFile& file) {
  return !file.sha256.empty() ? file.sha256 : "pending-" + Hex(Sha256(model.id + "\n" + file.path));
}

StatusOr<std::vector<size_t>> ModelsToRemove(const std::vector<CachedModel>& models, const std::vector<bool>& in_use,
                                             const std::map<std::string, uint64_t>& blobs,
                                             const std::vector<std::string>& kept, uint64_t limit) {
  std::map<std::string, size_t> users;  // of each blob
  for (const std::string& blob : kept) ++users[blob];
  std::vector<std::set<std::string>> own(models.size());
  for (size_t i = 0; i < models.size(); ++i) {
    for (const CachedFile& f : models[i].files) own[i].insert(BlobName(models[i], f));
    for (const std::string& blob : own[i]) ++users[blob];
  }
  uint64_t sum = 0;
  for (const auto& [name, size] : blobs) sum += size;
  std::vector<size_t> order(models.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return models[a].used < models[b].used; });
  std::vector<size_t> out;
  for (const size_t i : order) {
    if (sum <= limit) break;
    if (in_use[i]) continue;
    out.push_back(i);
    for (const std::string& blob : own[i]) {
      const auto it = blobs.find(blob);
      if (--users[blob] == 0 && it != blobs.end()) sum -= it->second;
    }
  }
  if (sum <= limit) return out;
  return ResourceExhausted("{} are needed beside what is in use, and the limit is {}", DescribeBytes(sum),
                           DescribeBytes(limit));
}

}  // namespace gyre
