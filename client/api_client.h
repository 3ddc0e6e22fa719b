// A client of an OpenAI-compatible server that gets one answer at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "boost/json/object.hpp"
#include "client/openai.h"
#include "http_client/http_client.h"

namespace gyre {

struct ApiOptions {
  std::string url;       // as ParseApiUrl takes it
  std::string model_id;  // "" = the first that the server lists
  HttpClientOptions http;
};

// The end of an answer.
struct ApiEnd {
  std::string finish_reason;  // "" = the server did not say
  ApiUsage usage;             // zeros where it did not say
  Duration to_first_token{}, total{};
};

// Not thread-safe.
class ApiClient {
 public:
  // Asks the server for its models. kInvalidArgument: the URL; errors as HttpClient::Make, Fetch and ApiError.
  // A server without a list of models is fine where model_id is given.
  static StatusOr<std::unique_ptr<ApiClient>> Open(const ApiOptions& options, const std::function<bool()>& interrupted);

  const ApiModel& model() const { return model_; }
  HttpClient* http() { return http_.get(); }

  // POST BASE/completions, or chat/completions, with `body` and the fields for streaming. Chunks come on the calling
  // thread. `interrupted` is asked every 50 ms; if it is true, the connection is closed and the error is kCancelled.
  // Other errors as FetchStream, ApiError and ParseApiChunk. Chunks before an error have been handed over.
  StatusOr<ApiEnd> Generate(boost::json::object body, bool chat, const std::function<void(const ApiChunk&)>& on_chunk,
                            const std::function<bool()>& interrupted);

 private:
  ApiClient(std::unique_ptr<HttpClient> http, ApiModel model) : http_(std::move(http)), model_(std::move(model)) {}

  const std::unique_ptr<HttpClient> http_;
  const ApiModel model_;
};

}  // namespace gyre
