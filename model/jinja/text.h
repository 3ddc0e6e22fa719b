// Helpers of filters, tests and methods: arguments, and Python's operations on text (UTF-8, character by
// character; bytes that are not UTF-8 count as one each).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/jinja/interpreter.h"

namespace gyre::jinja {

// Fails unless the arguments are those that `names` lists, as "old!,new!,count". The ones with a ! are needed. A /
// before the first name means that arguments are given by their places alone; "*" stands for any arguments. The message
// calls the function by kind and name, as in "the filter 'replace'", or by its name alone where the kind is "".
void Check(const char* kind, std::string_view name, const Arguments& a, std::string_view names);

// The argument at this place or of this name; null: it is not given. The Take functions return a fallback then, and
// fail if the argument is of another type.
const Value* Given(const Arguments& a, size_t place, const char* name);
// The same, where None stands for an argument that is not given.
const Value* GivenSome(const Arguments& a, size_t place, const char* name);
Value Take(const Arguments& a, size_t place, const char* name, Value fallback = Value());
int64_t TakeInt(const Arguments& a, size_t place, const char* name, int64_t fallback);
bool TakeBool(const Arguments& a, size_t place, const char* name, bool fallback);
std::string TakeText(Interpreter& i, const Arguments& a, size_t place, const char* name, const std::string& fallback);

// str(v), without a copy of what is a string already. The value outlives this object.
class TextOf {
 public:
  TextOf(Interpreter& i, const Value& v);
  operator const std::string&() const { return text_ != nullptr ? *text_ : made_; }
  const std::string& operator*() const { return *this; }

 private:
  const std::string* text_;
  std::string made_;
};

// A new text, which counts against the budget.
Value Text(Interpreter& i, std::string s);
// The text with HTML's characters escaped, marked as safe; a safe one as it is.
Value Escape(Interpreter& i, const Value& v);

// The digits of a whole number. Longer texts are no numbers, as in Python.
inline constexpr size_t kMostDigits = 4300;
// What a letter or digit stands for, "z" is 35; 36 for any other character.
int DigitValue(char c);
// The digits of a whole number in another base, with small letters and without a leading zero; bases are 2 to 36.
// REQUIRES: digits of the base `from`. Throws Error for more than kMostDigits.
std::string InBase(Budget& budget, std::string_view digits, int from, int to);
// The decimal number with the other sign. REQUIRES: no "+" before it.
std::string Negated(const std::string& decimal);

size_t CountCharacters(std::string_view text);
int64_t CountWords(std::string_view text);  // runs of letters, digits and "_"
// The bytes of the character that ends at `end`. REQUIRES: end > 0, where a character ends.
size_t LastUtf8Length(std::string_view text, size_t end);
// The place where character `index` begins, counted from the end if it is negative; npos: there is none.
size_t CharacterOffset(std::string_view text, int64_t index);
// Python's str.isspace for one character.
bool IsSpace(char32_t c);

std::string Upper(const std::string& s);
std::string Lower(const std::string& s);
std::string Capitalize(const std::string& s);
bool Letter(char32_t c);
bool Digit(char32_t c);
bool Numeric(char32_t c);  // fractions and Roman numbers too
// Begins each word with a capital. `after`: whether a word begins after the character c.
std::string Title(const std::string& s, bool (*after)(char32_t));

enum class Side { kLeft = 1, kRight = 2, kBoth = 3 };
// Removes the characters of `chars` from both ends; null, none or undefined: white space.
std::string Strip(Interpreter& i, std::string_view s, const Value* chars, Side side);
// `count` < 0: all of them. The result counts against the budget.
std::string Replace(Interpreter& i, const std::string& s, const std::string& from, const std::string& to,
                    int64_t count);
// str.split: by white space if there is no separator; `most` < 0: without limit.
Value SplitText(Interpreter& i, const std::string& s, const Value* separator, int64_t most, bool from_right);
std::vector<std::string> Lines(Interpreter& i, const std::string& s, bool keep_ends);

}  // namespace gyre::jinja
