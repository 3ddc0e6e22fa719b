// The kind of devices "cuda": linked into programs, and into the library. Without nvcc it adds nothing.
#if defined(GYRE_HAS_CUDA)
#include <charconv>
#include <system_error>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/runtime_cuda.h"
#include "runtime/devices.h"
#include "worker/catch_exhausted.h"

namespace gyre {
namespace {

// The GPU that "cuda:N" names, or the first that can be used for "cuda". Errors say what there is.
StatusOr<cuda::Gpu> Named(const std::string& name, const cuda::Gpus& found) {
  if (found.gpus.empty()) return FailedPrecondition("--device {}: {}", name, found.why_none);
  const size_t colon = name.find(':');
  int number = -1;
  if (colon != std::string::npos) {
    const char* const end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data() + colon + 1, end, number);
    if (error != std::errc() || rest != end || number < 0)
      return InvalidArgument("--device {}: expected cuda:N with the number of a GPU, as cuda:0", name);
  }
  for (const cuda::Gpu& gpu : found.gpus) {
    if (number >= 0 ? gpu.number != number : !gpu.usable()) continue;
    if (gpu.usable()) return gpu;
    return FailedPrecondition("--device {}: {} has compute capability {}.{}, kernels need 8.0 or more", name, gpu.name,
                              gpu.major, gpu.minor);
  }
  if (number < 0) return FailedPrecondition("--device {}: no GPU has compute capability 8.0 or more", name);
  return FailedPrecondition("--device {}: this machine has {} of them, from cuda:0 on", name, found.gpus.size());
}

StatusOr<std::shared_ptr<Device>> OpenCuda(const DeviceRequest& request) {
  return CatchExhausted([&]() -> StatusOr<std::shared_ptr<Device>> {
    GYRE_ASSIGN_OR_RETURN(const cuda::Gpu gpu, Named(request.name, cuda::FindGpus()));
    try {
      return cuda::MakeCudaDevice(cuda::OpenGpu(gpu, request.memory), {.graphs = request.graphs});
    } catch (const DeviceLost& e) {
      return Unavailable("{}", e.what());
    }
  });
}

FoundDevices FindCuda() {
  const cuda::Gpus found = cuda::FindGpus();
  FoundDevices out{
      .devices = {}, .driver = found.driver.empty() ? "" : "CUDA " + found.driver, .why_none = found.why_none};
  for (const cuda::Gpu& gpu : found.gpus) {
    out.devices.push_back(
        {.name = fmt::format("cuda:{}", gpu.number),
         .description = fmt::format("{}, compute capability {}.{}", gpu.name, gpu.major, gpu.minor),
         .total = gpu.total,
         .free = cuda::FreeMemory(gpu),
         // Goes when the golden bits of gyre-gpu-check have passed there.
         .note = gpu.usable() ? "untested: no check has passed on such a GPU yet" : "kernels need 8.0 or more"});
  }
  return out;
}

bool Available() {
  for (const cuda::Gpu& gpu : cuda::FindGpus().gpus) {
    if (gpu.usable()) return true;
  }
  return false;
}

[[maybe_unused]] const bool kAdded = [] {
  AddDeviceKind(
      {.name = "cuda", .available = Available, .open = OpenCuda, .find = FindCuda, .built = cuda::BuiltFor()});
  return true;
}();

}  // namespace
}  // namespace gyre
#endif
