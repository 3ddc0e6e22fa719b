// Turns a conversation into the text, and the token ids, that a model continues.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "boost/json/array.hpp"
#include "boost/json/object.hpp"
#include "boost/json/value.hpp"
#include "model/answer_format.h"
#include "model/jinja/template.h"
#include "model/tokenizer.h"

namespace gyre {

class Model;

struct Conversation {
  boost::json::array messages;  // {"role", "content", ...} each, as the OpenAI API has them
  boost::json::value tools;     // an array, or null
  bool add_generation_prompt = true;
  boost::json::object extra;  // further variables of the template, such as enable_thinking
};

// The ids of a conversation that the model continues.
struct ChatPrompt {
  std::vector<TokenId> ids, stop_ids;  // stop_ids: end tokens that the tokenizer itself does not know as such
  std::string format;                  // "model", or the built-in template that was taken
  AnswerFormat answer;                 // what follows
};

// Uses the template that ChatTemplate::ForModel chooses. Errors: those of ForModel and Encode.
StatusOr<ChatPrompt> MakeChatPrompt(const Model& model, const std::string& format, const Conversation& conversation);

// Immutable, thread-safe.
class ChatTemplate {
 public:
  // kInvalidArgument: not a template. bos, eos: the texts of these tokens.
  static StatusOr<ChatTemplate> Parse(std::string_view source, std::string bos, std::string eos);
  // `format` names a built-in template. "" takes the model's own template; if that is missing or can't be read, the
  // built-in one whose marker is in the model's template or vocabulary. kFailedPrecondition: the model has no
  // tokenizer; kInvalidArgument: no such format.
  static StatusOr<ChatTemplate> ForModel(const Model& model, const std::string& format = "");
  static const std::vector<std::string>& BuiltIn();  // names

  // "model", or the built-in one's name.
  const std::string& name() const { return name_; }
  // kInvalidArgument: the template refuses the conversation; the message has its words.
  StatusOr<std::string> Render(const Conversation& conversation, const std::tm* now = nullptr) const;
  // Control tokens that the template writes become their ids. Text in a message that spells one stays text.
  // Errors as Render.
  StatusOr<std::vector<TokenId>> Encode(const Conversation& conversation, const Tokenizer& tokenizer) const;
  // The control token that the template puts after a reply, beside the tokenizer's own ends; -1: none.
  TokenId EndOfTurn(const Tokenizer& tokenizer) const;

 private:
  ChatTemplate(jinja::Template t, std::string name, std::string bos, std::string eos)
      : template_(std::make_shared<const jinja::Template>(std::move(t))),
        name_(std::move(name)),
        bos_(std::move(bos)),
        eos_(std::move(eos)) {}

  std::shared_ptr<const jinja::Template> template_;
  std::string name_, bos_, eos_;
};

}  // namespace gyre
