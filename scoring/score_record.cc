#include "scoring/score_record.h"

#include <charconv>
#include <cstring>
#include <limits>

#include "base/coding.h"
#include "fmt/format.h"
#include "model/half_floats.h"
#include "scoring/npy.h"

namespace gyre {
namespace {

template <Number T>
void Append(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

// The number behind `name` in a text; nullopt: there is none.
std::optional<uint64_t> NumberAfter(std::string_view text, std::string_view name) {
  const size_t at = text.find(name);
  if (at == std::string_view::npos) return std::nullopt;
  const char* begin = text.data() + at + name.size();
  uint64_t n = 0;
  if (std::from_chars(begin, text.data() + text.size(), n).ec != std::errc()) return std::nullopt;
  return n;
}

constexpr std::string_view kTop = "('top_id', '<i4', (", kShape = "'shape': (";

}  // namespace

size_t RecordBytes(const ScoreFormat& f) {
  const size_t logit = f.logits == LogitType::kNone ? 0 : f.logits == LogitType::kF16 ? 2 : 4;
  return 16 + sizeof(double) + size_t{f.top} * 8 + (f.divergence ? 3 * sizeof(double) : 0) + size_t{f.vocab} * logit;
}

std::string NpyHeader(const ScoreFormat& f, uint64_t records) {
  std::string type = "[('index', '<u4'), ('position', '<u4'), ('id', '<i4'), ('logprob', '<f4'), ('rest', '<f8')";
  if (f.top > 0) type += fmt::format(", {}{},)), ('top_logprob', '<f4', ({},))", kTop, f.top, f.top);
  if (f.divergence) type += ", ('forward_kl', '<f8'), ('reverse_kl', '<f8'), ('jensen_shannon', '<f8')";
  if (f.logits != LogitType::kNone)
    type += fmt::format(", ('logits', '<f{}', ({},))", f.logits == LogitType::kF16 ? 2 : 4, f.vocab);
  return NpyHeader(type + "]", std::span(&records, 1));
}

void AppendRecord(const ScoreFormat& f, uint32_t index, const PromptTokenEvent& event,
                  const std::optional<Divergence>& divergence, std::string* out) {
  Append(index, out);
  Append(event.position, out);
  Append(event.token, out);
  Append(event.logprob, out);
  Append(event.rest, out);
  for (uint32_t i = 0; i < f.top; ++i) Append(event.top[i].id, out);
  for (uint32_t i = 0; i < f.top; ++i) Append(event.top[i].logprob, out);
  if (f.divergence) {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    const Divergence d = divergence.value_or(Divergence{kNone, kNone, kNone});
    Append(d.forward, out);
    Append(d.reverse, out);
    Append(d.jensen_shannon, out);
  }
  if (f.logits == LogitType::kF16) AppendHalves(event.logits, out);
  if (f.logits == LogitType::kF32)
    out->append(reinterpret_cast<const char*>(event.logits.data()), event.logits.size() * sizeof(float));
}

StatusOr<ScoreFile> ScoreFile::Read(std::string_view bytes) {
  const auto wrong = [] { return DataLoss("it is no file of scores, as `gyre perplexity --save` writes them"); };
  uint16_t length = 0;
  const size_t begin = kNpyMagic.size() + sizeof length;
  if (bytes.size() < begin || bytes.substr(0, kNpyMagic.size()) != kNpyMagic) return wrong();
  std::memcpy(&length, bytes.data() + kNpyMagic.size(), sizeof length);
  if (bytes.size() - begin < length) return wrong();
  const std::string_view dict = bytes.substr(begin, length);
  const std::optional<uint64_t> records = NumberAfter(dict, kShape), top = NumberAfter(dict, kTop);
  if (!records || top.value_or(0) > UINT32_MAX) return wrong();
  ScoreFile out;
  out.format_.top = static_cast<uint32_t>(top.value_or(0));
  out.records_ = *records;
  // Whatever else the header says is an error.
  if (NpyHeader(out.format_, *records) != bytes.substr(0, begin + length)) return wrong();
  out.bytes_ = bytes.substr(begin + length);
  const size_t each = RecordBytes(out.format_);
  if (out.bytes_.size() % each != 0 || out.bytes_.size() / each != *records) {
    return DataLoss("it has {} bytes of records, {} records of {} are expected", out.bytes_.size(), *records, each);
  }
  return out;
}

ScoreRecord ScoreFile::At(uint64_t i) const {
  const size_t each = RecordBytes(format_);
  Decoder in(std::as_bytes(std::span(bytes_.data() + i * each, each)));
  ScoreRecord out;
  out.index = in.Get<uint32_t>();
  out.event.position = in.Get<uint32_t>();
  out.event.token = in.Get<TokenId>();
  out.event.logprob = in.Get<float>();
  out.event.rest = in.Get<double>();
  out.event.top.resize(format_.top);
  for (TokenLogprob& t : out.event.top) t.id = in.Get<TokenId>();
  for (TokenLogprob& t : out.event.top) t.logprob = in.Get<float>();
  return out;
}

}  // namespace gyre
