#include "coordinator/http/embeddings_job.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "coordinator/http/generation.h"

namespace gyre::http {
namespace {

constexpr size_t kAtOnce = 32;  // requests to the engine

// Gives the vector the length one. A vector of zeros stays.
void NormalizeEmbedding(std::vector<float>* vector) {
  double sum = 0;
  for (float v : *vector) sum += double{v} * v;
  const double scale = sum > 0 ? 1 / std::sqrt(sum) : 0;
  for (float& v : *vector) v = static_cast<float>(v * scale);
}

// Computes the vectors of all requests.
Awaitable<std::optional<ApiError>> ComputeEmbeddings(const ApiContext& context, Exchange& exchange,
                                                     EmbeddingsJob& job) {
  job.vectors.resize(job.requests.size());
  for (size_t first = 0; first < job.requests.size() && !exchange.gone(); first += kAtOnce) {
    const size_t end = std::min(first + kAtOnce, job.requests.size());
    const auto begin = std::make_move_iterator(job.requests.begin());
    std::vector<Request> some(begin + static_cast<ptrdiff_t>(first), begin + static_cast<ptrdiff_t>(end));
    Generation generation(exchange, context);
    std::optional<ApiError> error = generation.Start(std::move(some));
    if (error) co_return error;
    while (std::optional<Generation::Item> item = co_await generation.Next()) {
      if (auto* vector = std::get_if<EmbeddingEvent>(&item->event)) {
        job.vectors[first + item->index] = std::move(vector->values);
      } else if (const auto* finished = std::get_if<Finished>(&item->event)) {
        job.tokens += finished->usage.prompt_tokens;
      } else {
        error = ErrorOf(item->event);
        if (error) co_return error;
      }
    }
  }
  co_return std::nullopt;
}

}  // namespace

Awaitable<void> RunEmbeddings(
    const ApiContext& context, Exchange& exchange,
    std::function<std::optional<ApiError>(const ApiContext&, const HttpRequest&, EmbeddingsJob*)> read,
    std::function<std::string(const EmbeddingsJob&)> write) {
  EmbeddingsJob job;
  std::optional<ApiError> error;
  std::function<void()> read_body = [&] { error = read(context, exchange.request(), &job); };
  Status posted = co_await RunOnService(exchange, context.service, std::move(read_body));
  if (!posted.ok()) error = FromStatus(posted);
  if (!error && !exchange.gone()) error = co_await ComputeEmbeddings(context, exchange, job);
  if (exchange.gone()) co_return;
  HttpResponse response;
  if (!error) {
    std::function<void()> write_body = [&] {
      for (std::vector<float>& vector : job.vectors) {
        vector.resize(std::min(job.dimensions, vector.size()));
        if (job.normalize) NormalizeEmbedding(&vector);
      }
      response.body = write(job);
    };
    posted = co_await RunOnService(exchange, context.service, std::move(write_body));
    if (!posted.ok()) error = FromStatus(posted);
  }
  if (error) {
    co_await RespondError(exchange, *std::move(error));
  } else {
    co_await exchange.Respond(std::move(response));
  }
}

}  // namespace gyre::http
