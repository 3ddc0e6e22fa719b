// Hugging Face's config.json as GGUF metadata, so that one table of architectures reads both.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "boost/json/object.hpp"
#include "model/gguf.h"

namespace gyre {

// Metadata in memory. Values keep their address while the object lives.
class Metadata {
 public:
  void Set(const std::string& key, std::string_view text);
  void Set(const std::string& key, uint32_t v);
  void Set(const std::string& key, float v);
  void Set(const std::string& key, bool v);
  void SetStrings(const std::string& key, const std::vector<std::string>& values);
  void SetInts(const std::string& key, const std::vector<int32_t>& values);
  void SetBytes(const std::string& key, std::string_view bytes);
  void SetFloats(const std::string& key, const std::vector<float>& values);
  void SetBools(const std::string& key, const std::vector<bool>& values);
  const std::map<std::string, GgufValue, std::less<>>& values() const { return values_; }
  // A whole number that Set wrote; 0: there is none of this name.
  uint32_t Number(const std::string& key) const;

 private:
  std::span<const std::byte> Keep(const void* data, size_t bytes);
  std::map<std::string, GgufValue, std::less<>> values_;
  std::deque<std::string> bytes_;
};

struct HfArchitecture {
  std::string name;        // GGUF's
  bool added_one = false;  // norm weights are stored minus one
  bool permuted = false;   // GGUF stores its queries and keys for the other pairing of rotated elements
  bool after_attention =
      false;  // post_attention_layernorm is no norm before the feed-forward block, or GGUF calls it so
  // Value heads of a delta net that share a key head follow each other. GGUF's qwen35 orders them in turn.
  bool consecutive_heads = false;
  bool tied = false;  // the embedding matrix is the output matrix, whether or not the folder has another one
  // What config.json says of tensors; nullopt: nothing.
  std::optional<bool> attention_bias, qk_norm;
  std::vector<float> rope_long, rope_short;  // divisors of a longrope
  std::vector<float> rope_factors;           // divisors of the frequencies, of layers without a window
};

// kUnimplemented: an unknown model_type, key or value (model/hf/model_types.h has those that are known); kDataLoss: a
// value is missing or of the wrong kind.
StatusOr<HfArchitecture> ReadHfConfig(const boost::json::object& config, Metadata* out);

}  // namespace gyre
