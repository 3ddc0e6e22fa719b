// Files that are given as a model and are something else.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace gyre {

// A sentence about what the file looks like and what to do, as "looks like an HTML page, not a model file: download it
// again"; "" where nothing is recognised. Ask only about bytes that are no model: a few kinds begin as a llama2.c file
// may.
std::string DescribeForeignFile(std::span<const std::byte> file);

}  // namespace gyre
