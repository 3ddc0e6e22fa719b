#include "cli/nearest.h"

#include <algorithm>
#include <numeric>

namespace gyre {
namespace {

// Letters to insert, remove or replace until one word is the other.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

std::string DidYouMean(const std::string& word, const std::vector<std::string>& names) {
  if (word.size() > 64) return "";
  size_t least = 1 + std::max<size_t>(1, word.size() / 3);
  const std::string* nearest = nullptr;
  for (const std::string& name : names) {
    const size_t distance = EditDistance(word, name);
    if (distance < least) least = distance, nearest = &name;
  }
  return nearest == nullptr ? "" : "; did you mean '" + *nearest + "'?";
}

}  // namespace gyre
