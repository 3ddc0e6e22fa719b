#include "transport/pages.h"

namespace gyre {

void EncodePullPages(const PullPages& r, Encoder* out) {
  out->Put(r.layer);
  out->Put(r.from);
  out->Put(r.since);
  out->Put(r.max_bytes);
  out->PutVector(std::span<const BlockId>(r.check));
  out->Put(static_cast<uint8_t>(r.kind));
  out->Put(r.replica);
  out->Put(r.pool);
  out->Put(static_cast<uint8_t>(r.only ? 1 : 0));
}

StatusOr<PullPages> DecodePullPages(std::span<const std::byte> payload) {
  Decoder in(payload);
  PullPages r;
  r.layer = in.Get<uint32_t>();
  r.from = in.Get<BlockId>();
  r.since = in.Get<uint64_t>();
  r.max_bytes = in.Get<uint32_t>();
  in.GetVector(&r.check);
  const auto kind = in.Get<uint8_t>();
  r.replica = in.Get<uint64_t>();
  r.pool = in.Get<uint64_t>();
  r.only = in.Get<uint8_t>() != 0;
  if (!in.Done()) return DataLoss("a request for pages of {} bytes has a wrong length", payload.size());
  if (kind > static_cast<uint8_t>(PullKind::kReplicated)) return DataLoss("a request for pages of kind {}", kind);
  r.kind = static_cast<PullKind>(kind);
  return r;
}

void EncodePagesHead(const Pages& p, Encoder* out) {
  out->Put(p.layer);
  out->Put(p.step);
  out->Put(p.next);
  out->Put(p.page_bytes);
  out->PutVector(std::span<const BlockId>(p.ids));
  out->PutVector(std::span<const uint64_t>(p.written));
  out->PutVector(std::span<const uint64_t>(p.checked));
  out->Put(p.ring_step);
  out->Put(p.pool);
}

StatusOr<Pages> DecodePages(std::span<const std::byte> payload) {
  Decoder in(payload);
  Pages p;
  p.layer = in.Get<uint32_t>();
  p.step = in.Get<uint64_t>();
  p.next = in.Get<BlockId>();
  p.page_bytes = in.Get<uint32_t>();
  in.GetVector(&p.ids);
  in.GetVector(&p.written);
  in.GetVector(&p.checked);
  p.ring_step = in.Get<uint64_t>();
  p.pool = in.Get<uint64_t>();
  if (!in.ok()) return DataLoss("an answer with pages of {} bytes is cut", payload.size());
  p.data = in.Rest();
  if (p.written.size() != p.ids.size() || p.data.size() != uint64_t{p.page_bytes} * p.ids.size()) {
    return DataLoss("{} pages of {} bytes with {} stamps in {} bytes", p.ids.size(), p.page_bytes, p.written.size(),
                    p.data.size());
  }
  return p;
}

}  // namespace gyre
