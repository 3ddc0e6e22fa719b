// A member's state as the JSON of GET /v1/cluster, and the way back. The message is the description; a table has the
// names of its fields in JSON (docs/fields.md, "Adding a field of a member's state"). Pure.
#pragma once

#include <string>

#include "boost/json/object.hpp"
#include "boost/json/value.hpp"
#include "gyre/v1/admin.pb.h"

namespace gyre {

// "serving", "idle", "drained" or "left_out".
const char* MemberState(const v1::MemberStatus& member);
// `next`: to whom it sends, "" = it has no stage. Layers count from 0, both ends included.
boost::json::object MemberJson(const v1::MemberStatus& member, const std::string& next);
// The JSON may come from an unauthenticated peer: a field that is missing, or is not what it should be, has its
// default.
v1::MemberStatus ReadMember(const boost::json::value& member);

}  // namespace gyre
