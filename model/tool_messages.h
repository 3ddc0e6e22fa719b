// Conversations with calls of tools, as a template reads them.
#pragma once

#include "model/chat_template.h"

namespace gyre {

// Templates differ in what they read: arguments as an object or as a JSON text, no content or an empty one, ids of nine
// characters, the tools in the system message. They are tried out. `conversation`: as OpenAI's API has it.
Conversation WithToolMessages(const ChatTemplate& chat, Conversation conversation);

}  // namespace gyre
