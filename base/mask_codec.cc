#include "base/mask_codec.h"

#include <bit>
#include <utility>

#include "base/step.h"

namespace gyre {
namespace {

enum class Form : uint8_t { kWords, kAllowed, kForbidden };

constexpr size_t kMaskBytes = 4 + 1 + 4;  // number, form, length

// Seven bits a byte, the lowest first; the highest bit says that more follow.
void PutVarint(uint32_t value, Encoder* out) {
  for (; value >= 0x80; value >>= 7) out->Put(static_cast<uint8_t>(value | 0x80));
  out->Put(static_cast<uint8_t>(value));
}

bool GetVarint(Decoder& in, uint32_t* value) {
  uint64_t all = 0;
  for (uint32_t shift = 0; shift < 35; shift += 7) {
    const auto byte = in.Get<uint8_t>();
    all |= uint64_t{byte & 0x7Fu} << shift;
    if ((byte & 0x80) != 0) continue;
    *value = static_cast<uint32_t>(all);
    return in.ok() && all <= UINT32_MAX;
  }
  return false;
}

// The ids whose bit is `set`, each as its distance from the one before. False: that takes more than `most` bytes.
bool PutIds(std::span<const uint64_t> words, uint32_t vocab, bool set, size_t most, Encoder* out) {
  uint32_t next = 0;
  for (size_t w = 0; w < words.size(); ++w) {
    uint64_t bits = set ? words[w] : ~words[w];
    if (w + 1 == words.size() && vocab % 64 != 0) bits &= (uint64_t{1} << vocab % 64) - 1;
    for (; bits != 0; bits &= bits - 1) {
      const auto id = static_cast<uint32_t>(w * 64 + static_cast<size_t>(std::countr_zero(bits)));
      PutVarint(id - next, out);
      next = id + 1;
    }
    if (out->size() > most) return false;
  }
  return true;
}

bool GetIds(Decoder& in, uint32_t vocab, bool set, std::vector<uint64_t>* words) {
  words->assign((vocab + 63) / 64, set ? 0 : ~uint64_t{0});
  if (!set && vocab % 64 != 0) words->back() = (uint64_t{1} << vocab % 64) - 1;
  for (uint64_t next = 0; in.remaining() > 0;) {
    uint32_t distance = 0;
    if (!GetVarint(in, &distance)) return false;
    const uint64_t id = next + distance;
    if (id >= vocab) return false;
    (*words)[id / 64] ^= uint64_t{1} << id % 64;
    next = id + 1;
  }
  return true;
}

bool GetWords(Decoder& in, uint32_t vocab, std::vector<uint64_t>* words) {
  words->resize((vocab + 63) / 64);
  in.GetBytes(words->data(), words->size() * sizeof(uint64_t));
  return in.Done() && (vocab % 64 == 0 || words->back() >> vocab % 64 == 0);
}

}  // namespace

void EncodeMasks(std::span<const NumberedMask> masks, uint32_t vocab, Encoder* out) {
  out->Put(vocab);
  out->Put(static_cast<uint32_t>(masks.size()));
  for (const NumberedMask& mask : masks) {
    size_t allowed = 0;
    for (const uint64_t word : mask.words) allowed += static_cast<size_t>(std::popcount(word));
    const bool few = allowed * 2 < vocab;
    Encoder ids;
    const size_t words = mask.words.size() * sizeof(uint64_t);
    const bool shorter = PutIds(mask.words, vocab, few, words, &ids) && ids.size() < words;
    out->Put(mask.number);
    out->Put(!shorter ? Form::kWords : few ? Form::kAllowed : Form::kForbidden);
    out->Put(static_cast<uint32_t>(shorter ? ids.size() : words));
    if (shorter) {
      out->PutBytes(ids.bytes().data(), ids.size());
    } else {
      out->PutBytes(mask.words.data(), words);
    }
  }
}

StatusOr<std::vector<NumberedMask>> DecodeMasks(std::span<const std::byte> bytes, uint32_t vocab) {
  Decoder in(bytes);
  const auto of = in.Get<uint32_t>();
  if (in.ok() && of != vocab) return DataLoss("masks for a vocabulary of {} ids, this model has {}", of, vocab);
  std::vector<NumberedMask> masks(in.GetCount(kMaskBytes));
  for (size_t i = 0; i < masks.size(); ++i) {
    NumberedMask& mask = masks[i];
    mask.number = in.Get<uint32_t>();
    const auto form = in.Get<Form>();
    const auto length = in.Get<uint32_t>();
    if (!in.ok() || length > in.remaining()) return DataLoss("mask {} of {}: cut short", i, masks.size());
    Decoder own(in.Rest().first(length));
    in.Skip(length);
    const bool right = form == Form::kWords       ? GetWords(own, vocab, &mask.words)
                       : form <= Form::kForbidden ? GetIds(own, vocab, form == Form::kAllowed, &mask.words)
                                                  : false;
    if (!right || mask.number >= kMaxMasks) return DataLoss("mask {} of {} is malformed", i, masks.size());
  }
  if (!in.Done()) return DataLoss("masks: cut short, or {} bytes too long", in.remaining());
  return masks;
}

}  // namespace gyre
