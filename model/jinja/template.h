// Chat templates: the part of Jinja that Hugging Face's renderer supports, in a sandbox. Templates come with model
// files, from unauthenticated peers: a template can't reach files, clocks (except strftime_now) or code, and output,
// steps and depth are limited.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "boost/json/fwd.hpp"

namespace gyre::jinja {

struct RenderOptions {
  std::tm now{};                        // what strftime_now formats
  uint64_t max_steps = 5'000'000;       // evaluated nodes
  size_t max_bytes = size_t{64} << 20;  // of all text and lists that are made, the output among them
};

class Template {
 public:
  // kInvalidArgument with the line.
  static StatusOr<Template> Parse(std::string_view source);
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  // Thread-safe. kInvalidArgument: an error that the template raises, or an operation that its values do not have;
  // kResourceExhausted: a limit.
  StatusOr<std::string> Render(const boost::json::object& variables, const RenderOptions& options) const;

 private:
  Template();
  struct Rep;
  std::unique_ptr<const Rep> rep_;
};

}  // namespace gyre::jinja
