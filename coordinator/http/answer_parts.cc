#include "coordinator/http/answer_parts.h"

#include "fmt/format.h"
#include "model/weights.h"

namespace gyre::http {
namespace {

std::vector<AnswerSplitter::Piece> Content(const std::string& text) {
  if (text.empty()) return {};
  return {{false, text}};
}

}  // namespace

std::optional<ApiError> CheckModel(const ApiContext& context, const std::string& model) {
  if (context.Serves(model)) return std::nullopt;
  return ApiError{.status = 404,
                  .message = fmt::format("there is no model \"{}\" here; this server has {}", model,
                                         fmt::join(context.models, ", ")),
                  .param = "model",
                  .code = "model_not_found"};
}

AnswerParts::AnswerParts(const ApiContext& context, std::span<const TokenId> prompt) {
  const Model& model = context.service.model();
  if (!context.split_reasoning || model.tokenizer() == nullptr) return;
  AnswerFormat format = FindAnswerFormat(model.chat_template(), *model.tokenizer(), prompt);
  if (format.marked()) splitter_.emplace(std::move(format));
}

std::vector<AnswerSplitter::Piece> AnswerParts::Push(const TokenEvent& event) {
  return splitter_ ? splitter_->Push(event.token, event.text) : Content(event.text);
}

std::vector<AnswerSplitter::Piece> AnswerParts::Finish(const Finished& event) {
  return splitter_ ? splitter_->Finish(event.text) : Content(event.text);
}

}  // namespace gyre::http
