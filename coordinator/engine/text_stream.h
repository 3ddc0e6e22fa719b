// Token pieces -> text that may be shown: whole UTF-8, nothing of a stop string. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gyre {

// Finds the first end of any stop string in a stream cut at any place (Knuth-Morris-Pratt, once per stop string). Where
// two end together the longer one counts. Not thread-safe.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);  // empty strings are ignored
  struct Result {
    std::string text;      // may be shown: no part of it can begin a stop string any more
    bool stopped = false;  // a stop string was completed; the text ends before it
    int stop = -1;         // which one, counted from 0
  };
  // After stopped, further calls return nothing.
  Result Push(std::string_view bytes);
  // The stream ended: what was held back.
  std::string Flush();

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> border;  // [n]: the longest proper prefix of text that ends its first n bytes
    int stop = -1;               // its place in the constructor's list
    size_t matched = 0;          // bytes of text that the stream ends with
  };
  // True if the byte completes it.
  static bool Advance(Pattern* pattern, char byte);

  std::vector<Pattern> patterns_;
  std::string held_;
  bool stopped_ = false;
};

// Holds back the bytes of an unfinished UTF-8 character; invalid bytes become U+FFFD (one per maximal subpart, Unicode
// 15 section 3.9).
class Utf8Assembler {
 public:
  std::string Push(std::string_view bytes);
  std::string Flush();  // an unfinished character at the end becomes U+FFFD

 private:
  std::string held_;
};

// The two together. Stop strings are matched on bytes, then characters are assembled; but if one has U+FFFD, which
// stands for bytes that are no character, they are matched on the text that a reader sees.
class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stops);
  struct Result {
    std::string text;
    bool stopped = false;
    int stop = -1;
  };
  Result Push(std::string_view piece);
  // No stop string is looked for here, and none begins here. REQUIRES: no call of Push before.
  std::string PushUnstopped(std::string_view piece) { return utf8_.Push(piece); }
  // The stream ended: what was held back. A character that is cut off may complete a stop string.
  Result Flush();

 private:
  // `bytes`: what byte_stops_ lets through.
  Result Assemble(std::string_view bytes, bool ends);

  StopMatcher byte_stops_, text_stops_;  // each has the places of the other's stop strings, but empty
  Utf8Assembler utf8_;
};

}  // namespace gyre
