// generation_config.json: where a text ends, and how its maker would sample. All of it is advice, which a request may
// override, so nothing in it keeps a model from being opened.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/hf/config.h"

namespace gyre {

// The keys that change what transformers generates and that Gyre does not apply, with their values for people:
// "num_beams (4)". Empty where nothing is lost. kDataLoss: a key that Gyre uses has a value of another kind.
StatusOr<std::vector<std::string>> UnusedAdvice(const boost::json::object& generation);

// Sets the numbers that the model's maker recommends, under the keys that a GGUF file has for them. None with do_sample
// false, as they are then the defaults of a library.
void SetSampling(const boost::json::object& generation, Metadata* metadata);

}  // namespace gyre
