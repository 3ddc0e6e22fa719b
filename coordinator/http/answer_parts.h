// Common parts of all APIs that answer a conversation.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/http/api_context.h"
#include "coordinator/http/api_error.h"
#include "model/tool_reader.h"

namespace gyre::http {

// 404 with the code model_not_found, unless the server has that model.
std::optional<ApiError> CheckModel(const ApiContext& context, const std::string& model);

// The template of the chats, as /props and /api/show give it; "" if it can't be read, as then each chat fails.
std::string ChatTemplateSource(const ApiContext& context);
// What that template says of the model.
struct ChatAbilities {
  bool thinking = false;  // it has markers of reasoning that we know
  bool tools = false;     // it reads tools, and writes their calls in a form that we know
};
ChatAbilities AbilitiesOf(const ApiContext& context);

// Splits one answer into reasoning, content and calls of tools, if the model's template has markers that we know.
class AnswerParts {
 public:
  struct Asked {
    DeclaredTools tools;    // none: there are no calls
    bool parallel = true;   // or the answer ends with its first call
    bool reasoning = true;  // false, or without ApiContext::split_reasoning: it is content
  };
  AnswerParts(const ApiContext& context, const Request& request, Asked asked);
  // False: the whole text is content.
  bool parted() const { return reader_.has_value(); }
  std::vector<AnswerDelta> Push(const TokenEvent& event);
  std::vector<AnswerDelta> Finish(const Finished& event);
  // Whether there was a complete call.
  bool called() const { return called_; }

 private:
  std::vector<AnswerDelta> Note(std::vector<AnswerDelta> deltas);

  std::optional<ToolReader> reader_;
  bool parallel_;
  bool called_ = false;
};

// Appends the deltas; adjacent parts of one kind become one.
void Merge(std::vector<AnswerDelta> deltas, std::vector<AnswerDelta>* all);

}  // namespace gyre::http
