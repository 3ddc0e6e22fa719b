// Texts and ids as vectors, for the APIs that have them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/http/api_context.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/exchange.h"

namespace gyre::http {

inline constexpr size_t kMaxEmbeddings = 2048;  // of a request

// The vectors of one HTTP request, on their way from its body to the answer.
struct EmbeddingsJob {
  const Clock::time_point begun = Clock::now();
  std::string model;
  std::vector<Request> requests;
  bool base64 = false;
  size_t dimensions = 0;                    // the vectors keep so many values
  bool normalize = true;                    // they get the length one; a vector of zeros stays
  std::vector<std::vector<float>> vectors;  // [input]
  uint64_t tokens = 0;
};

// `read` makes the requests from the HTTP request, `write` the body of its answer. Both run on a thread of the service,
// as they tokenize and make long JSON. All vectors are computed, several at once. The context outlives it.
Awaitable<void> RunEmbeddings(
    const ApiContext& context, Exchange& exchange,
    std::function<std::optional<ApiError>(const ApiContext&, const HttpRequest&, EmbeddingsJob*)> read,
    std::function<std::string(const EmbeddingsJob&)> write);

}  // namespace gyre::http
