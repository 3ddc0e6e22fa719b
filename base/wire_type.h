// The types of the rows in frames: docs/wire.md.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace gyre {

// The numbers are part of the wire format and never change.
enum class WireType : uint8_t { kNone = 0, kI32 = 1, kF32 = 2, kF16 = 3, kQ8 = 4 };

// Whether activations may have this type in frames. Only kF32 keeps every bit.
constexpr bool IsActivations(WireType type) { return type >= WireType::kF32 && type <= WireType::kQ8; }

// A set of types, one bit each, in which members say what they support.
using WireTypes = uint32_t;
constexpr WireTypes Only(WireType type) { return WireTypes{1} << static_cast<uint32_t>(type); }
constexpr bool Has(WireTypes types, WireType type) { return (types & Only(type)) != 0; }
inline constexpr WireTypes kAllActivations = Only(WireType::kF32) | Only(WireType::kF16) | Only(WireType::kQ8);

// "f32", "f16", "q8"; "int32", "none"; "type 9".
std::string WireTypeName(WireType type);
// "f16 or q8"; "nothing known" if the set has no type of activations.
std::string WireTypeNames(WireTypes types);
// A type of activations by its name; kInvalidArgument if there is none.
StatusOr<WireType> ParseWireType(const std::string& name);

}  // namespace gyre
