// The state of a cluster, and what becomes of a change, as the JSON of GET /v1/cluster and its changes, and the way
// back. The messages are the description; tables have the names of their fields in JSON (docs/fields.md, "Adding a
// field of the status"). Layers count from 0, both ends included. Pure.
#pragma once

#include <string>

#include "boost/json/object.hpp"
#include "boost/json/value.hpp"
#include "gyre/v1/admin.pb.h"

namespace gyre {

// JSON may come from an unauthenticated peer: a field that is missing, or is not what it should be, has its default.

// "serving", "idle", "drained" or "left_out".
const char* MemberState(const v1::MemberStatus& member);
// `next`: to whom it sends, "" = it has no stage.
boost::json::object MemberJson(const v1::MemberStatus& member, const std::string& next);
v1::MemberStatus ReadMember(const boost::json::value& member);

// All but the sequences, the epoch's term and the ranges without names. REQUIRES: members with layers come first, in
// ring order.
boost::json::object StatusJson(const v1::StatusReply& status);
v1::StatusReply ReadStatus(const boost::json::value& status);

boost::json::object ChangeJson(const v1::ChangeReply& change);
v1::ChangeReply ReadChange(const boost::json::value& change);

}  // namespace gyre
