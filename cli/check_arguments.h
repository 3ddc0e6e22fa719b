// Whether a call's arguments obey its tool's schema.
#pragma once

#include <string_view>

#include "base/status.h"

namespace gyre {

// `schema`, `arguments`: JSON. kInvalidArgument: a sentence for the model, with the place from which on they do not.
// A schema that no grammar can be made of is not checked.
Status CheckArguments(std::string_view schema, std::string_view arguments);

}  // namespace gyre
