// Writes llama2.c .bin models and tokenizer.bin into memory, for tests.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/coding.h"

namespace gyre::testing {

struct TinyBinOptions {
  int version = 0;
  int32_t dim = 16, hidden = 24, layers = 2, heads = 4, kv_heads = 2, vocab = 262, seq_len = 32;
  int32_t group = 8;
  float scale = 1;  // of version 2's groups, at most
  bool shared = true;
  uint32_t seed = 1;
};

// Numbers are drawn in the file's order.
inline std::vector<std::byte> BuildTinyBin(const TinyBinOptions& o) {
  std::mt19937 random(o.seed);
  Encoder out;
  auto floats = [&](int64_t n, float largest = 1) {
    for (int64_t i = 0; i < n; ++i) out.Put(largest * (static_cast<float>(random() % 2001) / 1000.0f - 1.0f));
  };
  auto tensor = [&](int64_t n) {
    if (o.version != 2) return floats(n);
    for (int64_t i = 0; i < n; ++i) out.Put(static_cast<int8_t>(random() % 255 - 127));
    floats(n / o.group, o.scale);
  };
  const int32_t vocab = o.version == 0 && !o.shared ? -o.vocab : o.vocab;
  if (o.version != 0) {
    out.Put(uint32_t{0x616B3432});
    out.Put(static_cast<int32_t>(o.version));
  }
  for (int32_t v : {o.dim, o.hidden, o.layers, o.heads, o.kv_heads, vocab, o.seq_len}) out.Put(v);
  if (o.version != 0) {
    out.Put(static_cast<uint8_t>(o.shared));
    if (o.version == 2) out.Put(o.group);
    out.PadTo(256);
  }
  const int64_t d = o.dim, kv = d * o.kv_heads / o.heads, h = o.hidden, n = o.layers;
  auto matrices = [&](std::initializer_list<int64_t> sizes) {
    for (int64_t size : sizes) {
      for (int64_t i = 0; i < n; ++i) tensor(size);
    }
  };
  if (o.version == 0) {
    floats(o.vocab * d);
    floats(n * d);
    matrices({d * d, kv * d, kv * d, d * d});
    floats(n * d);
    matrices({h * d, h * d, h * d});
    floats(d + o.seq_len * (d / o.heads));
  } else {
    floats(2 * n * d + d);
    tensor(o.vocab * d);
    matrices({d * d, kv * d, kv * d, d * d, h * d, h * d, h * d});
  }
  if (!o.shared) tensor(o.vocab * d);
  return {out.bytes().begin(), out.bytes().end()};
}

// <unk>, <s>, </s>, the 256 bytes, then `pieces` with falling scores.
inline std::vector<std::byte> BuildTokenizerBin(const std::vector<std::string>& pieces) {
  Encoder out;
  out.Put(uint32_t{16});
  auto piece = [&out](const std::string& text, float score) {
    out.Put(score);
    out.Put(static_cast<uint32_t>(text.size()));
    out.PutBytes(text.data(), text.size());
  };
  piece("<unk>", 0);
  piece("\n<s>\n", 0);
  piece("\n</s>\n", 0);
  for (int b = 0; b < 256; ++b) {
    const char* digits = "0123456789ABCDEF";
    piece(std::string("<0x") + digits[b / 16] + digits[b % 16] + ">", 0);
  }
  float score = 0;
  for (const std::string& text : pieces) piece(text, score -= 1);
  return {out.bytes().begin(), out.bytes().end()};
}

}  // namespace gyre::testing
