// The OpenAI API from a client's side: models, events of a stream, errors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "http_client/http_client.h"

namespace gyre {

struct ApiModel {
  std::string id;
  uint32_t context = 0;  // tokens; 0 = not told
  int vocab = 0;         // 0 = not told
  std::string hash;      // the model file's; "" = not told
};

struct ApiUsage {
  uint32_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
};

// A call of a tool.
struct ApiCall {
  std::string id, name;
  std::string arguments;  // JSON, as the model wrote it
};

// The content of one event of a stream, or of a whole answer that does not stream.
struct ApiChunk {
  bool answers = false;  // it has a choice, be it without text
  std::string text, reasoning;
  std::vector<TokenId> ids;  // where the server was asked for them and tells them
  // A call, or a part of one: what is not in this part is empty.
  struct CallPart : ApiCall {
    int64_t index = -1;  // of the call; -1 = not told
  };
  std::vector<CallPart> calls;
  std::string finish_reason;  // "" = not yet
  std::optional<ApiUsage> usage;
  double queue_seconds = -1;  // how long the request waited; -1 = not told
};

// Parses the data of one event of /v1/completions or /v1/chat/completions other than "[DONE]". kDataLoss: it is
// neither. An error in it becomes the status; an event of the name "error" is one, whatever its form.
StatusOr<ApiChunk> ParseApiChunk(std::string_view data, std::string_view event = "");

// Puts the calls of one answer together from their parts. Not thread-safe.
class ApiCalls {
 public:
  // kDataLoss: parts of a call that never began, more than 128 calls, or more than 16 MiB.
  Status Take(const std::vector<ApiChunk::CallPart>& parts);
  // `cut`: the answer was cut; a call whose arguments are no JSON object then is left out.
  std::vector<ApiCall> Finish(bool cut);

 private:
  std::vector<ApiCall> calls_;
  size_t bytes_ = 0;
};

// The error of an answer whose code is not 200, in the server's own words. 400, 405, 413, 415, 422: kInvalidArgument;
// 401, 403: kPermissionDenied; 404: kNotFound; 429: kResourceExhausted; others: kUnavailable.
Status ApiError(const Url& url, const HttpResponse& response);

// A URL as users give it, "http://host:port" or with the path of the API; without a path the API is at /v1.
StatusOr<Url> ParseApiUrl(const std::string& text);

// GET BASE/models. Returns at least one model; errors as Fetch and ApiError.
StatusOr<std::vector<ApiModel>> FetchModels(HttpClient* client, const std::function<bool()>& interrupted);

}  // namespace gyre
