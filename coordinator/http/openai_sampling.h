// Fields that several of OpenAI's routes share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "coordinator/http/api_context.h"
#include "coordinator/http/json_fields.h"
#include "coordinator/service/service.h"

namespace gyre::http {

// The most requests to the engine that one HTTP request makes.
inline constexpr int64_t kMaxChoices = 128;

// The name that the client gave, or else the model's own. 404: the model does not answer to it.
std::string ReadModel(JsonFields& fields, const ApiContext& context);

// The adapter that the name of a model means, or that `lora` names: its name, or a list of {"id", "scale"} as
// llama.cpp's server has it, with one scale of 1. 0: none. 400: there is no such adapter.
uint32_t ReadAdapter(JsonFields& fields, const ApiContext& context, std::string_view model);

// Reads all settings of a generation but the limit of its tokens: those of sampling_fields.h and grammar_fields.h,
// seed, priority and cache_salt. Defaults are those of DefaultSampling. Without a seed one is drawn.
void ReadSampling(JsonFields& fields, const ApiContext& context, std::string_view name, Question* question);

// A higher priority comes first.
int ReadPriority(JsonFields& fields);
// A number made from the text: requests with different texts share no prefix cache. 0: absent.
uint64_t ReadCacheSalt(JsonFields& fields);

// Ignores fields for accounting or for storing answers, as they have no effect here. `stores`: the route has read
// `store` itself.
void IgnoreAccounting(JsonFields& fields, bool stores = false);

struct StreamFields {
  bool stream = false, include_usage = false;
  bool progress = false;  // of the prompt, in a stream
};
StreamFields ReadStreaming(JsonFields& fields);

// The field as a list of texts or of token ids: it is a string, an array of strings, an array of ids, or an array of
// such arrays. At least one, and at most `most`.
using PromptInput = std::variant<std::string, std::vector<TokenId>>;
std::vector<PromptInput> ReadPrompts(JsonFields& fields, std::string_view name, int vocab, int64_t most);

// Appends `n` requests that differ only in their seeds. Tokenizes.
std::optional<ApiError> AddRequests(const Service& service, Question question, int64_t n, std::string param,
                                    std::vector<Request>* requests);

}  // namespace gyre::http
