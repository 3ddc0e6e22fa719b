// Addresses to listen at, as flags give them.
#pragma once

#include <string>

#include "base/host_port.h"
#include "base/status.h"

namespace gyre {

// The ports that --insecure opens beyond loopback without TLS.
struct Insecure {
  bool cluster = false, ring = false, http = false;
};
// "" = none, "true" (the flag alone) = all, or names separated by commas.
StatusOr<Insecure> ParseInsecure(const std::string& text);

// A flag with an address to listen at, which may be beyond loopback only with TLS or if it is `open`. `part` is its
// name in --insecure.
StatusOr<HostPort> ParseListen(const char* flag, const std::string& text, bool tls, bool open, const char* part);
// Checks that the port is free, before minutes are spent on loading a model.
Status CheckPort(const char* flag, const HostPort& at);

}  // namespace gyre
