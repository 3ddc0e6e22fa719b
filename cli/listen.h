// Addresses to listen at, as flags say them.
#pragma once

#include <string>

#include "base/host_port.h"
#include "base/status.h"

namespace gyre {

// A flag with an address to listen at, which may be beyond loopback only with --insecure.
StatusOr<HostPort> ParseListen(const char* flag, const std::string& text, bool insecure);
// Whether the port can be had, before minutes go into loading a model.
Status CheckPort(const char* flag, const HostPort& at);

}  // namespace gyre
