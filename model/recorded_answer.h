// An answer that was written down, with what was asked, as a line of JSON; and the message that a client gets of it.
// Pure.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "boost/json/object.hpp"
#include "model/tool_reader.h"

namespace gyre {

struct RecordedAnswer {
  AnswerFormat format;
  DeclaredTools tools;  // none with the tool_choice "none"
  // Text, or control tokens that have none.
  struct Part {
    std::string text;
    bool control = false;
  };
  std::vector<Part> parts;
  bool cut = false;  // by a limit of tokens

  // Bytes of all texts.
  size_t bytes() const;
};

// Reads the fields `generated` (a text, or a list of texts and of {"control": NAME}), `tools`, `tool_choice`,
// `ended_by` ("stop" or "length"), `prompt_end`, `begins` ("before", "in_reasoning" or "in_content") and `format`, a
// name of ToolFormats(), which is stronger than the template; others have no effect. `find`: the format of an answer
// behind such an end of a prompt. kInvalidArgument: a field has another form.
StatusOr<RecordedAnswer> ReadRecordedAnswer(const boost::json::object& line,
                                            const std::function<AnswerFormat(std::string_view prompt)>& find);

// {"message": {"content", "reasoning_content", "tool_calls": [{"name", "arguments"}]}, "finish_reason"}. A call that
// was cut is in message.unfinished: its name and `arguments_so_far`; or, in forms that are not JSON, `arguments_known`,
// the members that are complete, and `arguments_begun`, the text of the next. `cut`: whether a text ends before that
// byte.
boost::json::object ParseAnswer(const RecordedAnswer& answer, const std::function<bool(size_t byte)>& cut);

}  // namespace gyre
