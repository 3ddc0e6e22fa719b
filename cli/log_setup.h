// The log of a server, and SIGHUP, which lets it begin a new file.
#pragma once

#include "base/status.h"
#include "cli/commands.h"

namespace gyre {

// Turns the log to where the options say, before threads start. With a file, as CatchHangups. Usage errors among
// others.
Status StartLog(const LogOptions& options);
// From now on SIGHUP does not end the process; TakeHangup tells it.
void CatchHangups();
// True once after each SIGHUP. Then the log's file has been opened anew.
bool TakeHangup();

}  // namespace gyre
