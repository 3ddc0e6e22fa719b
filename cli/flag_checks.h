// Checks of flags' values, with descriptions that people can read.
#pragma once

#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdint>
#include <limits>
#include <string>

#include "base/host_port.h"
#include "fmt/core.h"

namespace gyre {

// A whole number from `low` on, up to `high`.
inline CLI::Validator Whole(int64_t low, int64_t high = std::numeric_limits<int64_t>::max()) {
  return CLI::Validator(
      [low, high](std::string& text) -> std::string {
        int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool number = error == std::errc() && end == text.data() + text.size();
        if (number && value >= low && value <= high) return "";
        const std::string range = high == std::numeric_limits<int64_t>::max() ? fmt::format("of at least {}", low)
                                                                              : fmt::format("from {} to {}", low, high);
        return fmt::format("'{}', expected a whole number {}", text, range);
      },
      "");
}

// A number from `low` to `high`. With low_excluded it must be above `low`.
inline CLI::Validator Number(double low, double high, bool low_excluded = false) {
  return CLI::Validator(
      [low, high, low_excluded](std::string& text) -> std::string {
        double value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool number = error == std::errc() && end == text.data() + text.size();
        if (number && (low_excluded ? value > low : value >= low) && value <= high) return "";
        return fmt::format("'{}', expected a number {} {} {} {}", text, low_excluded ? "above" : "from", low,
                           low_excluded ? "and at most" : "to", high);
      },
      "");
}

// HOST:PORT[,HOST:PORT...], the addresses of servers to connect to.
inline CLI::Validator Addresses() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const auto all = ParseAddresses(text);
        return all.ok() ? "" : Message(all.status());
      },
      "");
}

}  // namespace gyre
