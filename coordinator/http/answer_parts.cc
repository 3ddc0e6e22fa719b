#include "coordinator/http/answer_parts.h"

#include "coordinator/http/json_text.h"
#include "fmt/format.h"
#include "model/chat_template.h"
#include "model/weights.h"

namespace gyre::http {
namespace {

std::vector<AnswerDelta> Content(const std::string& text) {
  if (text.empty()) return {};
  return {{.kind = AnswerDelta::Kind::kContent, .text = text}};
}

bool IsHosted(std::string_view model) {
  for (const std::string_view beginning : {"claude-", "gpt-", "chatgpt-", "text-embedding-"}) {
    if (model.substr(0, beginning.size()) == beginning) return true;
  }
  // o1, o3-mini and their kin.
  return model.size() > 1 && model[0] == 'o' && model[1] >= '1' && model[1] <= '9' &&
         (model.size() == 2 || model[2] == '-');
}

}  // namespace

uint32_t ApiContext::AdapterOf(std::string_view name) const {
  if (Has(name)) return 0;
  const auto& adapters = service.model().adapters();
  for (size_t i = 0; i < adapters.size(); ++i) {
    if (adapters[i]->name() == name) return static_cast<uint32_t>(i + 1);
  }
  return 0;
}

bool ApiContext::Serves(std::string_view model) const {
  if (Has(model) || AdapterOf(model) != 0) return true;
  return !model.empty() && (other_names == OtherNames::kAny || (other_names == OtherNames::kHosted && IsHosted(model)));
}

std::optional<ApiError> CheckModel(const ApiContext& context, const std::string& model) {
  if (context.Serves(model)) return std::nullopt;
  std::vector<std::string> names = context.models;
  for (const auto& adapter : context.service.model().adapters()) names.push_back(adapter->name());
  return ApiError{
      .status = 404,
      .message = fmt::format("there is no model \"{}\" here; this server has {}", model, fmt::join(names, ", ")),
      .param = "model",
      .code = "model_not_found"};
}

std::string ChatTemplateSource(const ApiContext& context) {
  const StatusOr<ChatTemplate> chat = ChatTemplate::ForModel(context.service.model());
  return chat.ok() ? ValidUtf8(chat->source()) : std::string();
}

ChatAbilities AbilitiesOf(const ApiContext& context) {
  const Model& model = context.service.model();
  const StatusOr<ChatTemplate> chat = ChatTemplate::ForModel(model);
  if (!chat.ok()) return {};
  const AnswerFormat format = FindAnswerFormat(model.chat_template(), *model.tokenizer(), {});
  return {.thinking = context.split_reasoning && (format.channels || !format.close.empty()),
          .tools = chat->takes_tools() && format.tools != nullptr};
}

AnswerParts::AnswerParts(const ApiContext& context, const Request& request, Asked asked) : parallel_(asked.parallel) {
  const Model& model = context.service.model();
  if (model.tokenizer() == nullptr) return;
  AnswerFormat format = FindAnswerFormat(model.chat_template(), *model.tokenizer(), request.prompt);
  const bool calls = !asked.tools.empty() && format.tools != nullptr;
  const bool reasoning = asked.reasoning && context.split_reasoning;
  if (!reasoning) {
    format.open.clear();
    format.close.clear();
  }
  if (calls || (reasoning && format.marked())) {
    const bool obey = request.grammar_source && request.grammar_source->kind == grammar::SourceKind::kToolCalls;
    reader_.emplace(std::move(format), std::move(asked.tools), ToolReader::Options{.names_may_repeat = obey});
  }
}

std::vector<AnswerDelta> AnswerParts::Note(std::vector<AnswerDelta> deltas) {
  std::vector<AnswerDelta> out;
  for (AnswerDelta& delta : deltas) {
    if (called_ && !parallel_) break;
    called_ |= delta.kind == AnswerDelta::Kind::kCallEnd;
    out.push_back(std::move(delta));
  }
  return out;
}

std::vector<AnswerDelta> AnswerParts::Push(const TokenEvent& event) {
  return reader_ ? Note(reader_->Push(event.token, event.text)) : Content(event.text);
}

std::vector<AnswerDelta> AnswerParts::Finish(const Finished& event) {
  if (!reader_) return Content(event.text);
  return Note(reader_->Finish(event.text, event.reason == FinishReason::kLength));
}

void Merge(std::vector<AnswerDelta> deltas, std::vector<AnswerDelta>* all) {
  using Kind = AnswerDelta::Kind;
  for (AnswerDelta& delta : deltas) {
    const bool alone = delta.kind == Kind::kCall || delta.kind == Kind::kCallEnd;
    if (alone || all->empty() || all->back().kind != delta.kind) {
      all->push_back(std::move(delta));
    } else {
      all->back().text += delta.text;
    }
  }
}

}  // namespace gyre::http
