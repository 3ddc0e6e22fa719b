// The log of a server, and SIGHUP, which makes it open a new file.
#pragma once

#include "base/status.h"
#include "cli/commands.h"

namespace gyre {

// Sends the log to the destination that the options name, before threads start. With a file it also calls CatchHangups.
// Errors are usage errors, among others.
Status StartLog(const LogOptions& options);
// From now on SIGHUP does not end the process; TakeHangup reports it.
void CatchHangups();
// Returns true once after each SIGHUP. Then the log's file has been opened anew.
bool TakeHangup();

}  // namespace gyre
