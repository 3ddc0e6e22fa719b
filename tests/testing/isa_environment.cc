// Linked into a program of tests: with GYRE_TEST_ISA=NAME it and the programs that it starts compute with this
// instruction set. Where the processor has no such one, or where it is the one that all tests run with, the tests are
// skipped with a sentence.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "fmt/core.h"
#include "kernels/isa.h"

namespace gyre::testing {
namespace {

class IsaEnvironment : public ::testing::Environment {
 public:
  IsaEnvironment() {
    const char* name = std::getenv("GYRE_TEST_ISA");
    if (name == nullptr) return;
    AllowEmulation();
    unsetenv("GYRE_ISA");  // a death test's process inherits it from here
    const Isa own = DetectIsa();
    for (const Isa isa : NamedIsas()) {
      if (name != std::string(IsaName(isa))) continue;
      known_ = true;
      if (const std::string missing = IsaMissing(isa); !missing.empty())
        skipped_ = missing;
      else if (isa == own)
        skipped_ = fmt::format("{} is this processor's best, which all tests run with", name);
      else if (isa == Isa::kAmxEmulated && own == Isa::kAmx)
        skipped_ = "this processor has amx, which all tests run with";
    }
    setenv("GYRE_ISA", name, 1);
  }
  void SetUp() override {
    if (std::getenv("GYRE_TEST_ISA") == nullptr) return;
    ASSERT_TRUE(known_) << "GYRE_TEST_ISA=" << std::getenv("GYRE_TEST_ISA")
                        << ": expected the name of an instruction set";
    if (!skipped_.empty()) GTEST_SKIP() << "not run with this instruction set: " << skipped_;
  }

 private:
  bool known_ = false;
  std::string skipped_;
};

[[maybe_unused]] ::testing::Environment* const kEnvironment = ::testing::AddGlobalTestEnvironment(new IsaEnvironment);

}  // namespace
}  // namespace gyre::testing
