// gyre status, layers, resize, drain: asking a coordinator.
#include <google/protobuf/util/json_util.h>

#include <cstdio>

#include "cli/commands.h"
#include "cli/tables.h"
#include "client/remote.h"
#include "fmt/core.h"

namespace gyre {
namespace {

// One line of JSON with the fields of proto/gyre/v1/admin.proto.
template <typename Message>
Status PrintJson(const Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) {
    return Internal("the answer can't be written as JSON");
  }
  fmt::print("{}\n", text);
  return absl::OkStatus();
}

}  // namespace

Status StatusCommand(const AdminOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const v1::StatusReply reply, FetchStatus(options.cluster));
  if (options.json) return PrintJson(reply);
  fmt::print("{}", FormatStatus(reply));
  return absl::OkStatus();
}

Status LayersCommand(const AdminOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const v1::StatusReply reply, FetchStatus(options.cluster));
  if (options.json) return PrintJson(reply);
  fmt::print("{}", FormatLayers(reply));
  if (!reply.has_epoch()) fmt::print("{}\n", reply.state());
  return absl::OkStatus();
}

Status ResizeCommand(const AdminOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const v1::ChangeReply reply, AskResize(options.cluster, options.what));
  if (options.json) return PrintJson(reply);
  fmt::print("{}", FormatChange(reply));
  return absl::OkStatus();
}

Status DrainCommand(const AdminOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const v1::ChangeReply reply, AskDrain(options.cluster, options.what));
  if (options.json) return PrintJson(reply);
  fmt::print("{}", FormatChange(reply));
  return absl::OkStatus();
}

}  // namespace gyre
