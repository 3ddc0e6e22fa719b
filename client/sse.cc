#include "client/sse.h"

namespace gyre {

Status SseParser::Feed(std::string_view bytes, const OnEvent& on_event) {
  while (!bytes.empty()) {
    if (after_cr_) {
      after_cr_ = false;
      if (bytes[0] == '\n') {
        bytes.remove_prefix(1);
        continue;
      }
    }
    const size_t end = bytes.find_first_of("\r\n");
    const std::string_view part = bytes.substr(0, end);
    if (line_.size() + data_.size() + part.size() > max_event_bytes_) {
      return ResourceExhausted("an event of the stream is longer than {} bytes", max_event_bytes_);
    }
    line_ += part;
    if (end == std::string_view::npos) return absl::OkStatus();
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    TakeLine(on_event);
  }
  return absl::OkStatus();
}

void SseParser::Finish(const OnEvent& on_event) {
  if (!line_.empty()) TakeLine(on_event);
  Dispatch(on_event);
}

void SseParser::TakeLine(const OnEvent& on_event) {
  std::string_view line = line_;
  if (first_line_ && line.substr(0, 3) == "\xEF\xBB\xBF") line.remove_prefix(3);
  first_line_ = false;
  if (line.empty()) {
    Dispatch(on_event);
  } else if (line[0] != ':') {
    const size_t colon = line.find(':');
    const std::string_view field = line.substr(0, colon);
    std::string_view value = colon == std::string_view::npos ? std::string_view() : line.substr(colon + 1);
    if (!value.empty() && value[0] == ' ') value.remove_prefix(1);
    if (field == "event") name_ = value;
    // Some servers write an error so, although it is no field of an event.
    if (field == "error") name_ = field;
    if (field == "data" || field == "error") {
      if (has_data_) data_ += '\n';
      data_ += value;
      has_data_ = true;
    }
  }
  line_.clear();
}

void SseParser::Dispatch(const OnEvent& on_event) {
  if (!data_.empty()) on_event(name_, data_);
  data_.clear();
  name_.clear();
  has_data_ = false;
}

}  // namespace gyre
