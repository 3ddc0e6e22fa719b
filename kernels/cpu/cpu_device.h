// The memory of this machine as a device.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "kernels/device.h"

namespace gyre::cpu {

inline constexpr size_t kHugePage = size_t{2} << 20;  // bytes

class CpuDevice : public Device {
 public:
  using MakeQueue = std::function<std::unique_ptr<Backend>(std::shared_ptr<Device>)>;
  CpuDevice(Isa isa, MakeQueue make) : isa_(isa), make_(std::move(make)) {}

  std::string name() const override { return "cpu"; }
  std::string isa() const override { return IsaName(isa_); }
  bool prefill_matches_decode() const override { return PrefillMatchesDecode(isa_); }
  std::unique_ptr<Backend> NewBackend() override;

 protected:
  std::byte* Take(size_t bytes) override;
  void GiveBack(std::byte* data, size_t bytes) noexcept override;

 private:
  const Isa isa_;
  const MakeQueue make_;
};

}  // namespace gyre::cpu
