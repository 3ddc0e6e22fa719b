// Floats as the two bytes of an IEEE half, little-endian, for files and messages.
#pragma once

#include <span>
#include <string>

namespace gyre {

// Appends each value, rounded to the nearest half (ties to even); what is beyond its range becomes an infinity.
void AppendHalves(std::span<const float> values, std::string* out);

}  // namespace gyre
