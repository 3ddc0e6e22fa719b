#include "coordinator/http/sampling_fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <random>
#include <unordered_set>

#include "coordinator/http/json_text.h"
#include "fmt/core.h"
#include "model/weights.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The field belongs to a sampler that Gyre doesn't have. A value from `least` to `most` switches that sampler off, so
// it is accepted; any other value is refused.
void RefuseUnless(JsonFields& fields, const char* name, double least, double most) {
  const json::value* value = fields.Any(name);
  if (value == nullptr) return;
  const double number = value->is_number() ? value->to_number<double>() : std::numeric_limits<double>::quiet_NaN();
  if (number >= least && number <= most) return;
  fields.RefuseAny(name,
                   fmt::format("this sampler is not there; {} switches it off", std::isinf(least) ? most : least));
}

// Reads the order of the samplers, which can't be changed. Clients send llama.cpp's default order, as names or as
// letters, so that is accepted: without the samplers that Gyre doesn't have, it is Gyre's own order.
void ReadSamplerOrder(JsonFields& fields) {
  const json::value* value = fields.Any("samplers");
  if (value == nullptr) return;
  constexpr std::array<std::string_view, 4> kOurs{"top_k", "top_p", "min_p", "temperature"};
  std::vector<std::string_view> ours;
  if (const json::array* names = value->if_array()) {
    for (const json::value& name : *names) {
      const json::string* text = name.if_string();
      if (text == nullptr) return fields.Fail(BadRequest("samplers must be names", "samplers"));
      if (std::count(kOurs.begin(), kOurs.end(), View(*text)) > 0) ours.push_back(View(*text));
    }
    if (names->empty() || std::equal(ours.begin(), ours.end(), kOurs.begin(), kOurs.end())) return;
  } else if (const json::string* letters = value->if_string()) {
    std::string found;
    for (const char letter : View(*letters)) {
      if (std::string_view("kpmt").find(letter) != std::string_view::npos) found += letter;
    }
    if (letters->empty() || found == "kpmt") return;
  }
  fields.RefuseAny("samplers", "their order can't be changed, and each has a field that switches it off");
}

void ReadSampler(JsonFields& fields, const SamplingOption& option, std::string_view name, SamplingParams* s) {
  const double least = option.has_foreign ? std::min(option.least, option.foreign) : option.least;
  std::optional<double> value;
  if (std::holds_alternative<int SamplingParams::*>(option.field)) {
    const auto whole = fields.Integer(name, static_cast<int64_t>(least), static_cast<int64_t>(option.most));
    if (whole) value = static_cast<double>(*whole);
  } else {
    value = fields.Number(name, least, option.most);
  }
  if (!value) return;
  SamplingParams set = *s;
  SetValue(&set, option, *value);
  if (option.has_foreign && ValueOf(set, option) == option.foreign) SetValue(&set, option, option.foreign_means);
  // A number that is above the least one may be this one as a float: 1e-60 is 0.
  if (InRange(option, ValueOf(set, option))) {
    *s = std::move(set);
    return;
  }
  const std::string path = fields.Path(name);
  fields.Fail(BadRequest(fmt::format("{} is {}; it must be {}", path, *value, RangeOf(option)), path));
}

}  // namespace

uint64_t RandomSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

void ReadSamplers(JsonFields& fields, SamplingParams* s) {
  for (const SamplingOption& option : SamplingOptions()) {
    if (option.openai) ReadSampler(fields, option, option.name, s);
    if (!option.openai || option.llama != option.name) ReadSampler(fields, option, option.llama, s);
  }
  const std::optional<std::string> draw = fields.String("draw");
  if (!draw) return;
  if (const auto method = ParseDrawMethod(*draw)) {
    s->draw = *method;
  } else {
    fields.Fail(BadRequest(fmt::format("{} may be uniform or gumbel", fields.Path("draw")), fields.Path("draw")));
  }
}

json::value JsonOf(const SamplingParams& s, const SamplingOption& option) {
  if (const auto* real = std::get_if<float SamplingParams::*>(&option.field)) return DecimalOf(s.**real);
  return s.*std::get<int SamplingParams::*>(option.field);
}

