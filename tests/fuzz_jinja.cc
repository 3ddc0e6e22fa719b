// Any template on a conversation: an error or a text, within the limits.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <boost/json.hpp>

#include "model/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const boost::json::object variables = boost::json::parse(R"({
    "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "h\u00e9llo\n"},
                 {"role": "assistant", "content": null, "tool_calls": [{"id": "123456789", "function": {"name": "f", "arguments": {"a": 1.5}}}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": ["x", "y"]}}}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})")
                                                   .as_object();
  const auto t = gyre::jinja::Template::Parse(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!t.ok()) return 0;
  (void)t->Render(variables, {.max_steps = 20000, .max_bytes = 1 << 20});
  return 0;
}
