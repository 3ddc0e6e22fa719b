#include "coordinator/http/event_ids.h"

#include <algorithm>
#include <charconv>

#include "coordinator/state/request_journal.h"
#include "fmt/format.h"

namespace gyre::http {
namespace {

constexpr size_t kMaxParts = 1 + 128;  // the whole, and so many choices

}  // namespace

StatusOr<EventIds> EventIds::Parse(std::string_view last) {
  const size_t colon = last.find(':');
  EventIds ids;
  ids.stream_ = last.substr(0, colon);
  bool fine = colon != std::string_view::npos && IsRequestId(ids.stream_);
  for (size_t at = colon; fine && at < last.size();) {
    const size_t begin = at + 1;
    uint64_t count = 0;
    const auto [end, error] = std::from_chars(last.data() + begin, last.data() + last.size(), count);
    at = static_cast<size_t>(end - last.data());
    fine = error == std::errc() && at > begin && (at == last.size() || last[at] == '.') && ids.seen_.size() < kMaxParts;
    ids.seen_.push_back(count);
  }
  if (!fine || ids.seen_.size() < 2) return InvalidArgument("Last-Event-ID is not the id of an event of this server");
  ids.sent_.resize(ids.seen_.size());
  return ids;
}

std::string EventIds::RequestId(size_t choice) const { return fmt::format("{}i{}", stream_, choice); }

void EventIds::Append(size_t part, std::string_view events, std::string* out) {
  if (!on()) {
    *out += events;
    return;
  }
  for (size_t begin = 0; begin < events.size();) {
    const size_t end = std::min(events.find("\n\n", begin), events.size() - 2) + 2;
    if (++sent_[part] > seen_[part]) {
      *out += "id: ";
      *out += stream_;
      // The client has seen the events that are left out, so they count.
      for (size_t i = 0; i < sent_.size(); ++i) {
        fmt::format_to(std::back_inserter(*out), "{}{}", i == 0 ? ':' : '.', std::max(sent_[i], seen_[i]));
      }
      *out += '\n';
      *out += events.substr(begin, end - begin);
    }
    begin = end;
  }
}

const std::string* LastEventId(const HttpRequest& request) { return request.Header("last-event-id"); }

std::string AnswerId(const HttpRequest& request) {
  const std::string* const last = LastEventId(request);
  if (last == nullptr) return request.id;
  const StatusOr<EventIds> ids = EventIds::Parse(*last);
  return ids.ok() ? CallOf(ids->stream()) : request.id;
}

}  // namespace gyre::http