void ReadSamplersAndSeed(JsonFields& fields, const Model& model, SamplingParams* s) {
  *s = DefaultSampling(model);
  if (!model.recommended_sampling().contains("penalty_last_n")) s->penalty_last_n = -1;
  ReadSamplers(fields, s);
  const std::optional<int64_t> seed = fields.Integer("seed", INT64_MIN, INT64_MAX);
  s->seed = seed ? static_cast<uint64_t>(*seed) : RandomSeed();
}

std::vector<TokenId> ReadIds(JsonFields& fields, const std::string& path, const json::array& array, int vocab) {
  std::vector<TokenId> ids;
  ids.reserve(array.size());
  for (const json::value& value : array) {
    const int64_t* id = value.if_int64();
    if (id == nullptr || *id < 0 || *id >= vocab) {
      fields.Fail(BadRequest(
          fmt::format("{}: {} is not a token id; the vocabulary has 0 to {}", path, WriteJson(value), vocab - 1),
          path));
      break;
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

void ReadLogitBias(JsonFields& fields, int vocab, double most, SamplingParams* s) {
  const json::value* value = fields.Any("logit_bias");
  if (value == nullptr) return;
  const std::string path = fields.Path("logit_bias");
  std::unordered_set<TokenId> seen;
  const auto add = [&](std::string_view name, const json::value& bias) {
    TokenId id = -1;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), id);
    if (parsed.ec != std::errc() || fmt::format("{}", id) != name || id < 0 || id >= vocab) {
      return fields.Fail(
          BadRequest(fmt::format("{}: {} is not a token id; the vocabulary has 0 to {}", path, name, vocab - 1), path));
    }
    if (!seen.insert(id).second) {
      return fields.Fail(BadRequest(fmt::format("{} names the token id {} twice", path, id), path));
    }
    const std::string where = fmt::format("{}.{}", path, id);
    if (bias.is_bool() && !bias.get_bool()) {
      s->logit_bias.emplace_back(id, -std::numeric_limits<float>::infinity());
      return;
    }
    if (!bias.is_number()) return fields.Fail(BadRequest(where + " must be a number, or false", where));
    const double number = bias.to_number<double>();
    if (number < -most || number > most) {
      return fields.Fail(BadRequest(
          fmt::format("{} is {}; it may be {} to {}, or false", where, WriteJson(bias), -most, most), where));
    }
    s->logit_bias.emplace_back(id, static_cast<float>(number));
  };
  if (const json::object* by_id = value->if_object()) {
    for (const auto& [key, bias] : *by_id) add(View(key), bias);
    return;
  }
  const json::array* pairs = value->if_array();
  for (size_t i = 0; pairs != nullptr && i < pairs->size(); ++i) {
    const json::array* pair = (*pairs)[i].if_array();
    if (pair == nullptr || pair->size() != 2 || !((*pair)[0].is_int64() || (*pair)[0].is_uint64())) {
      pairs = nullptr;
      break;
    }
    add(WriteJson((*pair)[0]), (*pair)[1]);
  }
  if (pairs == nullptr) {
    fields.Fail(BadRequest(path + " must be an object of token ids, or pairs of a token id and a bias", path));
  }
}

void ReadStops(JsonFields& fields, std::string_view name, Question* question) {
  const json::value* value = fields.Any(name);
  if (value == nullptr) return;
  const RequestLimits limits;
  const std::string path = fields.Path(name);
  std::vector<std::string>& stops = question->stops;
  const auto add = [&](const json::value& stop) {
    if (!stop.is_string()) {
      return fields.Fail(BadRequest(fmt::format("{} must be a string or an array of strings", path), path));
    }
    if (stop.get_string().empty()) return;
    stops.emplace_back(View(stop.get_string()));
    if (stops.back().size() <= limits.max_stop_bytes) return;
    fields.Fail(BadRequest(fmt::format("{}: a string has {} bytes; it may have {} at most", path, stops.back().size(),
                                       limits.max_stop_bytes),
                           path));
  };
  if (const json::array* list = value->if_array()) {
    for (const json::value& stop : *list) add(stop);
  } else {
    add(*value);
  }
  if (stops.size() > limits.max_stops) {
    fields.Fail(
        BadRequest(fmt::format("{} has {} strings; at most {} are taken", path, stops.size(), limits.max_stops), path));
  }
}

void ReadEnds(JsonFields& fields, int vocab, Question* question) {
  ReadStops(fields, "stop", question);
  question->ignore_end = fields.Bool("ignore_eos").value_or(false);
  question->min_new_tokens = static_cast<uint32_t>(fields.Integer("min_tokens", 0, UINT32_MAX).value_or(0));
  const json::array* ids = fields.Array("stop_token_ids");
  if (ids == nullptr) return;
  const std::string path = fields.Path("stop_token_ids");
  const RequestLimits limits;
  if (ids->size() > limits.max_stop_ids) {
    return fields.Fail(
        BadRequest(fmt::format("{} has {} ids; at most {} are taken", path, ids->size(), limits.max_stop_ids), path));
  }
  const std::vector<TokenId> read = ReadIds(fields, path, *ids, vocab);
  question->stop_ids.insert(question->stop_ids.end(), read.begin(), read.end());
}

void ReadMostTokens(JsonFields& fields, std::string_view name, int64_t least, Question* question) {
  const std::optional<int64_t> most = fields.Integer(name, least, UINT32_MAX);
  if (!most || *most < 0) return;
  if (question->max_new_tokens && *question->max_new_tokens != *most) {
    fields.Fail(BadRequest(fmt::format("{} is {}, but another field has the limit {}", fields.Path(name), *most,
                                       *question->max_new_tokens),
                           fields.Path(name)));
  }
  question->max_new_tokens = static_cast<uint32_t>(*most);
}

void ReadOtherServersFields(JsonFields& fields) {
  RefuseUnless(fields, "mirostat", 0, 0);
  RefuseUnless(fields, "dynatemp_range", 0, 0);
  RefuseUnless(fields, "typical_p", 1, kInfinity);
  RefuseUnless(fields, "tfs_z", 1, kInfinity);
  RefuseUnless(fields, "xtc_probability", 0, 0);
  RefuseUnless(fields, "dry_multiplier", 0, 0);
  RefuseUnless(fields, "top_n_sigma", -kInfinity, 0);
  RefuseUnless(fields, "adaptive_target", -kInfinity, -1);
  RefuseUnless(fields, "length_penalty", 1, 1);
  ReadSamplerOrder(fields);
  fields.Refuse("t_max_predict_ms", "an answer is limited by its tokens, not by time");
  fields.Refuse("t_max_prompt_ms", "an answer is limited by its tokens, not by time");
  fields.Refuse("n_indent", "lines are not counted");
  fields.Refuse("image_data", "the model reads text alone");
  fields.Refuse("use_beam_search", "texts are sampled");
  fields.Refuse("early_stopping", "texts are sampled");
  fields.Refuse("include_stop_str_in_output", "a text ends before its stop string");
  fields.Refuse("bad_words", "logit_bias forbids token ids");
  fields.Refuse("allowed_token_ids", "logit_bias forbids token ids");
  for (const char* name : {"skip_special_tokens", "detokenize"}) {
    if (!fields.Bool(name).value_or(true)) fields.RefuseAny(name, "return_token_ids gives all ids");
  }
  for (const char* name : {"mirostat_tau",
                           "mirostat_eta",
                           "dynatemp_exponent",
                           "xtc_threshold",
                           "dry_base",
                           "dry_allowed_length",
                           "dry_penalty_last_n",
                           "dry_sequence_breakers",
                           "adaptive_decay",
                           "penalize_nl",
                           "penalize_newline",
                           "min_keep",
                           "cache_prompt",
                           "id_slot",
                           "n_keep",
                           "n_discard",
                           "keep_alive",
                           "preserved_tokens",
                           "chat_format",
                           "thinking_forced_open",
                           "generation_prompt",
                           "backend_sampling",
                           "return_progress",
                           "verbose",
                           "spaces_between_special_tokens",
                           "request_id"}) {
    fields.Ignore(name);
  }
  fields.IgnoreAll("speculative.");
}

}  // namespace gyre::http
