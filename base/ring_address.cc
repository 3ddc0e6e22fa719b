#include "base/ring_address.h"

#include <algorithm>
#include <string_view>

#include "base/host_port.h"
#include "base/range.h"

namespace gyre {
namespace {

constexpr size_t kLongest = 1024;
constexpr std::string_view kShm = "shm:", kUdp = "udp:", kOnlyUdp = ",only:udp";

bool IsHex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

std::string FormatRingAddress(const RingAddress& address) {
  std::string out = address.tcp;
  if (!address.shm.empty()) out += fmt::format(",{}{}", kShm, address.shm);
  if (address.udp != 0) out += fmt::format(",{}{}", kUdp, address.udp);
  if (address.only_udp) out += kOnlyUdp;
  return out;
}

StatusOr<RingAddress> ParseRingAddress(const std::string& text) {
  if (text.size() > kLongest) return InvalidArgument("an address of {} bytes: at most {} fit", text.size(), kLongest);
  RingAddress out{.tcp = TcpPart(text)};
  GYRE_RETURN_IF_ERROR(ParseHostPort(out.tcp.substr(0, 1) == ":" ? "host" + out.tcp : out.tcp).status());
  for (size_t at = out.tcp.size(); at < text.size();) {
    const size_t end = std::min(text.find(',', at + 1), text.size());
    const std::string_view part = std::string_view(text).substr(at + 1, end - at - 1);
    at = end;
    if (part == kOnlyUdp.substr(1)) out.only_udp = true;
    if (part.substr(0, kUdp.size()) == kUdp) {
      const std::optional<int> port = ParseNumber(part.substr(kUdp.size()));
      if (!port || *port == 0 || *port > 65535) return InvalidArgument("{}: its udp part is no port", out.tcp);
      out.udp = static_cast<uint16_t>(*port);
    }
    if (part.substr(0, kShm.size()) != kShm) continue;
    const std::string_view shm = part.substr(kShm.size());
    const size_t split = std::min(shm.find('@'), shm.size());
    if (!IsHex(shm.substr(0, split), 32) || !IsHex(shm.substr(std::min(split + 1, shm.size())), 16)) {
      return InvalidArgument("{}: its shm part is not NAME@HOST", out.tcp);
    }
    out.shm = shm;
  }
  return out;
}

std::string TcpPart(const std::string& address) { return address.substr(0, address.find(',')); }

}  // namespace gyre
