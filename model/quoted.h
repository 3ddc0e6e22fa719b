// Makes names and sentences from untrusted files safe to print in a message.
#pragma once

#include <string>
#include <string_view>

namespace gyre {

// `text` with control characters, quotes and non-ASCII as \xNN, cut after 64 bytes: a file can't send escape sequences
// to a terminal or flood a log.
std::string Printable(std::string_view text);

// One character, or a byte that belongs to none, as PrintableSentence has it.
std::string PrintableCharacter(std::string_view bytes);

// A sentence from a file: control characters and bytes that are not UTF-8 as \xNN, cut after 1,000 bytes; letters
// of any script stay.
std::string PrintableSentence(std::string_view text);

}  // namespace gyre
