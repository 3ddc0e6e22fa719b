// Lines that some clients write into the system prompt and change in every request. Where one changes, nothing of the
// prefix cache behind it is found, and the whole conversation would be computed again. docs/api.md has the table.
#pragma once

#include "model/chat_template.h"

namespace gyre {

// Makes the known ones constant, or moves them behind the conversation's last message. Only whole lines of the system
// message that a conversation begins with are looked at, and only their exact shapes count.
void HoldChangingLines(Conversation* conversation);

}  // namespace gyre
