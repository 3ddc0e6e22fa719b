// Fields of the settings of a generation that the APIs share, each with its own names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/http/api_context.h"
#include "coordinator/http/json_fields.h"
#include "coordinator/service/service.h"

namespace gyre::http {

// SamplingOptions, under all names that servers have for them; `s` has the defaults.
void ReadSamplers(JsonFields& fields, SamplingParams* s);
// The value of one, a float with the digits that a person would write.
boost::json::value JsonOf(const SamplingParams& params, const SamplingOption& option);

// The model's defaults, then ReadSamplers and seed, any number of 64 bits. Without a seed one is drawn.
void ReadSamplersAndSeed(JsonFields& fields, const Model& model, SamplingParams* s);

// The array as token ids. 400: an element is no id of the vocabulary; then what was read so far is returned.
std::vector<TokenId> ReadIds(JsonFields& fields, const std::string& path, const boost::json::array& array, int vocab);

// logit_bias: {"id": bias} or [[id, bias], ...]. A bias is a number from -most to most, or false, which forbids the id.
void ReadLogitBias(JsonFields& fields, int vocab, double most, SamplingParams* s);

// stop: a string or several; empty ones are left out. stop_token_ids, min_tokens, ignore_eos.
void ReadEnds(JsonFields& fields, int vocab, Question* question);
// The field as strings for Question::stops.
void ReadStops(JsonFields& fields, std::string_view name, Question* question);

// A limit of the number of tokens: 0 or more, -1 (or less, down to `least`) is no limit. The limit so far stays if the
// field is absent; 400 if the two differ.
void ReadMostTokens(JsonFields& fields, std::string_view name, int64_t least, Question* question);

// Takes the fields of samplers that Gyre doesn't have, with the values that switch them off. The further settings of
// these, and the settings of other servers' caches and slots, have no effect.
void ReadOtherServersFields(JsonFields& fields);

uint64_t RandomSeed();

}  // namespace gyre::http
