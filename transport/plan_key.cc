#include "transport/plan_key.h"

#include "transport/hkdf.h"

namespace gyre {
namespace {

Hash256 Derive(const RingKey& plan, std::string_view label) {
  return HkdfExpand(HkdfExtract("gyre plan 1", {std::as_bytes(std::span(plan))}), label);
}

}  // namespace

Hash256 HelloKey(const RingKey& plan) { return Derive(plan, "hello key"); }
Hash256 UdpKey(const RingKey& plan) { return Derive(plan, "udp key"); }

}  // namespace gyre
