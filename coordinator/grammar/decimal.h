// Exact decimal numbers, as JSON writes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gyre::grammar {

// (-1)^negative * 0.DIGITS * 10^point; zero has no digits. Digits begin and end with another one than 0.
class Decimal {
 public:
  // The text of a number in JSON. Nothing: it has more than 1,000 digits before or behind the point when written out.
  static std::optional<Decimal> Read(std::string_view number);

  bool zero() const { return digits_.empty(); }
  bool negative() const { return negative_; }
  bool integer() const { return point_ >= static_cast<int>(digits_.size()); }
  // Written out: the digits before the point ("0" if none) and behind it.
  std::string Whole() const;
  std::string Fraction() const;
  Decimal Negated() const;
  // < 0, 0, > 0.
  static int Compare(const Decimal& a, const Decimal& b);
  bool operator==(const Decimal& other) const = default;
  // An integer that fits 10^18; else nothing.
  std::optional<int64_t> Small() const;
  // number = n / 10^scale with the least scale; nothing: n is above 10^17.
  std::optional<uint64_t> Scaled(int* scale) const;
  bool IsMultipleOf(uint64_t n, int scale) const;  // of n / 10^scale

 private:
  bool negative_ = false;
  int point_ = 0;
  std::string digits_;
};

}  // namespace gyre::grammar
