// Places in the code of this program, as four bytes, and the lines of source that they come from.
#pragma once

#include <cstdint>
#include <string>

namespace gyre::simt {

// A return address in this program.
uint32_t CodeAt(const void* address);
// "norm.cu:31", of the innermost function that is no part of the vocabulary; without addr2line an address.
std::string SourceLine(uint32_t code);
// Whether the bytes belong to this program and nobody can write them: tables of constants.
bool IsConstant(const void* address, size_t bytes);

}  // namespace gyre::simt
