// The model types that config.json may name: what they are in GGUF, and which keys each of them knows.
//
// transformers is the measure: a key that its code for this model type does not look at means nothing here. A key that
// is neither known nor listed as meaningless is refused, because it may change what the model computes.
#pragma once

#include <array>
#include <boost/json.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace gyre {

enum class KeyKind : uint8_t {
  kWhole,  // a whole number, 0 or more
  kNumber,
  kFlag,
  kText,
  kList,
  kObject,
  kNothing,  // transformers does not look at it
};

struct ConfigKey {
  const char* name;
  KeyKind kind;
  // GGUF's name of the same setting, after the architecture; null: code reads the key, or `only` says all about it.
  const char* to = nullptr;
  // A JSON list of the values that are computed; null: all are. null as a value is always one of them.
  const char* only = nullptr;
};

// Families whose settings have other names than Llama's.
enum class HfFamily : uint8_t { kAttention, kGemma4, kDeltaNet, kLatent };

// The rule that says which layers attend to a window of sliding_window positions only.
enum class WindowRule : uint8_t {
  kNone,
  kAll,
  kEvery,     // all but each `every`-th one, unless layer_types says otherwise
  kSwitched,  // with use_sliding_window those from max_window_layers on, unless layer_types says otherwise
  kOwn,       // the family's own function reads layer_types
};

struct HfModelType {
  const char* model_type = nullptr;
  const char* name = nullptr;  // GGUF's architecture
  HfFamily family = HfFamily::kAttention;
  bool gemma = false, permuted = false;
  bool added_one = false;        // norm weights are stored minus one
  bool after_attention = false;  // the tensor post_attention_layernorm is post_attention_norm in GGUF too
  bool layer_ropes = false;      // rope_parameters may have an object for each type of layers
  bool sigmoid = false;          // the router's score, where scoring_func does not say it
  WindowRule window = WindowRule::kNone;
  uint32_t every = 0;
  std::array<std::span<const ConfigKey>, 7> keys = {};  // of several entries for a key the first one counts
  // JSON: the values that transformers assumes for absent keys, where they matter.
  const char* absent = "{}";
};

// Null: the type is not known.
const HfModelType* FindModelType(std::string_view model_type);
// All names, with a space before each.
std::string KnownModelTypes();

// The entry of a key; null: this type does not know it.
const ConfigKey* FindKey(const HfModelType& type, std::string_view key);
// Checks every key of the object that holds the language model's settings. kUnimplemented: a key that is not known, or
// a value that is not computed; kDataLoss: a value of another kind.
Status CheckKeys(const HfModelType& type, const boost::json::object& config);

// Whether `name` is in a list of names, in which "*" at an end stands for anything.
bool IsListed(std::span<const std::string_view> names, std::string_view name);
// Refuses keys of `o` that are not listed, unless their values say nothing (null, or empty). `where`: the object's
// name, for messages. kUnimplemented.
Status OnlyKeys(const boost::json::object& o, std::span<const std::string_view> known, std::string_view where);
// Refuses values of `key` other than those in the JSON list `values`. An absent or empty value is right.
// kUnimplemented.
Status OnlyValues(const boost::json::object& o, const char* key, const char* values, std::string_view where);
// Whether GGUF stores queries and keys of this architecture for the other pairing of rotated elements; nullopt: no
// folder of it is read here.
std::optional<bool> IsPermuted(std::string_view gguf_name);
// Whether a key of config.json means nothing to what any model computes.
bool IsMeaningless(std::string_view key);

}  // namespace gyre
