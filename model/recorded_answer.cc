#include "model/recorded_answer.h"

#include <algorithm>

#include "boost/json/array.hpp"
#include "boost/json/parse.hpp"

namespace gyre {
namespace {

namespace json = boost::json;

StatusOr<std::string> TextField(const json::object& line, std::string_view name, std::string otherwise) {
  const json::value* value = line.if_contains(name);
  if (value == nullptr || value->is_null()) return otherwise;
  if (!value->is_string()) return InvalidArgument("{} must be a text", name);
  return std::string(value->get_string());
}

StatusOr<RecordedAnswer::Part> ReadPart(const json::value& value) {
  if (value.is_string()) return RecordedAnswer::Part{.text = std::string(value.get_string())};
  const json::object* object = value.if_object();
  const json::value* name = object == nullptr ? nullptr : object->if_contains("control");
  if (name == nullptr || !name->is_string()) {
    return InvalidArgument("generated must have texts and objects {{\"control\": NAME}}");
  }
  return RecordedAnswer::Part{.text = std::string(name->get_string()), .control = true};
}

// A marker of the format that is no control token in it, as another vocabulary has it.
bool IsMarker(const AnswerFormat& format, std::string_view text) {
  if (text == format.open || text == format.close) return true;
  if (format.tools == nullptr) return false;
  return text == format.tools->open || text == format.tools->close ||
         std::any_of(format.tools->inner.begin(), format.tools->inner.end(),
                     [&](const char* inner) { return text == inner; });
}

json::value TextOrNull(std::string text) { return text.empty() ? json::value() : json::value(std::move(text)); }

json::value ParsedOr(const std::string& text, json::value otherwise) {
  boost::system::error_code error;
  json::value value = json::parse(text, error);
  return error ? std::move(otherwise) : value;
}

// What a client makes of the deltas.
class ClientMessage {
 public:
  void Add(const std::vector<AnswerDelta>& deltas) {
    for (const AnswerDelta& delta : deltas) {
      switch (delta.kind) {
        case AnswerDelta::Kind::kContent: content_ += delta.text; break;
        case AnswerDelta::Kind::kReasoning: reasoning_ += delta.text; break;
        case AnswerDelta::Kind::kCall:
          name_ = delta.text;
          arguments_.clear();
          open_ = true;
          break;
        case AnswerDelta::Kind::kArguments: arguments_ += delta.text; break;
        case AnswerDelta::Kind::kCallEnd:
          calls_.push_back(json::object{{"name", name_}, {"arguments", ParsedOr(arguments_, json::value(arguments_))}});
          open_ = false;
          break;
      }
    }
  }
  json::object Whole(const ToolReader::Begun& begun, bool cut) {
    json::object message{{"content", TextOrNull(content_)}, {"reasoning_content", TextOrNull(reasoning_)}};
    const bool called = !calls_.empty();
    message["tool_calls"] = std::move(calls_);
    if (open_) message["unfinished"] = Unfinished(begun);
    return {{"message", std::move(message)}, {"finish_reason", cut ? "length" : called ? "tool_calls" : "stop"}};
  }

 private:
  json::object Unfinished(const ToolReader::Begun& begun) const {
    json::object call{{"name", name_}};
    if (begun.json) {
      call["arguments_so_far"] = arguments_;
      return call;
    }
    std::string known = arguments_.substr(0, begun.complete);
    if (!known.ends_with('}') || begun.complete < arguments_.size()) known += known.empty() ? "{}" : "}";
    call["arguments_known"] = ParsedOr(known, ParsedOr(known + "}", json::object()));
    json::object next;
    if (!begun.key.empty()) next[begun.key] = begun.value;
    call["arguments_begun"] = std::move(next);
    return call;
  }

  std::string content_, reasoning_, name_, arguments_;
  json::array calls_;
  bool open_ = false;
};

}  // namespace

size_t RecordedAnswer::bytes() const {
  size_t bytes = 0;
  for (const Part& part : parts) bytes += part.control ? 0 : part.text.size();
  return bytes;
}

StatusOr<RecordedAnswer> ReadRecordedAnswer(const json::object& line,
                                            const std::function<AnswerFormat(std::string_view prompt)>& find) {
  RecordedAnswer out;
  GYRE_ASSIGN_OR_RETURN(const std::string prompt, TextField(line, "prompt_end", ""));
  GYRE_ASSIGN_OR_RETURN(const std::string name, TextField(line, "format", ""));
  const ToolFormat* tools = ToolFormatNamed(name);
  if (!name.empty() && tools == nullptr) return InvalidArgument("format {} is not known", name);
  out.format = find(prompt);
  if (tools != nullptr && out.format.tools != tools) out.format = AnswerFormatOf(*tools, prompt);
  GYRE_ASSIGN_OR_RETURN(const std::string begins, TextField(line, "begins", ""));
  if (begins == "in_reasoning") {
    out.format.begins = AnswerFormat::Begins::kInReasoning;
  } else if (begins == "in_content") {
    out.format.begins = AnswerFormat::Begins::kInContent;
  } else if (begins == "before") {
    out.format.begins = AnswerFormat::Begins::kBefore;
  } else if (!begins.empty()) {
    return InvalidArgument("begins is {}; it may be before, in_reasoning or in_content", begins);
  }
  GYRE_ASSIGN_OR_RETURN(const std::string ended, TextField(line, "ended_by", "stop"));
  if (ended != "stop" && ended != "length") {
    return InvalidArgument("ended_by is {}; it may be stop or length", ended);
  }
  out.cut = ended == "length";
  const json::value* choice = line.if_contains("tool_choice");
  const json::value* declared = line.if_contains("tools");
  if (declared != nullptr && (choice == nullptr || *choice != "none")) out.tools = DeclareTools(*declared);
  const json::value* generated = line.if_contains("generated");
  if (generated == nullptr) return InvalidArgument("there is no field generated");
  if (!generated->is_array()) {
    GYRE_ASSIGN_OR_RETURN(RecordedAnswer::Part part, ReadPart(*generated));
    out.parts.push_back(std::move(part));
    return out;
  }
  for (const json::value& value : generated->get_array()) {
    GYRE_ASSIGN_OR_RETURN(RecordedAnswer::Part part, ReadPart(value));
    out.parts.push_back(std::move(part));
  }
  return out;
}

json::object ParseAnswer(const RecordedAnswer& answer, const std::function<bool(size_t byte)>& cut) {
  constexpr TokenId kNoControl = -1;
  ToolReader reader(answer.format, answer.tools);
  ClientMessage message;
  size_t byte = 0;
  for (const RecordedAnswer::Part& part : answer.parts) {
    if (part.control) {
      TokenId id = kNoControl;
      for (const AnswerFormat::Control& control : answer.format.controls) {
        if (control.text == part.text) id = control.id;
      }
      const bool marker = id == kNoControl && IsMarker(answer.format, part.text);
      message.Add(reader.Push(id, marker ? part.text : ""));
      continue;
    }
    std::string text;
    for (const char c : part.text) {
      if (!text.empty() && cut(byte)) {
        message.Add(reader.Push(kNoControl, text));
        text.clear();
      }
      text += c;
      ++byte;
    }
    message.Add(reader.Push(kNoControl, text));
  }
  message.Add(reader.Finish("", answer.cut));
  return message.Whole(reader.begun(), answer.cut);
}

}  // namespace gyre
