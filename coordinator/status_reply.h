// The status for operators, as messages of proto/gyre/v1/admin.proto: over gRPC, and by the CLI about its own process.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/cluster.h"
#include "coordinator/engine.h"
#include "model/weights.h"

namespace gyre {

namespace v1 {
class ChangeReply;
class StatusReply;
}  // namespace v1

// The facts that neither cluster nor engine know.
struct ServedModel {
  std::string version;  // of Gyre
  const Model& model;
  uint32_t context = 0;  // tokens
};

// Both expect an empty reply.
void FillStatusReply(const ServedModel& of, const ClusterStatus& c, const EngineStats& e, v1::StatusReply* reply);
void FillChangeReply(const ChangeReport& report, v1::ChangeReply* reply);

}  // namespace gyre
