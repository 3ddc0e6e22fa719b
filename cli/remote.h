// Talking to a coordinator: what gyre status, layers, resize and drain do, and the remote Target.
#pragma once

#include <string>

#include "base/status.h"
#include "cli/target.h"
#include "gyre/v1/admin.pb.h"

namespace gyre {

StatusOr<v1::StatusReply> FetchStatus(const std::string& cluster);
StatusOr<v1::ChangeReply> AskResize(const std::string& cluster, const std::string& ranges);
StatusOr<v1::ChangeReply> AskDrain(const std::string& cluster, const std::string& worker);

std::string FormatLayers(const v1::StatusReply& status);
std::string FormatStatus(const v1::StatusReply& status);
std::string FormatChange(const v1::ChangeReply& change);

}  // namespace gyre
