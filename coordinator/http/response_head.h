// The head of an answer, as bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "coordinator/http/exchange.h"

namespace gyre::http {

struct HeadExtras {
  std::string id;           // of the request
  std::string cors_origin;  // "" = not said
  bool close = false;       // the connection ends after it
  bool keep_alive_1_0 = false;
  bool chunked = false;  // the body comes in chunks
  std::optional<uint64_t> length;
};

// Whether an answer with this status has a body at all.
bool HasBody(int status);
// The head, up to its empty line. Control characters in values become spaces.
std::string FormatResponseHead(const HttpResponse& response, const HeadExtras& extras);

}  // namespace gyre::http
