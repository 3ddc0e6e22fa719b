// The forms in which models write calls of tools, and the one table of the families' markers. Pure.
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>

namespace gyre {

// How a call is written. An ellipsis stands for more of the same.
enum class ToolForm : unsigned char {
  kJson,            // OPEN {"name": N, "arguments": {...}} CLOSE, or a list of such objects
  kXmlParameters,   // OPEN <function=N> <parameter=K> V </parameter> ... </function> CLOSE
  kLlamaJson,       // the whole answer: {"name": N, "parameters": {...}}, or OPEN N.call(K=V, ...)
  kPythonic,        // the whole answer: [N(K=V, ...), ...]
  kTaggedPythonic,  // OPEN [N(K=V, ...), ...] CLOSE; the brackets may be absent
  kMistralArgs,     // OPEN N [CALL_ID] id [ARGS] {...}
  kHarmony,         // a message "to=functions.N"
  kDeepSeek,        // OPEN begin N sep {...} end ... CLOSE
  kDeepSeekFenced,  // OPEN begin type sep N ```json {...} ``` end ... CLOSE
  kInvoke,          // OPEN <invoke name="N"> <parameter name="K">V</parameter> ... </invoke> ... CLOSE
  kArgKeys,         // OPEN N <arg_key>K</arg_key> <arg_value>V</arg_value> ... CLOSE
  kKimi,            // OPEN begin functions.N:index args {...} end ... CLOSE
  kBraces,          // OPEN call:N{K:V, ...} CLOSE; texts stand between quotation tokens
  kFunctionTag,     // <function=N>{...}</function>
  kRecipient,       // >>>N, line feed, {...}; the recipient "all" gets the content
};

// The bytes that a model writes around calls, as its family's template has them: BEGIN call BETWEEN call ... END, where
// a call is BEFORE name AFTER arguments BEHIND. Arguments are a JSON object; or, where VALUE is not empty, KEY name
// VALUE value VALUE_END each, with SEPARATOR between them.
struct CallText {
  static constexpr char kMaySpace = '\v';  // stands for one space or line feed, or nothing
  static constexpr char kIndex = '\f';     // for the number of the call
  static constexpr char kId = '\b';        // for nine letters and digits
  static constexpr char kMayBe = '\a';     // what stands between two of them may be missing
  const char *begin, *before, *after, *behind, *between, *end;
  const char *key = "", *value = "", *value_end = "", *separator = "";
  bool many = true;  // more than one call
};

// The calls of one family. A row is one of these in docs/api.md.
struct ToolFormat {
  const char* name;
  ToolForm form;
  const char *open, *close;  // close "": a call has no marker behind it
  std::initializer_list<const char*> inner;
  // A template of the family writes one text of each list.
  std::initializer_list<std::initializer_list<const char*>> written;
  bool tokens;         // whether the markers are control tokens in the family's vocabulary
  const char* thinks;  // the marker behind its reasoning
  CallText text;
};

// Rows that need more of a template stand before those that need less.
std::span<const ToolFormat> ToolFormats();
// nullptr: there is none.
const ToolFormat* ToolFormatOf(std::string_view chat_template);
const ToolFormat* ToolFormatNamed(std::string_view name);

}  // namespace gyre
