#include "hub/quant_name.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <string_view>

namespace gyre {
namespace {

std::string Upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// The prefix of the publisher's own mixture of types.
constexpr std::string_view kOwnMixture = "UD-";

std::string WithoutPrefix(const std::string& quant) {
  const std::string upper = Upper(quant);
  return upper.rfind(kOwnMixture, 0) == 0 ? upper.substr(kOwnMixture.size()) : upper;
}

// The bits that scales, and better types for some layers, add to the digit.
double ExtraBits(const std::string& tail) {
  static const std::map<std::string, double> kExtra{
      {"", 0.5},      {"_0", 0.5},  {"_1", 1},      {"_K", 0.6},    {"_K_XS", 0.4}, {"_K_S", 0.55},
      {"_K_M", 0.85}, {"_K_L", 1},  {"_K_XL", 1.1}, {"_XXS", .06},  {"_XS", 0.3},   {"_S", 0.45},
      {"_M", 0.7},    {"_NL", 0.5}, {"_0_4_4", .5}, {"_0_4_8", .5}, {"_0_8_8", .5}};
  const auto it = kExtra.find(tail);
  return it == kExtra.end() ? -1 : it->second;
}

// Words of a file's name end at these characters. '_' ends words too, but it is also part of quantizations' names.
bool EndsWord(char c) { return c == '-' || c == '.' || c == '/' || c == ' '; }

std::string LastQuantIn(const std::string& text) {
  std::string found;
  for (size_t at = 0; at < text.size(); ++at) {
    if (at > 0 && !EndsWord(text[at - 1]) && text[at - 1] != '_') continue;
    const size_t word_end = static_cast<size_t>(
        std::find_if(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(), EndsWord) - text.begin());
    // The longest name that ends at a '_' or at the word's end is taken.
    for (size_t end = word_end; end != text.npos && end > at; end = text.rfind('_', end - 1)) {
      const std::string quant = Upper(text.substr(at, end - at));
      if (BitsOf(quant) == 0) continue;
      const bool own =
          at >= kOwnMixture.size() && Upper(text.substr(at - kOwnMixture.size(), kOwnMixture.size())) == kOwnMixture;
      found = (own ? std::string(kOwnMixture) : "") + quant;
      at = end;
      break;
    }
  }
  return found;
}

}  // namespace

double BitsOf(const std::string& name) {
  const std::string quant = WithoutPrefix(name);
  if (quant == "F32" || quant == "FP32") return 32;
  if (quant == "F16" || quant == "FP16" || quant == "BF16") return 16;
  if (quant.rfind("MXFP4", 0) == 0 && (quant.size() == 5 || quant[5] == '_')) return 4.25;
  if (quant.rfind("NVFP4", 0) == 0 && (quant.size() == 5 || quant[5] == '_')) return 4.5;
  size_t at = 0;
  if (!quant.empty() && (quant[0] == 'I' || quant[0] == 'T')) at = 1;
  if (quant.size() < at + 2 || quant[at] != 'Q' || quant[at + 1] < '1' || quant[at + 1] > '8') return 0;
  const double extra = ExtraBits(quant.substr(at + 2));
  return extra < 0 ? 0 : quant[at + 1] - '0' + extra;
}

std::string QuantOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string in_name = LastQuantIn(path.substr(slash == path.npos ? 0 : slash + 1));
  return !in_name.empty() || slash == path.npos ? in_name : LastQuantIn(path.substr(0, slash));
}

bool SameQuant(const std::string& a, const std::string& b) { return WithoutPrefix(a) == WithoutPrefix(b); }

size_t NearestQuant(const std::vector<std::string>& quants, const std::string& wanted) {
  const double want = BitsOf(wanted);
  size_t best = quants.size();
  double best_distance = 0;
  for (size_t i = 0; i < quants.size(); ++i) {
    const double bits = BitsOf(quants[i]);
    if (bits == 0 || want == 0) continue;
    // On this scale half the bits are as far as twice the bits.
    const double distance = Upper(quants[i]) == Upper(wanted) ? -1 : std::abs(std::log(bits / want));
    const bool larger = best < quants.size() && distance == best_distance && bits > BitsOf(quants[best]);
    if (best < quants.size() && distance >= best_distance && !larger) continue;
    best = i;
    best_distance = distance;
  }
  return best;
}

}  // namespace gyre
