// The reasoning of a model's earlier answers, in the fields that its chat template reads.
#pragma once

#include "model/chat_template.h"

namespace gyre {

// Messages have the thoughts in "reasoning_content". Templates read them from a field of another name, or from a part
// of the content, or they refuse a text beside thoughts and calls; that is tried out. What a template does not read
// changes nothing. `conversation`: as OpenAI's API has it, before WithToolMessages.
Conversation WithThoughts(const ChatTemplate& chat, Conversation conversation);

}  // namespace gyre
