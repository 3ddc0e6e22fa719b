// Checks of flags' values, with descriptions that people can read.
#pragma once

#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdint>
#include <limits>
#include <string>

#include "base/host_port.h"
#include "cli/session.h"
#include "fmt/core.h"
#include "http_client/url.h"
#include "identity/principal.h"

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
inline CLI::Validator RealNumber(double low, double high, bool low_excluded = false) {
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

// What `parse` takes, a function of a text that returns a StatusOr.
template <typename Parse>
CLI::Validator Parsed(Parse parse) {
  return CLI::Validator(
      [parse](std::string& text) -> std::string {
        const auto value = parse(text);
        return value.ok() ? "" : Message(value.status());
      },
      "");
}

// HOST:PORT[,HOST:PORT...], the addresses of servers to connect to.
inline CLI::Validator Addresses() { return Parsed(ParseAddresses); }
// HOST:PORT, where a server listens; port 0 is any free one.
inline CLI::Validator Address() { return Parsed(ParseHostPort); }
// The name or the address of a host.
inline CLI::Validator Host() {
  return Parsed([](const std::string& text) { return ParseHostPort(FormatHostPort(text, 1)); });
}
inline CLI::Validator HttpUrl() { return Parsed(ParseUrl); }
// A number of bytes, as 512M.
inline CLI::Validator Size() { return Parsed(ParseSize); }

// The name of a worker, of a cluster or of an identity's owner.
inline CLI::Validator OwnersName() {
  return CLI::Validator([](std::string& name) { return Message(CheckPrincipalName(name)); }, "");
}

inline CLI::Validator NotEmpty() {
  return CLI::Validator(
      [](std::string& text) -> std::string { return text.empty() ? "it is empty, expected a text" : ""; }, "");
}

}  // namespace gyre
