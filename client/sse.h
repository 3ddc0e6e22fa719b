// A parser of server-sent events in a stream of bytes.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace gyre {

// Takes bytes as they come, in pieces of any size. Lines end with LF, CR or CRLF; comments are left out, and an
// event's data lines are joined by LF. A line "error: X" counts as the data X of an event "error". Not thread-safe.
class SseParser {
 public:
  // name: of the event, "" = none was given. data: never empty.
  using OnEvent = std::function<void(std::string_view name, std::string_view data)>;
  explicit SseParser(size_t max_event_bytes = size_t{16} << 20) : max_event_bytes_(max_event_bytes) {}

  // kResourceExhausted: an event or a line is longer than max_event_bytes; Feed may not be called any more.
  Status Feed(std::string_view bytes, const OnEvent& on_event);
  // Call it at the end of the stream: a server may end it without the empty line after the last event.
  void Finish(const OnEvent& on_event);

 private:
  void TakeLine(const OnEvent& on_event);
  void Dispatch(const OnEvent& on_event);

  const size_t max_event_bytes_;
  std::string line_, name_, data_;
  bool has_data_ = false;
  bool after_cr_ = false;  // an LF now belongs to the line's end before it
  bool first_line_ = true;
};

}  // namespace gyre
