#include "proto/codec_parts.h"

#include <algorithm>
#include <chrono>

#include "base/ring_address.h"
#include "identity/principal.h"

namespace gyre {

void EncodeRange(LayerRange range, v1::LayerRange* out) {
  out->set_begin(range.begin);
  out->set_end(range.end);
}

LayerRange RangeOf(const v1::LayerRange& range) { return {range.begin(), range.end()}; }

Status CheckLayers(const v1::LayerRange& range) {
  if (range.begin() >= 0 && range.begin() <= range.end() && range.end() <= kMostLayers) return absl::OkStatus();
  return InvalidArgument("layers [{}, {}): expected 0 <= begin <= end <= {}", range.begin(), range.end(), kMostLayers);
}

void EncodeEpoch(Epoch epoch, v1::Epoch* out) {
  out->set_term(epoch.term);
  out->set_number(epoch.number);
}

Epoch EpochOf(const v1::Epoch& epoch) { return {epoch.term(), epoch.number()}; }

void EncodeSource(const WeightSource& source, v1::WeightSource* out) {
  out->set_name(source.name);
  out->set_address(source.address);
}

StatusOr<WeightSource> DecodeSource(const v1::WeightSource& s) {
  GYRE_RETURN_IF_ERROR(CheckName(s.name()));
  GYRE_RETURN_IF_ERROR(CheckPlanAddress(s.address()));
  return WeightSource{s.name(), s.address()};
}

StatusOr<Transport> DecodeTransport(uint32_t number) {
  // Above 255 it would be cut, perhaps to a known one.
  const auto transport = static_cast<Transport>(std::min(number, uint32_t{0xFF}));
  if (!IsTransportPreference(transport)) return InvalidArgument("links over carrier {}, which is unknown here", number);
  return transport;
}

Status CheckPlanAddress(const std::string& address) {
  return address.empty() ? absl::OkStatus() : ParseRingAddress(address).status();
}

Status CheckPrintable(const char* what, const std::string& text, size_t most) {
  if (text.size() > most) return InvalidArgument("{}: {} bytes, at most {} fit", what, text.size(), most);
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < '\x7F'; });
  if (!printable) return InvalidArgument("{}: only printable ASCII is expected", what);
  return absl::OkStatus();
}

uint64_t NanosOf(Deadline at) { return static_cast<uint64_t>(std::chrono::nanoseconds(at.time_since_epoch()).count()); }

Deadline MomentOf(uint64_t nanos) { return Deadline(std::chrono::nanoseconds(static_cast<int64_t>(nanos))); }

double Rate(double per_second) {
  constexpr double kMost = 1e18;
  return per_second > 0 && per_second <= kMost ? per_second : 0;
}

}  // namespace gyre
