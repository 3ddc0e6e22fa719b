// The `id` fields of a stream of server-sent events that can be reattached (docs/restart.md). They count the events of
// each choice, and of the stream as a whole, so that a client that has seen some of them gets only the others.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "coordinator/http/exchange.h"

namespace gyre::http {

// Written as STREAM:W.C0.C1..., with the number of events of the whole and of each choice up to this one.
class EventIds {
 public:
  // Events have no ids.
  EventIds() = default;
  // A new stream.
  EventIds(std::string stream, size_t choices) : stream_(std::move(stream)), sent_(choices + 1), seen_(choices + 1) {}
  // From a Last-Event-ID: events up to that one are left out. kInvalidArgument: it is no such id.
  static StatusOr<EventIds> Parse(std::string_view last);

  bool on() const { return !stream_.empty(); }
  const std::string& stream() const { return stream_; }
  size_t choices() const { return seen_.empty() ? 0 : seen_.size() - 1; }
  // The reattach_id of a choice's request.
  std::string RequestId(size_t choice) const;

  // `events`: complete ones, each of which ends with an empty line: the next events of the choice or of the stream.
  void AppendChoice(size_t choice, std::string_view events, std::string* out) { Append(choice + 1, events, out); }
  void AppendWhole(std::string_view events, std::string* out) { Append(0, events, out); }

 private:
  void Append(size_t part, std::string_view events, std::string* out);

  std::string stream_;
  std::vector<uint64_t> sent_, seen_;  // the whole, then each choice
};

// The header Last-Event-ID; nullptr: there is none.
const std::string* LastEventId(const HttpRequest& request);
// The name of the answer to this request; an answer that takes a stream up keeps the earlier name.
std::string AnswerId(const HttpRequest& request);

}  // namespace gyre::http
