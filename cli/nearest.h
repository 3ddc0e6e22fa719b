// The name that a misspelt word probably means.
#pragma once

#include <string>
#include <vector>

namespace gyre {

// "; did you mean 'NAME'?" with the nearest of the names, or "" if none is near.
std::string DidYouMean(const std::string& word, const std::vector<std::string>& names);

}  // namespace gyre
