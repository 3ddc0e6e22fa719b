// Descriptions of files of other kinds that are given as a model.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace gyre {

// A sentence about the apparent kind of the file and what to do, as "looks like an HTML page, not a model file:
// download it again"; "" if no kind is recognised. Call it only for bytes that are no model: a few kinds begin as a
// llama2.c file may.
std::string DescribeForeignFile(std::span<const std::byte> file);

}  // namespace gyre
