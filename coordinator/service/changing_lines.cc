#include "coordinator/service/changing_lines.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace gyre {
namespace {

namespace json = boost::json;

std::string_view View(json::string_view text) { return {text.data(), text.size()}; }

// The first line of the system prompt, made of fields "name=value;", as of Claude Code since 2.1.15:
// x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=8a3f1;
constexpr std::string_view kBillingLine = "x-anthropic-billing-header: ";
// The fields of it that are made of the request's content. Of the version only the fourth part is.
constexpr std::string_view kVersion = "cc_version", kVersionPart = "000", kHash = "cch", kHashValue = "00000";

// Counters in a line of their own; # stands for a number. They go behind the last message, where the model still reads
// them.
constexpr std::string_view kCounters[] = {
    "<total_tokens># tokens left</total_tokens>",
    "<system_warning>Token usage: #/#; # remaining</system_warning>",
};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameChar(char c) { return (c >= 'a' && c <= 'z') || c == '_'; }
bool IsValueChar(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '-' || c == '_';
}

bool HasShape(std::string_view line, std::string_view shape) {
  for (; !shape.empty(); shape.remove_prefix(1)) {
    if (shape.front() != '#') {
      if (!line.starts_with(shape.front())) return false;
      line.remove_prefix(1);
      continue;
    }
    const auto digits = std::find_if_not(line.begin(), line.end(), IsDigit) - line.begin();
    if (digits == 0) return false;
    line.remove_prefix(static_cast<size_t>(digits));
  }
  return line.empty();
}

// The value without what changes.
std::string ConstantValue(std::string_view name, std::string_view value) {
  if (name == kHash) return std::string(kHashValue);
  const size_t last = value.rfind('.');
  if (name != kVersion || std::count(value.begin(), value.end(), '.') != 3) return std::string(value);
  return std::string(value.substr(0, last + 1)) + std::string(kVersionPart);
}

// The billing line with constant fields; "": it is none.
std::string ConstantBillingLine(std::string_view line) {
  if (!line.starts_with(kBillingLine)) return {};
  std::string out(kBillingLine);
  line.remove_prefix(kBillingLine.size());
  for (bool first = true; first || !line.empty(); first = false) {
    if (!first && line.starts_with(' ')) line.remove_prefix(1);
    const auto name_end = std::find_if_not(line.begin(), line.end(), IsNameChar) - line.begin();
    const std::string_view name = line.substr(0, static_cast<size_t>(name_end));
    line.remove_prefix(name.size());
    if (name.empty() || !line.starts_with('=')) return {};
    line.remove_prefix(1);
    const auto value_end = std::find_if_not(line.begin(), line.end(), IsValueChar) - line.begin();
    const std::string_view value = line.substr(0, static_cast<size_t>(value_end));
    line.remove_prefix(value.size());
    if (value.empty() || !line.starts_with(';')) return {};
    line.remove_prefix(1);
    if (!first) out += ' ';
    out.append(name).append("=").append(ConstantValue(name, value)).append(";");
  }
  return out;
}

// The text without its counters, and these.
struct Parted {
  std::string text, counters;
};
Parted Part(std::string_view text) {
  Parted out;
  for (bool first = true, more = true; more; first = false) {
    const size_t end = text.find('\n');
    more = end != std::string_view::npos;
    std::string_view line = text.substr(0, end);
    if (more) text.remove_prefix(end + 1);
    const auto is = [line](std::string_view shape) { return HasShape(line, shape); };
    if (std::any_of(std::begin(kCounters), std::end(kCounters), is)) {
      out.counters.append("\n").append(line);
      continue;
    }
    const std::string constant = first ? ConstantBillingLine(line) : "";
    out.text.append(constant.empty() ? line : constant);
    if (more) out.text += '\n';
  }
  return out;
}

// Messages may be anything: the template refuses those that are no objects.
bool HasRole(const json::value& value, std::string_view role) {
  const json::object* message = value.if_object();
  const json::value* has = message == nullptr ? nullptr : message->if_contains("role");
  return has != nullptr && has->is_string() && View(has->get_string()) == role;
}

json::string* ContentOf(json::value& message) {
  json::value* content = message.as_object().if_contains("content");
  return content == nullptr ? nullptr : content->if_string();
}

// The text of the last message that is not the model's; null: there is none but the system's.
json::string* LastText(json::array& messages) {
  for (size_t i = messages.size(); i-- > 1;) {
    if (HasRole(messages[i], "user") || HasRole(messages[i], "tool")) return ContentOf(messages[i]);
  }
  return nullptr;
}

}  // namespace

void HoldChangingLines(Conversation* conversation) {
  json::array& messages = conversation->messages;
  if (messages.empty() || !HasRole(messages.front(), "system")) return;
  json::string* system = ContentOf(messages.front());
  if (system == nullptr) return;
  Parted parted = Part(View(*system));
  json::string* last = parted.counters.empty() ? nullptr : LastText(messages);
  if (!parted.counters.empty() && last == nullptr) return;  // nothing stands behind them
  *system = parted.text;
  if (last == nullptr) return;
  last->append(parted.counters);
  conversation->passing_end = std::move(parted.counters);
}

}  // namespace gyre
