#include "hub/model_name.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include "hub/file_names.h"

namespace gyre {
namespace {

constexpr size_t kMaxNameBytes = 96;  // of ORG and of REPO, as hubs have it
constexpr size_t kMaxRestBytes = 255;
constexpr char kExpected[] = "expected ORG/REPO, ORG/REPO:QUANT or ORG/REPO:QUANT@REVISION";

bool IsWordChar(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.'; }

// Whether the text can be an ORG or a REPO.
bool IsRepoPart(std::string_view part) {
  return !part.empty() && part.size() <= kMaxNameBytes && part[0] != '.' && part[0] != '-' &&
         part.find("..") == part.npos && std::all_of(part.begin(), part.end(), IsWordChar);
}

std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(at, begin), text.size());
    out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

bool IsRepo(const std::string& text) {
  const std::vector<std::string> parts = Split(text, '/');
  return parts.size() == 2 && IsRepoPart(parts[0]) && IsRepoPart(parts[1]);
}

// Whether the text can be a path within a repository, or a revision as refs/pr/1.
bool IsInnerPath(const std::string& text) {
  if (text.size() > kMaxRestBytes) return false;
  const std::vector<std::string> parts = Split(text, '/');
  return std::all_of(parts.begin(), parts.end(), [](const std::string& part) {
    return !part.empty() && part != "." && part != ".." && std::all_of(part.begin(), part.end(), [](char c) {
      return IsWordChar(c) || c == '+' || c == '(' || c == ')' || c == ' ' || c == '=';
    });
  });
}

bool NamesModelFile(const std::string& text) {
  return HasEnding(text, ".gguf") || HasEnding(text, ".bin") || HasEnding(text, ".safetensors");
}

bool IsUrl(const std::string& text) { return text.rfind("http://", 0) == 0 || text.rfind("https://", 0) == 0; }

std::string WithoutQuery(const std::string& url) { return url.substr(0, url.find_first_of("?#")); }

// Takes apart the path after the hub's address, if it is a page or a file of a repository.
bool TakeHubUrl(const std::string& url, const std::string& endpoint, ModelReference* name) {
  if (endpoint.empty() || url.rfind(endpoint + "/", 0) != 0) return false;
  std::string rest = WithoutQuery(url).substr(endpoint.size() + 1);
  while (!rest.empty() && rest.back() == '/') rest.pop_back();
  const std::vector<std::string> parts = Split(rest, '/');
  if (parts.size() < 2 || !IsRepo(parts[0] + "/" + parts[1])) return false;
  ModelReference out{.kind = ModelReference::Kind::kRepo, .repo = parts[0] + "/" + parts[1]};
  if (parts.size() > 2) {
    const bool file = parts[2] == "resolve" || parts[2] == "blob";
    if ((!file && parts[2] != "tree") || parts.size() < 4) return false;
    out.revision = parts[3];
    for (size_t i = 4; i < parts.size(); ++i) out.file += (i > 4 ? "/" : "") + parts[i];
    // A folder, or a text with escapes, is left to the server.
    if (file != !out.file.empty() || !IsInnerPath(out.revision) || (file && !IsInnerPath(out.file))) return false;
    if (file && !HasEnding(out.file, ".gguf")) return false;
  }
  *name = std::move(out);
  return true;
}

}  // namespace

StatusOr<ModelReference> ParseModelName(const std::string& text, bool is_path, const std::string& endpoint) {
  ModelReference name;
  if (is_path) return name;
  if (IsUrl(text)) {
    if (TakeHubUrl(text, endpoint, &name)) return name;
    name.kind = ModelReference::Kind::kUrl;
    name.url = text;
    if (FileOfUrl(text).empty()) return InvalidArgument("{}: the URL names no file", text);
    return name;
  }
  const std::string repo = text.substr(0, text.find_first_of(":@"));
  if (!IsRepo(repo) || (repo.size() == text.size() && NamesModelFile(text))) return name;
  name.kind = ModelReference::Kind::kRepo;
  name.repo = repo;
  const size_t at = text.find('@', repo.size());
  if (at != text.npos) {
    name.revision = text.substr(at + 1);
    if (!IsInnerPath(name.revision)) {
      return InvalidArgument("'{}': '{}' is no revision; {}", text, name.revision, kExpected);
    }
  }
  const std::string rest = text.substr(repo.size(), at == text.npos ? text.npos : at - repo.size());
  if (rest.empty()) return name;
  const std::string what = rest.substr(1);
  const bool file = HasEnding(what, ".gguf");
  if (file ? !IsInnerPath(what) : what.size() > kMaxNameBytes || !IsRepoPart(what)) {
    return InvalidArgument("'{}': '{}' is no quantization, as Q4_K_M, and no .gguf file; {}", text, what, kExpected);
  }
  (file ? name.file : name.quant) = what;
  return name;
}

std::string FormatModelName(const ModelReference& name) {
  if (name.kind == ModelReference::Kind::kUrl) return name.url;
  std::string out = name.repo;
  const std::string& what = name.file.empty() ? name.quant : name.file;
  if (!what.empty()) out += ":" + what;
  if (!name.revision.empty()) out += "@" + name.revision;
  return out;
}

std::string FileOfUrl(const std::string& url) {
  const std::string path = WithoutQuery(url);
  const size_t host = path.find("://");
  const size_t slash = path.rfind('/');
  if (host == path.npos || slash < host + 3) return "";
  return path.substr(slash + 1);
}

}  // namespace gyre
