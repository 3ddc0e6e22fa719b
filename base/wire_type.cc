#include "base/wire_type.h"

namespace gyre {
namespace {

constexpr WireType kActivations[] = {WireType::kF32, WireType::kF16, WireType::kQ8};

}  // namespace

std::string WireTypeName(WireType type) {
  switch (type) {
    case WireType::kNone: return "none";
    case WireType::kI32: return "int32";
    case WireType::kF32: return "f32";
    case WireType::kF16: return "f16";
    case WireType::kQ8: return "q8";
  }
  return fmt::format("type {}", static_cast<int>(type));
}

std::string WireTypeNames(WireTypes types) {
  std::string out;
  for (WireType type : kActivations) {
    if (Has(types, type)) out += (out.empty() ? "" : " or ") + WireTypeName(type);
  }
  return out.empty() ? "nothing known" : out;
}

StatusOr<WireType> ParseWireType(const std::string& name) {
  for (WireType type : kActivations) {
    if (name == WireTypeName(type)) return type;
  }
  return InvalidArgument("--wire {}: expected f32, f16 or q8", name);
}

}  // namespace gyre
