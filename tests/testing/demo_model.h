// The demo model with another chat template.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace gyre::testing {

// The bytes of the demo model's file (GYRE_DEMO_MODEL), whose template is `text` and a comment: behind it the tensors
// lie where they were, or whole alignments further on.
inline std::vector<std::byte> DemoModelWithTemplate(const std::string& text) {
  std::ifstream file(GYRE_DEMO_MODEL, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const std::string key = "tokenizer.chat_template";
  const size_t at = bytes.find(key) + key.size() + 4;  // behind its type
  uint64_t length = 0;
  std::memcpy(&length, bytes.data() + at, sizeof length);
  const uint64_t had = length;
  constexpr uint64_t kAlignment = 32;
  while (length < text.size() + 4) length += kAlignment;
  std::memcpy(bytes.data() + at, &length, sizeof length);
  const std::string comment = "{#" + std::string(length - text.size() - 4, ' ') + "#}";
  bytes.replace(at + sizeof length, had, text + comment);
  std::vector<std::byte> out(bytes.size());
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

}  // namespace gyre::testing
