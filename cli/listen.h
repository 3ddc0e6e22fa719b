// Addresses to listen at, as flags say them.
#pragma once

#include <string>

#include "base/host_port.h"
#include "base/status.h"

namespace gyre {

// What --insecure opens beyond loopback without TLS.
struct Insecure {
  bool cluster = false, ring = false, http = false;
};
// "" = nothing, "true" (the flag alone) = all, or names with commas.
StatusOr<Insecure> ParseInsecure(const std::string& text);

// A flag with an address to listen at, which may be beyond loopback only with TLS or if it is `open`. `part` is what
// --insecure calls it.
StatusOr<HostPort> ParseListen(const char* flag, const std::string& text, bool tls, bool open, const char* part);
// Whether the port can be had, before minutes go into loading a model.
Status CheckPort(const char* flag, const HostPort& at);

}  // namespace gyre
