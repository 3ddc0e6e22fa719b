#include "hub/range_answer.h"

#include <charconv>
#include <string_view>

namespace gyre {
namespace {

// nullopt: not digits alone, or too many of them.
std::optional<uint64_t> Number(std::string_view text) {
  uint64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return out;
}

}  // namespace

ContentRange ParseContentRange(const std::string& text) {
  ContentRange out;
  std::string_view rest = text;
  if (rest.substr(0, 6) != "bytes ") return out;
  rest.remove_prefix(6);
  const size_t slash = rest.find('/');
  if (slash == std::string_view::npos) return out;
  out.total = Number(rest.substr(slash + 1));
  const std::string_view span = rest.substr(0, slash);
  const size_t dash = span.find('-');
  if (dash == std::string_view::npos) return out;
  const std::optional<uint64_t> first = Number(span.substr(0, dash)), last = Number(span.substr(dash + 1));
  if (first.has_value() && last.has_value() && *first <= *last && *last < UINT64_MAX) {
    out.range = ByteRange{*first, *last + 1};
  }
  return out;
}

std::optional<Duration> RetryAfter(const HttpHead& head) {
  constexpr uint64_t kLongest = 1000000;
  std::optional<uint64_t> seconds = Number(head.retry_after);
  if (!seconds.has_value()) {
    const std::string limit = FindHeader(head.headers, "ratelimit");
    const size_t at = limit.find(";t=");
    if (at != std::string::npos) {
      const size_t end = limit.find_first_not_of("0123456789", at + 3);
      seconds = Number(std::string_view(limit).substr(at + 3, end == std::string::npos ? end : end - at - 3));
    }
  }
  if (!seconds.has_value() || *seconds > kLongest) return std::nullopt;
  return std::chrono::seconds(*seconds);
}

std::string StrongEtag(const HttpHeaders& headers) {
  const std::string etag = FindHeader(headers, "etag");
  return etag.size() > 2 && etag.front() == '"' && etag.size() < 1000 ? etag : "";
}

RangeAnswer ReadRangeAnswer(const HttpHead& head) {
  RangeAnswer out{.code = head.code, .etag = StrongEtag(head.headers), .retry_after = RetryAfter(head)};
  if (head.code == 200) {
    out.total = Number(FindHeader(head.headers, "content-length"));
  } else {
    const ContentRange range = ParseContentRange(FindHeader(head.headers, "content-range"));
    out.range = range.range;
    out.total = range.total;
  }
  return out;
}

std::string RangeHeader(ByteRange range) { return fmt::format("bytes={}-{}", range.begin, range.end - 1); }

}  // namespace gyre
