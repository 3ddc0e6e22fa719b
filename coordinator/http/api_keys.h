// The file of API keys, with the role of each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"
#include "coordinator/http/exchange.h"

namespace gyre::http {

// Immutable once made, so any thread may look keys up. Keys are kept as SHA-256 only.
class ApiKeys {
 public:
  struct Entry {
    std::string name;
    Role role = Role::kUser;
    uint64_t tenant = 0;  // keys of one name share it; never 0, and the same after a reload
    Hash256 hash{};
  };

  // One key per line: NAME KEY [user|admin]; # at the beginning of a line or behind a space begins a comment.
  // kInvalidArgument with `where` and the line, never with the key.
  static StatusOr<ApiKeys> Parse(std::string_view text, const std::string& where);
  // kNotFound: the file can't be read. kInvalidArgument: others on this machine may read it, too.
  static StatusOr<ApiKeys> Load(const std::string& path);

  // nullptr: no such key. Takes the same time for every key.
  const Entry* Find(std::string_view key) const;
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

// The key in a request: "Authorization: Bearer KEY", else "x-api-key: KEY". nullopt: none.
std::optional<std::string_view> KeyOf(const HttpRequest& request);

}  // namespace gyre::http
