#include "coordinator/grammar/decimal.h"

#include <algorithm>

namespace gyre::grammar {
namespace {

constexpr int kMostDigits = 1000;

}  // namespace

std::optional<Decimal> Decimal::Read(std::string_view number) {
  Decimal d;
  size_t i = 0;
  if (!number.empty() && number[0] == '-') d.negative_ = true, ++i;
  bool behind = false;
  for (; i < number.size() && number[i] != 'e' && number[i] != 'E'; ++i) {
    if (number[i] == '.') {
      behind = true;
    } else {
      d.digits_ += number[i];
      if (!behind) ++d.point_;
    }
  }
  int64_t exponent = 0;
  if (i < number.size()) {
    ++i;
    const bool minus = i < number.size() && number[i] == '-';
    if (i < number.size() && (number[i] == '-' || number[i] == '+')) ++i;
    for (; i < number.size(); ++i) exponent = std::min<int64_t>(exponent * 10 + (number[i] - '0'), 1'000'000'000);
    if (minus) exponent = -exponent;
  }
  const size_t first = std::min(d.digits_.find_first_not_of('0'), d.digits_.size());
  d.digits_.erase(0, first);
  while (!d.digits_.empty() && d.digits_.back() == '0') d.digits_.pop_back();
  if (d.digits_.empty()) return Decimal();
  const int64_t point = int64_t{d.point_} - static_cast<int64_t>(first) + exponent;
  if (point > kMostDigits || static_cast<int64_t>(d.digits_.size()) - point > kMostDigits) return std::nullopt;
  d.point_ = static_cast<int>(point);
  return d;
}

std::string Decimal::Whole() const {
  if (point_ <= 0) return "0";
  std::string whole = digits_.substr(0, static_cast<size_t>(point_));
  whole.resize(static_cast<size_t>(point_), '0');
  return whole;
}

std::string Decimal::Fraction() const {
  if (point_ >= static_cast<int>(digits_.size())) return "";
  if (point_ < 0) return std::string(static_cast<size_t>(-point_), '0') + digits_;
  return digits_.substr(static_cast<size_t>(point_));
}

Decimal Decimal::Negated() const {
  Decimal d = *this;
  if (!zero()) d.negative_ = !negative_;
  return d;
}

int Decimal::Compare(const Decimal& a, const Decimal& b) {
  if (a.zero() || b.zero() || a.negative_ != b.negative_) {
    const int x = a.zero() ? 0 : a.negative_ ? -1 : 1, y = b.zero() ? 0 : b.negative_ ? -1 : 1;
    return x - y;
  }
  const int size = a.point_ != b.point_ ? (a.point_ < b.point_ ? -1 : 1) : a.digits_.compare(b.digits_);
  return a.negative_ ? -size : size;
}

std::optional<int64_t> Decimal::Small() const {
  if (!integer() || point_ > 18) return std::nullopt;
  int64_t value = 0;
  for (char c : Whole()) value = value * 10 + (c - '0');
  return negative_ ? -value : value;
}

std::optional<uint64_t> Decimal::Scaled(int* scale) const {
  *scale = std::max(0, static_cast<int>(digits_.size()) - point_);
  const std::string all = (point_ > 0 ? Whole() : "") + Fraction();
  uint64_t value = 0;
  for (char c : all) {
    if (value > 10'000'000'000'000'000) return std::nullopt;
    value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  return value;
}

bool Decimal::IsMultipleOf(uint64_t n, int scale) const {
  const std::string fraction = Fraction();
  if (fraction.size() > static_cast<size_t>(scale)) return false;
  uint64_t rest = 0;
  for (char c : Whole() + fraction) rest = (rest * 10 + static_cast<uint64_t>(c - '0')) % n;
  for (size_t i = fraction.size(); i < static_cast<size_t>(scale); ++i) rest = rest * 10 % n;
  return rest == 0;
}

}  // namespace gyre::grammar
