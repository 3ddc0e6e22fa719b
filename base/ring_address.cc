#include "base/ring_address.h"

#include <algorithm>
#include <string_view>

#include "base/host_port.h"

namespace gyre {
namespace {

constexpr size_t kLongest = 1024;
constexpr std::string_view kShm = "shm:";

bool IsHex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

std::string FormatRingAddress(const RingAddress& address) {
  return address.shm.empty() ? address.tcp : fmt::format("{},{}{}", address.tcp, kShm, address.shm);
}

StatusOr<RingAddress> ParseRingAddress(const std::string& text) {
  if (text.size() > kLongest) return InvalidArgument("an address of {} bytes: at most {} fit", text.size(), kLongest);
  RingAddress out{.tcp = TcpPart(text)};
  GYRE_RETURN_IF_ERROR(ParseHostPort(out.tcp.substr(0, 1) == ":" ? "host" + out.tcp : out.tcp).status());
  for (size_t at = out.tcp.size(); at < text.size();) {
    const size_t end = std::min(text.find(',', at + 1), text.size());
    const std::string_view part = std::string_view(text).substr(at + 1, end - at - 1);
    at = end;
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
