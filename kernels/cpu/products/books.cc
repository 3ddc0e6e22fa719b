#include "kernels/cpu/products/books.h"

#include <iterator>

#include "kernels/codebooks.h"

namespace gyre::cpu {

BookTables::BookTables() : points(&ThePoints()) {
  const auto split = [](const auto& packed, auto* planes) {
    for (size_t i = 0; i < planes->kPoints; ++i) {
      planes->byte[0][i] = static_cast<uint8_t>(packed[i] & 255);
      planes->byte[1][i] = static_cast<uint8_t>(packed[i] >> 8);
    }
  };
  using namespace codebooks;
  split(kIq2Xxs, &iq2_xxs);
  split(kIq2Xs, &iq2_xs);
  split(kIq2S, &iq2_s);
  split(kIq3Xxs, &iq3_xxs);
  split(kIq3S, &iq3_s);
  split(kIq1S, &iq1);
  const auto spread = [](const auto& from, auto* to) {
    *to = {};
    for (size_t i = 0; i < std::size(from); ++i) to->words[2 * i + 1] = from[i];
  };
  spread(points->iq3_xxs, &spread_iq3_xxs);
  spread(points->iq3_s, &spread_iq3_s);
  for (unsigned byte = 0; byte < 256; ++byte) {
    for (unsigned n = 0, power = 1; n < 5; ++n, power *= 3)
      digit[n][byte] = static_cast<uint8_t>((byte * power & 255) * 3 >> 8);
  }
}

const BookTables kBookTables;

}  // namespace gyre::cpu
