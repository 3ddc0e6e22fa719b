// Fields that several of OpenAI's routes share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "coordinator/http/api_context.h"
#include "coordinator/http/json_fields.h"
#include "coordinator/service.h"

namespace gyre::http {

// One HTTP request leads to so many requests to the engine at most.
inline constexpr int64_t kMaxChoices = 128;

// The name that the client gave, or the model's own where it gave none. 404: the model does not answer to it.
std::string ReadModel(JsonFields& fields, const ApiContext& context);

// temperature, top_p, penalties, logit_bias and seed, and Gyre's own: top_k, min_p, repetition_penalty, ignore_eos,
// priority and cache_salt. Defaults are OpenAI's: temperature 1, no filter. Without a seed a random one is taken.
void ReadSampling(JsonFields& fields, const ApiContext& context, Question* question);

// Higher first.
int ReadPriority(JsonFields& fields);
// A number for a text: requests with different texts share no prefix cache. 0: absent.
uint64_t ReadCacheSalt(JsonFields& fields);

// A string, or up to 16 of them.
std::vector<std::string> ReadStop(JsonFields& fields);

// Refuses tools, but takes what says that there are none.
void ReadTools(JsonFields& fields);

// Fields for whoever keeps accounts or stores answers, which change nothing here.
void IgnoreAccounting(JsonFields& fields);

struct StreamFields {
  bool stream = false, include_usage = false;
};
StreamFields ReadStreaming(JsonFields& fields);

// The field as a list of texts or of token ids: it is a string, an array of strings, an array of ids, or an array of
// such arrays. At most `most`, and at least one.
using PromptInput = std::variant<std::string, std::vector<TokenId>>;
std::vector<PromptInput> ReadPrompts(JsonFields& fields, std::string_view name, int vocab, int64_t most);

// `n` requests that differ in their seeds alone, behind those that are there. Tokenizes.
std::optional<ApiError> AddRequests(const Service& service, Question question, int64_t n, std::string param,
                                    std::vector<Request>* requests);

}  // namespace gyre::http
