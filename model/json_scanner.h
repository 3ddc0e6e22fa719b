// Finds the end of a JSON value in a text that comes in parts. Pure.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace gyre {

inline constexpr std::string_view kJsonSpace = " \t\r\n";
inline bool IsJsonSpace(char c) { return kJsonSpace.find(c) != std::string_view::npos; }
inline bool IsJsonDigit(char c) { return c >= '0' && c <= '9'; }

// One for each value. RFC 8259, and no object has a name twice. Bytes of strings are not checked to be UTF-8.
class JsonScanner {
 public:
  JsonScanner() = default;
  // `names_may_repeat`: the text obeys a grammar, whose objects may have a name that is not listed twice.
  explicit JsonScanner(bool names_may_repeat) : names_may_repeat_(names_may_repeat) {}

  enum class State : unsigned char { kMore, kDone, kWrong };

  // The next byte. kDone: it ends the value; a number alone never ends. Nothing may be fed after kDone and kWrong.
  State Feed(char c);

  // How many objects and lists are open.
  size_t depth() const { return open_.size(); }
  // The last string that ended, as it was written, without its quotes.
  const std::string& string() const { return string_; }
  // What the next byte begins or goes on with.
  enum class Expects : unsigned char {
    kValue,
    kFirstValue,  // or the end of the list
    kFirstName,   // or the end of the object
    kName,
    kColon,
    kNext,  // a comma or the end of the object or list
    kString,
    kEscape,
    kHex,
    kNumber,
    kWord,
  };
  Expects expects() const { return expects_; }
  // Whether the string that is read, or the last one, is a name in an object.
  bool in_name() const { return name_; }

 private:
  State BeginValue(char c);
  State EndValue();
  State Close(char c);
  State InString(char c);
  State InNumber(char c);

  bool names_may_repeat_ = false;
  std::string open_;                                       // '{' and '['
  std::vector<std::set<std::string, std::less<>>> names_;  // of each open object
  Expects expects_ = Expects::kValue;
  bool name_ = false;
  std::string string_;
  int hex_ = 0;
  std::string number_;
  std::string_view word_;  // what is left of true, false, null
};

// The whole text is one JSON value, with space around it.
bool IsJson(std::string_view text, bool names_may_repeat = false);

// A JSON string, without its quotes, as a text. "": no such string, or one that has no character of UTF-8.
std::string JsonText(std::string_view written);

}  // namespace gyre
