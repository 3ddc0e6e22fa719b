#include "runtime/devices.h"

#include <algorithm>
#include <iterator>

#include "base/log.h"

namespace gyre {
namespace {

std::vector<DeviceKind>& Kinds() {
  static std::vector<DeviceKind> kinds{
      {.name = "cpu",
       .available = [] { return true; },
       .open = [](const DeviceRequest& request) -> StatusOr<std::shared_ptr<Device>> {
         if (request.name.find(':') != std::string::npos)
           return InvalidArgument("--device {}: there is one cpu; --cpus says which processors", request.name);
         GYRE_ASSIGN_OR_RETURN(const Isa isa, ParseIsa(request.isa));
         return MakeCpuDevice(isa, request.threads, request.cpus);
       },
       .find = {},
       .built = ""}};
  return kinds;
}

}  // namespace

void AddDeviceKind(DeviceKind kind) { Kinds().push_back(std::move(kind)); }
const std::vector<DeviceKind>& DeviceKinds() { return Kinds(); }

StatusOr<std::shared_ptr<Device>> OpenDevice(const DeviceRequest& request) {
  const std::vector<DeviceKind>& kinds = Kinds();
  if (request.name.empty() || request.name == "auto") {
    StatusOr<std::shared_ptr<Device>> opened = NotFound("no device is available");
    for (auto kind = kinds.rbegin(); kind != kinds.rend() && !opened.ok(); ++kind) {
      if (!kind->available()) continue;
      DeviceRequest asked = request;
      asked.name = kind->name;
      opened = kind->open(asked);
      // Somebody else may use up a GPU's memory: that is no reason to compute nothing.
      if (!opened.ok() && std::next(kind) != kinds.rend())
        Log(LogLevel::kWarn, "the device {} can't be used: {}", kind->name, Message(opened.status()));
    }
    return opened;
  }
  const std::string kind = request.name.substr(0, request.name.find(':'));
  const auto found = std::find_if(kinds.rbegin(), kinds.rend(), [&](const DeviceKind& k) { return k.name == kind; });
  if (found != kinds.rend()) return found->open(request);
  if (kind == "cuda")
    return InvalidArgument("--device {}: this build has no CUDA, expected cpu; docs/cuda.md says how to build it",
                           request.name);
  std::string known;
  for (const DeviceKind& k : kinds) known += (known.empty() ? "" : ", ") + k.name;
  return InvalidArgument("--device {}: this build has {}", request.name, known);
}

StatusOr<Isa> ParseIsa(const std::string& name) {
  if (name.empty()) return DetectIsa();
  std::string known;
  for (Isa isa : NamedIsas()) {
    known += (known.empty() ? "" : ", ") + std::string(IsaName(isa));
    if (name != IsaName(isa)) continue;
    const std::string missing = IsaMissing(isa);
    if (!missing.empty()) return FailedPrecondition("--isa {}: {}", name, missing);
    return isa;
  }
  return InvalidArgument("--isa {}: expected one of {}", name, known);
}

}  // namespace gyre
