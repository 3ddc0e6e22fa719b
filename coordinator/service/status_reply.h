// The status for operators, as messages of proto/gyre/v1/admin.proto: over gRPC, as JSON over HTTP, and by the CLI
// about its own process.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/cluster/cluster.h"
#include "coordinator/engine/engine.h"
#include "model/weights.h"

namespace gyre {

namespace v1 {
class ChangeReply;
class MemberStatus;
class StatusReply;
}  // namespace v1

// The facts that neither cluster nor engine know.
struct ServedModel {
  std::string version;  // of Gyre
  const Model& model;
  uint32_t context = 0;  // tokens
};

// A member, with the names that the JSON of /v1/cluster is made of (proto/status_json.h). Expects an empty message.
void FillMember(const MemberStatus& member, v1::MemberStatus* out);
// All that cluster and engine know. These three expect an empty reply.
void FillStatus(const ClusterStatus& c, const EngineStats& e, v1::StatusReply* reply);
void FillStatusReply(const ServedModel& of, const ClusterStatus& c, const EngineStats& e, v1::StatusReply* reply);
void FillChangeReply(const ChangeReport& report, v1::ChangeReply* reply);

}  // namespace gyre
