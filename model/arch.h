// Makes a spec from a file's metadata, by the table of architectures, the only place that knows their names.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"
#include "model/spec.h"

namespace gyre {

// kUnimplemented: an architecture or a value that Gyre does not know (the message lists the known ones); kDataLoss:
// missing or contradictory metadata. `context`: the wanted number of positions, 0 = the file's.
StatusOr<ModelSpec> SpecFromGguf(const Gguf& gguf, int context = 0);

std::vector<std::string> KnownArchitectures();

}  // namespace gyre
