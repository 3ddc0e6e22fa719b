// Heads of answers that carry a part of a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "http_client/http_client.h"
#include "hub/download_policy.h"

namespace gyre {

// "bytes 0-9/100" and "bytes */100". A part that is missing or invalid is left out.
struct ContentRange {
  std::optional<ByteRange> range;
  std::optional<uint64_t> total;
};
ContentRange ParseContentRange(const std::string& text);

// A number of seconds, or `RateLimit: "api";r=0;t=55`; a date is not read. nullopt = none is given.
std::optional<Duration> RetryAfter(const HttpHead& head);

// A strong ETag; "" = none.
std::string StrongEtag(const HttpHeaders& headers);

// `refusal` is left OK.
RangeAnswer ReadRangeAnswer(const HttpHead& head);

// The value of a Range header.
std::string RangeHeader(ByteRange range);

}  // namespace gyre
