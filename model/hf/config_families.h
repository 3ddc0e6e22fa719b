// Settings of config.json, also those of single families; for model/hf/config*.cc.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "base/status.h"
#include "model/hf/config.h"
#include "model/quoted.h"

namespace gyre {

// Families whose settings have other names than Llama's.
enum class HfFamily : uint8_t { kAttention, kGemma4, kDeltaNet, kLatent };

// Reads values of config.json; null counts as absent.
class HfConfig {
 public:
  explicit HfConfig(const boost::json::object& o) : o_(o) {}
  const boost::json::value* Find(const char* key) const {
    const boost::json::value* v = o_.if_contains(key);
    return v != nullptr && !v->is_null() ? v : nullptr;
  }
  StatusOr<std::optional<uint32_t>> Uint(const char* key) const {
    const boost::json::value* v = Find(key);
    if (v == nullptr) return std::optional<uint32_t>();
    if (!v->is_int64() || v->get_int64() < 0 || v->get_int64() > std::numeric_limits<int32_t>::max()) {
      return DataLoss("{} is {}, expected a whole number", key, Printable(boost::json::serialize(*v)));
    }
    return std::optional<uint32_t>(static_cast<uint32_t>(v->get_int64()));
  }
  StatusOr<std::optional<double>> Number(const char* key) const {
    const boost::json::value* v = Find(key);
    if (v == nullptr) return std::optional<double>();
    if (!v->is_number()) return DataLoss("{} is {}, expected a number", key, Printable(boost::json::serialize(*v)));
    return std::optional<double>(v->to_number<double>());
  }
  std::string Text(const char* key) const {
    const boost::json::value* v = Find(key);
    return v != nullptr && v->is_string() ? std::string(v->get_string().data(), v->get_string().size()) : std::string();
  }
  std::optional<bool> Bool(const char* key) const {
    const boost::json::value* v = Find(key);
    return v != nullptr && v->is_bool() ? std::optional<bool>(v->get_bool()) : std::nullopt;
  }

 private:
  const boost::json::object& o_;
};

// Reads the settings that a family has beside the common ones. `prefix`: of its keys, as "qwen35."; `layers`: without
// those for drafts.
Status ReadDeltaNetConfig(const HfConfig& config, const std::string& prefix, uint32_t layers, Metadata* out);
// `sigmoid`: the router's score, if the config does not name it.
Status ReadLatentConfig(const HfConfig& config, const std::string& prefix, uint32_t layers, bool sigmoid,
                        Metadata* out);
// Adds the divisors of the frequencies to `arch`.
Status ReadGemma4Config(const HfConfig& config, const std::string& prefix, uint32_t layers, HfArchitecture* arch,
                        Metadata* out);

}  // namespace gyre
