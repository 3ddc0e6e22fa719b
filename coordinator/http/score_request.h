// The body of POST /v1/score, read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/http/api_context.h"
#include "coordinator/http/api_error.h"
#include "scoring/score_record.h"

namespace gyre::http {

inline constexpr int64_t kMaxScored = 2048;  // inputs of a request

struct ScoreJob {
  struct Input {
    Request request;  // with ScoreSettings
    // The student's log-probabilities of the ids that the settings name, position by position.
    std::vector<std::vector<float>> student;
    uint32_t rows() const { return static_cast<uint32_t>(request.prompt.size()) - request.score->from; }
  };
  std::string model;
  std::vector<Input> inputs;
  ScoreFormat format;
  enum class Form : uint8_t { kJson, kNpy, kArrow } form = Form::kJson;  // of the answer
  double beta = 0.5;                                                     // of the Jensen-Shannon divergence
};

// Runs on a thread of the service, as it tokenizes.
std::optional<ApiError> ReadScoreJob(const ApiContext& context, const HttpRequest& http, ScoreJob* job);

}  // namespace gyre::http
