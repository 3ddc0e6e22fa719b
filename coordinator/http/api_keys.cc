#include "coordinator/http/api_keys.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/files.h"
#include "fmt/core.h"

namespace gyre::http {
namespace {

constexpr size_t kShortestKey = 8, kLongestKey = 512, kLongestName = 64, kMostKeys = 10000;

bool IsVisible(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7F'; });
}

// A header's value must match a key exactly, but the client chooses the case and spaces of "Bearer".
bool StartsWithBearer(std::string_view value) {
  constexpr std::string_view kBearer = "bearer ";
  if (value.size() < kBearer.size()) return false;
  return std::equal(kBearer.begin(), kBearer.end(), value.begin(),
                    [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); });
}

// A # within a word belongs to it: a key may have one.
std::string WithoutComment(const std::string& line) {
  for (size_t at = line.find('#'); at != std::string::npos; at = line.find('#', at + 1)) {
    if (at == 0 || line[at - 1] == ' ' || line[at - 1] == '\t') return line.substr(0, at);
  }
  return line;
}

StatusOr<ApiKeys::Entry> ParseLine(const std::string& line, const std::string& where) {
  std::istringstream words(line);
  std::string name, key, role, more;
  words >> name >> key >> role >> more;
  if (key.empty() || !more.empty()) return InvalidArgument("{}: expected NAME KEY [user|admin]", where);
  if (name.size() > kLongestName || !IsVisible(name)) {
    return InvalidArgument("{}: a name has at most {} visible ASCII characters", where, kLongestName);
  }
  if (key.size() < kShortestKey || key.size() > kLongestKey || !IsVisible(key)) {
    return InvalidArgument("{}: the key of {} must have {} to {} visible ASCII characters", where, name, kShortestKey,
                           kLongestKey);
  }
  if (!role.empty() && role != "user" && role != "admin") {
    return InvalidArgument("{}: the role of {} must be user or admin", where, name);
  }
  ApiKeys::Entry entry;
  entry.name = name;
  entry.role = role == "admin" ? Role::kAdmin : Role::kUser;
  const auto name_hash = Sha256(name);
  std::memcpy(&entry.tenant, name_hash.data(), sizeof entry.tenant);
  entry.tenant = std::max<uint64_t>(entry.tenant, 1);
  entry.hash = Sha256(key);
  return entry;
}

}  // namespace

StatusOr<ApiKeys> ApiKeys::Parse(std::string_view text, const std::string& where) {
  ApiKeys keys;
  std::istringstream lines{std::string(text)};
  size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line = WithoutComment(line);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string here = fmt::format("{}:{}", where, number);
    GYRE_ASSIGN_OR_RETURN(Entry entry, ParseLine(line, here));
    for (const Entry& other : keys.entries_) {
      if (other.hash == entry.hash) return InvalidArgument("{}: {} has the same key", here, other.name);
    }
    keys.entries_.push_back(std::move(entry));
    if (keys.entries_.size() > kMostKeys) return InvalidArgument("{}: more than {} keys", here, kMostKeys);
  }
  if (keys.entries_.empty()) return InvalidArgument("{}: no keys in it; expected lines NAME KEY [user|admin]", where);
  return keys;
}

StatusOr<ApiKeys> ApiKeys::Load(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return NotFound("{}: {}", path, std::strerror(errno));
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad()) return NotFound("{}: it can't be read", path);
  GYRE_RETURN_IF_ERROR(CheckPrivate(path, "the API keys"));
  return Parse(text.str(), path);
}

const ApiKeys::Entry* ApiKeys::Find(std::string_view key) const {
  const auto hash = Sha256(key);
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(entry.hash.data(), hash.data(), hash.size()) == 0) found = &entry;
  }
  return found;
}

std::optional<std::string_view> KeyOf(const HttpRequest& request) {
  if (const std::string* value = request.Header("authorization"); value != nullptr && StartsWithBearer(*value)) {
    const size_t begin = value->find_first_not_of(' ', 7);
    if (begin != std::string::npos) return std::string_view(*value).substr(begin);
  }
  if (const std::string* value = request.Header("x-api-key")) return *value;
  return std::nullopt;
}

}  // namespace gyre::http
