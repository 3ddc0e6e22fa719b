// A cluster's state as text for people.
#pragma once

#include <string>

#include "gyre/v1/admin.pb.h"

namespace gyre {

// A line for each worker, with its layers.
// Why each member has the layers that it has, and what was measured.
std::string FormatReasons(const v1::StatusReply& status);
std::string FormatLayers(const v1::StatusReply& status);
std::string FormatStatus(const v1::StatusReply& status);
std::string FormatChange(const v1::ChangeReply& change);
// What a dry run says: which layers would move, and the memory of each worker.
std::string FormatPreview(const v1::ChangeReply& change);

}  // namespace gyre
