// What filters, tests and methods share: their arguments, and Python's operations on text (UTF-8, character by
// character).
#pragma once

#include <string>
#include <vector>

#include "model/jinja/interpreter.h"

namespace gyre::jinja {

// An argument by place or name, null where it is not given; Take* with a fallback for that, failing on another type.
const Value* Given(const Arguments& a, size_t place, const char* name);
Value Take(const Arguments& a, size_t place, const char* name, Value fallback = Value());
int64_t TakeInt(const Arguments& a, size_t place, const char* name, int64_t fallback);
bool TakeBool(const Arguments& a, size_t place, const char* name, bool fallback);
std::string TakeText(const Arguments& a, size_t place, const char* name, const std::string& fallback);

// Charged for.
Value Text(Interpreter& i, std::string s);

std::string Upper(const std::string& s);
std::string Lower(const std::string& s);
std::string Capitalize(const std::string& s);
bool Letter(char32_t c);
bool Digit(char32_t c);
// Each run of letters begins with a capital. `after`: does a word begin behind c?
std::string Title(const std::string& s, bool (*after)(char32_t));

enum class Side { kLeft = 1, kRight = 2, kBoth = 3 };
// Without the characters at its ends that `chars` has; null, none or undefined: white space.
std::string Strip(const std::string& s, const Value* chars, Side side);
// `count` < 0: all of them.
std::string Replace(Interpreter& i, const std::string& s, const std::string& from, const std::string& to,
                    int64_t count);
// str.split: by white space where there is no separator; `most` < 0: without limit.
Value SplitText(Interpreter& i, const std::string& s, const Value* separator, int64_t most, bool from_right);
std::vector<std::string> Lines(const std::string& s, bool keep_ends);

}  // namespace gyre::jinja
