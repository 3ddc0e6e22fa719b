// Lines of OpenAI's batches: requests in one file, answers in another. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace gyre {

struct BatchRequest {
  std::string custom_id;  // its client's name for it, once in a file
  std::string method;     // POST
  std::string path;       // "/v1/chat/completions"
  std::string body;       // JSON, an object
};

// {"custom_id": "...", "method": "POST", "url": "/v1/...", "body": {...}}. kInvalidArgument: it is no such object, or
// the path is not one of `paths`, or the body asks for an answer that no line of JSON should hold: a stream, a .npy
// file, logits.
StatusOr<BatchRequest> ReadBatchRequest(std::string_view line, const std::vector<std::string>& paths);
// The paths that a batch may ask.
const std::vector<std::string>& BatchPaths();

// All of a file, whose empty lines count for nothing. The error names the line. kInvalidArgument: as ReadBatchRequest,
// a custom_id stands twice, or there is no request.
StatusOr<std::vector<BatchRequest>> ReadBatch(std::string_view text, const std::vector<std::string>& paths);
// Where a request stands in its file.
struct BatchLine {
  std::string custom_id;
  uint64_t at = 0, bytes = 0;  // without its line feed
};
// The same without the requests, for those that are read when it is their turn.
StatusOr<std::vector<BatchLine>> FindRequests(std::string_view text, const std::vector<std::string>& paths);

struct BatchResult {
  std::string line;        // with its line feed
  bool succeeded = false;  // an answer with code 200
};
// The line of an answer: {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error": null}. `body`:
// JSON, or any text, which then stands as a string. A body that no JSON can hold makes a failure of it.
BatchResult BatchAnswer(const BatchRequest& request, int status_code, std::string_view request_id,
                        std::string_view body);
// The line of a request that got no answer: "response" is null.
std::string BatchFailure(const BatchRequest& request, std::string_view code, std::string_view message);
// The custom_id of an answer's line; "": it is no such line.
std::string AnsweredId(std::string_view line);

}  // namespace gyre
