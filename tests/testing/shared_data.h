// Test data that may be beside the checkout: real models with known outputs. Tests that need it skip without it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace gyre::testing {

// GYRE_SHARED in the environment, else ../shared beside the checkout.
inline std::string SharedRoot() {
  const char* root = std::getenv("GYRE_SHARED");
  return root != nullptr ? root : GYRE_SHARED_DIR;
}
inline std::string SharedData(const std::string& path) { return SharedRoot() + "/" + path; }
inline bool HaveSharedData() { return std::filesystem::exists(SharedData("golden")); }

}  // namespace gyre::testing
