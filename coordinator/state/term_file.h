// The last term of a state's folder, beside the database and without it: a database that lost its last writes must not
// make the term fall, as workers refuse a coordinator with a lower term than the one that they know.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace gyre {

struct KeptTerm {
  uint64_t cluster_id = 0, term = 0;
  bool operator==(const KeptTerm&) const = default;
};

std::string EncodeTerm(const KeptTerm& kept);
// nullopt: these are not the bytes of EncodeTerm.
std::optional<KeptTerm> DecodeTerm(std::string_view text);

// Reads DIR/term. nullopt: there is none. kDataLoss: it is damaged.
StatusOr<std::optional<KeptTerm>> ReadTerm(const std::string& folder);
// Replaces it, with fsync. Errors as FileError.
Status WriteTerm(const std::string& folder, const KeptTerm& kept);

}  // namespace gyre
