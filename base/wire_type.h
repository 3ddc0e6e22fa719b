// The types of rows in frames: docs/wire.md.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace gyre {

// Never renumbered.
enum class WireType : uint8_t { kNone = 0, kI32 = 1, kF32 = 2, kF16 = 3, kQ8 = 4 };

// A type that activations may travel as. Only kF32 keeps every bit.
constexpr bool IsActivations(WireType type) { return type >= WireType::kF32 && type <= WireType::kQ8; }

// A set of types, a bit each, as members say which they take part with.
using WireTypes = uint32_t;
constexpr WireTypes Only(WireType type) { return WireTypes{1} << static_cast<uint32_t>(type); }
constexpr bool Has(WireTypes types, WireType type) { return (types & Only(type)) != 0; }
inline constexpr WireTypes kAllActivations = Only(WireType::kF32) | Only(WireType::kF16) | Only(WireType::kQ8);

// "f32", "f16", "q8"; "int32", "none"; "type 9".
std::string WireTypeName(WireType type);
// "f16 or q8"; "nothing known" where no type of activations is in it.
std::string WireTypeNames(WireTypes types);
// Of activations, by name. kInvalidArgument.
StatusOr<WireType> ParseWireType(const std::string& name);

}  // namespace gyre
