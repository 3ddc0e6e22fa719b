// From a file's metadata to a spec: the table of architectures, the only place that knows their names.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"
#include "model/spec.h"

namespace gyre {

// kUnimplemented: an architecture or a value that Gyre does not know (the message lists what it knows); kDataLoss:
// missing or contradictory metadata.
StatusOr<ModelSpec> SpecFromGguf(const Gguf& gguf);

std::vector<std::string> KnownArchitectures();

}  // namespace gyre
