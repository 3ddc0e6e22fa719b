// Common parts of all APIs that answer a conversation.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/http/api_context.h"
#include "coordinator/http/api_error.h"
#include "model/answer_splitter.h"

namespace gyre::http {

// 404 with the code model_not_found, unless the server has that model.
std::optional<ApiError> CheckModel(const ApiContext& context, const std::string& model);

// Splits one answer into reasoning and content, if the model's template has markers that we know and
// ApiContext::split_reasoning is set; else the whole text is content.
class AnswerParts {
 public:
  AnswerParts(const ApiContext& context, std::span<const TokenId> prompt);
  // Otherwise the whole text is content.
  bool parted() const { return splitter_.has_value(); }
  std::vector<AnswerSplitter::Piece> Push(const TokenEvent& event);
  std::vector<AnswerSplitter::Piece> Finish(const Finished& event);

 private:
  std::optional<AnswerSplitter> splitter_;
};

}  // namespace gyre::http
