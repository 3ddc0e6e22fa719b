// Reads reasoning, content and calls of tools from a model's answer, while it comes. Pure.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "boost/json/value.hpp"
#include "model/answer_splitter.h"

namespace gyre {

// The tools that a call may name, each with its parameters that are texts, whatever they look like.
using DeclaredTools = std::map<std::string, std::set<std::string, std::less<>>, std::less<>>;
// From an array of {"type": "function", "function": {"name", "parameters"}}; what has another shape declares nothing.
DeclaredTools DeclareTools(const boost::json::value& tools);

// A part of an answer. The parts of one call follow each other.
struct AnswerDelta {
  enum class Kind : unsigned char {
    kContent,
    kReasoning,
    kCall,       // a call begins; the text is the tool's name
    kArguments,  // put together, one JSON object
    kCallEnd,    // has no text
  };
  Kind kind = Kind::kContent;
  std::string text;
  bool operator==(const AnswerDelta&) const = default;
};

// One for each answer. Whatever the cuts of the text, the deltas put together are the same, and none is taken back:
// - Text that a form of calls does not fit, and a call of a tool that is not declared, is content, as it was written.
// - A call is given out when it is complete, or when it is longer than kHeldCall bytes. If a longer one turns out to
//   be wrong, its arguments are what the model wrote.
// - Space before a call is dropped, and so is space at the end behind the last one.
// - A call within reasoning is none.
class ToolReader {
 public:
  static constexpr size_t kHeldCall = 256;

  struct Options {
    // The calls obey a grammar (coordinator/grammar/tool_calls.h), which can't keep names that are not listed from
    // coming twice in an object. Else an object with a name twice is no JSON.
    bool names_may_repeat = false;
  };
  // Without tools an answer has no calls, and their markers are content.
  explicit ToolReader(AnswerFormat format, DeclaredTools tools = {})
      : ToolReader(std::move(format), std::move(tools), {}) {}
  ToolReader(AnswerFormat format, DeclaredTools tools, Options options);
  ToolReader(ToolReader&&) noexcept;
  ToolReader& operator=(ToolReader&&) noexcept;
  ~ToolReader();

  // One token and its text, as a TokenEvent has them. The text of a control token's event comes before the token.
  std::vector<AnswerDelta> Push(TokenId token, std::string_view text);
  // The end of the answer, with the last of its text. `cut`: by a limit of tokens. Then a call whose name is complete
  // comes as far as it was written, without a kCallEnd.
  std::vector<AnswerDelta> Finish(std::string_view text, bool cut);

  // Of the call that was cut: how many bytes of its arguments are complete members, in a form that is not JSON; and the
  // parameter that was begun, as the model wrote it.
  struct Begun {
    size_t complete = 0;
    std::string key, value;
    bool json = true;  // the form is JSON: the arguments are as they were written
  };
  const Begun& begun() const;

 private:
  class Calls;
  std::vector<AnswerDelta> Take(std::vector<AnswerSplitter::Piece> pieces);

  AnswerSplitter splitter_;
  std::unique_ptr<Calls> calls_;  // null: there are none
};

}  // namespace gyre
