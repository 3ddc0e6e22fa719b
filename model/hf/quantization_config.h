// What config.json says of quantized weights.
#pragma once

#include <boost/json.hpp>

#include "base/status.h"

namespace gyre {

// Checks quantization_config and its siblings in an object of config.json. The tensors themselves show their types;
// this refuses formats whose tensors would be taken for others. kUnimplemented: a method, a scheme or a key that is not
// known (the message lists those that are); kDataLoss: a value of another kind.
Status CheckQuantization(const boost::json::object& config);

}  // namespace gyre
