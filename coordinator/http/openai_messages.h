// Conversations in the form of OpenAI's clients.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "coordinator/http/json_fields.h"
#include "coordinator/http/tool_fields.h"
#include "model/chat_template.h"

namespace gyre::http {

// The text of the field `name`: a string, or an array of parts of the type `part` ("text", "input_text", ...), whose
// texts are joined. `result`: of a tool, in which OmittedPart stands for what is no text. nullopt: absent, or an error.
std::optional<std::string> ReadContent(JsonFields& fields, std::string_view name,
                                       std::initializer_list<std::string_view> parts, bool result = false);

// What the model reads in the place of an image or a file in a tool's result: the program that ran the tool can't take
// it back, and each later request has it again. "": a part of this type is none of them.
std::string_view OmittedPart(std::string_view type);

// "system", "user" or "assistant", with `tools` also "tool"; "developer" means "system". "": an error.
std::string ReadRole(JsonFields& fields, bool tools = false);

// A message in the form of chat templates. REQUIRES: valid UTF-8.
boost::json::object TextMessage(std::string_view role, std::string_view text);

// Reads the field "messages" in the form of chat templates (role and content; name, reasoning_content, tool_calls and
// tool_call_id if present), whether the last one is to be continued (continue_final_message, add_generation_prompt, or
// its own `prefix`), and the further variables of the template: chat_template_kwargs and reasoning_effort.
void ReadMessages(JsonFields& fields, Conversation* conversation);

// All that the prompt of a chat is made of: the same and its tools, which are returned.
ToolRequest ReadChat(JsonFields& fields, Conversation* conversation);

}  // namespace gyre::http
