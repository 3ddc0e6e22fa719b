// Sets of code points, and the bytes that write one: as UTF-8, or within a string of JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/grammar/expressions.h"

namespace gyre::grammar {

// Scalar values: U+0000 to U+10FFFF without surrogates. Ranges rise and do not touch.
class CodePoints {
 public:
  struct Range {
    char32_t first, last;
    bool operator==(const Range&) const = default;
  };

  CodePoints() = default;
  CodePoints(char32_t first, char32_t last) { Add(first, last); }
  static CodePoints All() { return {0, 0x10FFFF}; }
  static CodePoints Digits() { return {'0', '9'}; }
  static CodePoints Words();   // \w of ECMA-262
  static CodePoints Spaces();  // \s of ECMA-262
  static CodePoints LineEnds();

  void Add(char32_t first, char32_t last);  // surrogates are left out
  void Add(const CodePoints& other);
  CodePoints Complement() const;
  CodePoints Without(const CodePoints& other) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }
  bool operator==(const CodePoints&) const = default;

 private:
  std::vector<Range> ranges_;
};

// How code points are written.
enum class Writing : uint8_t {
  kPlain,         // UTF-8
  kJsonString,    // within a string of JSON: as UTF-8, or escaped in any of the ways that JSON has
  kJsonName,      // within a string of JSON, in the one way that it is usually written: names differ by their bytes
  kPythonDouble,  // within a string of Python in ": in the ways that JSON and Python share, and ' escaped
  kPythonSingle,  // the same in '
};

// One code point of the set.
ExprId OneOf(Expressions* e, const CodePoints& set, Writing writing);
// The text as a whole JSON string, with quotes, in the one way that it is usually written.
std::string JsonString(std::string_view text);
// The text within a JSON string in all ways of writing it.
ExprId AnyWriting(Expressions* e, std::string_view text, Writing writing);

}  // namespace gyre::grammar
