// The state of a cluster as text for people.
#pragma once

#include <string>

#include "gyre/v1/admin.pb.h"

namespace gyre {

// A line for each worker, with its layers.
// The reason for each member's layers, and the measured speeds.
std::string FormatReasons(const v1::StatusReply& status);
std::string FormatLayers(const v1::StatusReply& status);
std::string FormatStatus(const v1::StatusReply& status);
std::string FormatChange(const v1::ChangeReply& change);
// The result of a dry run: the layers that would move, and the memory of each worker.
std::string FormatPreview(const v1::ChangeReply& change);

}  // namespace gyre
