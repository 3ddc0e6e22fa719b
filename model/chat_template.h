// Turns a conversation into the text, and the token ids, that a model continues.
#pragma once

#include <map>
#include <memory>
#include <mutex>
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
  // The model continues the last message, which is an assistant's: nothing stands behind its text.
  bool continue_final = false;
  // What the last message ends with, and the conversation's next turn will not have there. "" = nothing.
  std::string passing_end;
  boost::json::object extra;  // further variables of the template, such as enable_thinking
};

// The ids of a conversation that the model continues.
struct ChatPrompt {
  std::vector<TokenId> ids, stop_ids;  // stop_ids: end tokens that the tokenizer itself does not know as such
  // Where the template writes a control token, rising: messages begin and end there. The first and the last of them.
  // And where Conversation::passing_end begins.
  std::vector<uint32_t> boundaries;
  std::string format;   // "model", or the built-in template that was taken
  AnswerFormat answer;  // what follows
};

struct MessageShapes;

// Immutable, thread-safe.
class ChatTemplate {
 public:
  // kInvalidArgument: not a template. bos, eos: the texts of these tokens.
  static StatusOr<ChatTemplate> Parse(std::string_view source, std::string bos, std::string eos);
  // `format` names a built-in template. "" takes the model's own templates, or, if it has none, the built-in one whose
  // marker is in its vocabulary. kFailedPrecondition: the model has no tokenizer, or several templates and none for all
  // chats; kInvalidArgument: no such format, or the model's template is none.
  static StatusOr<ChatTemplate> ForModel(const Model& model, const std::string& format = "");
  static const std::vector<std::string>& BuiltIn();  // names

  // "model", or the built-in one's name.
  const std::string& name() const { return name_; }
  const std::string& source() const { return source_; }
  // Whether it reads the tools of a conversation.
  bool takes_tools() const { return tool_template_ != nullptr || source_.find("tools") != std::string::npos; }
  // kInvalidArgument: the template refuses the conversation; the message has its words. Or the last message can't be
  // continued: it is no assistant's text, or the template leaves it out.
  StatusOr<std::string> Render(const Conversation& conversation, const std::tm* now = nullptr) const;
  // Control tokens that the template writes become their ids. Text in a message that spells one stays text.
  // Errors as Render.
  StatusOr<std::vector<TokenId>> Encode(const Conversation& conversation, const Tokenizer& tokenizer) const;
  // The control token that the template puts after a reply, beside the tokenizer's own ends; -1: none.
  TokenId EndOfTurn(const Tokenizer& tokenizer) const;
  // What is known of the messages that it reads; copies of a template share it.
  MessageShapes& shapes() const { return *shapes_; }

 private:
  ChatTemplate(jinja::Template t, std::string source, std::string name, std::string bos, std::string eos);

  std::shared_ptr<const jinja::Template> template_;
  // Takes its place in chats with tools, if it is not null: a template, or why it can't be read.
  std::shared_ptr<const StatusOr<jinja::Template>> tool_template_;
  std::string source_, name_, bos_, eos_;
  std::shared_ptr<MessageShapes> shapes_;
};

// The prompts of a model's chats. Each template is read once, and what it reads is tried out once. Thread-safe. The
// model outlives it.
class ChatPrompts {
 public:
  explicit ChatPrompts(const Model& model) : model_(model) {}
  // With the template that ChatTemplate::ForModel chooses. Errors: those of ForModel and Encode; kUnimplemented: the
  // conversation has tools, and the template has none.
  StatusOr<ChatPrompt> Make(const std::string& format, const Conversation& conversation) const;
  // The text that Make's ids are of, without a begin token that the tokenizer adds. The same errors.
  StatusOr<std::string> Text(const std::string& format, const Conversation& conversation) const;

 private:
  struct Known {
    ChatTemplate chat;
    TokenId end_of_turn;
  };
  StatusOr<Known> Template(const std::string& format) const;

  const Model& model_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, Known> templates_;  // by format
};

}  // namespace gyre
