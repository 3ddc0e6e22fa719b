// Settings of config.json, also those of single families; for model/hf/config*.cc.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model/hf/config.h"
#include "model/hf/json.h"
#include "model/hf/model_types.h"
#include "model/quoted.h"

namespace gyre {

// Reads values of config.json. An absent key has the value that `absent` gives; null counts as none.
class HfConfig {
 public:
  explicit HfConfig(const boost::json::object& o, boost::json::object absent = {})
      : o_(o), absent_(std::move(absent)) {}
  const boost::json::value* Find(const char* key) const {
    const boost::json::value* v = o_.if_contains(key);
    if (v == nullptr) v = absent_.if_contains(key);
    return v != nullptr && !v->is_null() ? v : nullptr;
  }
  // Whether the file itself has a value.
  bool States(const char* key) const {
    const boost::json::value* v = o_.if_contains(key);
    return v != nullptr && !v->is_null();
  }
  StatusOr<std::optional<uint32_t>> Uint(const char* key) const {
    const boost::json::value* v = Find(key);
    if (v == nullptr) return std::optional<uint32_t>();
    if (!v->is_int64() || v->get_int64() < 0 || v->get_int64() > std::numeric_limits<int32_t>::max()) {
      return DataLoss("{} is {}, expected a whole number", key, Shown(*v));
    }
    return std::optional<uint32_t>(static_cast<uint32_t>(v->get_int64()));
  }
  StatusOr<std::optional<double>> Number(const char* key) const {
    const boost::json::value* v = Find(key);
    if (v == nullptr) return std::optional<double>();
    if (!v->is_number()) return DataLoss("{} is {}, expected a number", key, Shown(*v));
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
  const boost::json::object absent_;
};

// True for each layer whose entry in layer_types is `kind`. Without entries the period counts: every `every`-th layer
// is of the other kind. kUnimplemented: an entry that is neither `kind` nor `other`.
StatusOr<std::vector<bool>> LayersOf(const HfConfig& config, uint32_t layers, std::string_view kind,
                                     std::string_view other, uint32_t every);

// The number of layers before the first with experts, which all layers after it must have. kUnimplemented: others have
// none, too.
StatusOr<uint32_t> LeadingDense(const HfConfig& config, uint32_t layers, uint32_t fallback);

// The rotation of families with attention of their heads' own keys, and its scaling. `prefix`: of GGUF's keys, as
// "qwen35.".
Status ReadRopeParameters(const HfConfig& config, const HfModelType& type, const std::string& prefix,
                          HfArchitecture* arch, Metadata* out);

// Reads the settings that a family has beside the common ones. `layers`: without those for drafts.
Status ReadDeltaNetConfig(const HfConfig& config, const std::string& prefix, uint32_t layers, Metadata* out);
// `sigmoid`: the router's score, if the config does not name it.
Status ReadLatentConfig(const HfConfig& config, const std::string& prefix, uint32_t layers, bool sigmoid,
                        Metadata* out);
// Adds the divisors of the frequencies to `arch`.
Status ReadGemma4Config(const HfConfig& config, const std::string& prefix, uint32_t layers, HfArchitecture* arch,
                        Metadata* out);

}  // namespace gyre
