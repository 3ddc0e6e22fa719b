#include "coordinator/http/openai_logprobs.h"

#include <algorithm>
#include <cmath>

#include "coordinator/http/json_text.h"
#include "fmt/format.h"
#include "model/utf8.h"

namespace gyre::http {
namespace {

// JSON has no infinity; OpenAI's servers use this number for tokens without any chance.
constexpr float kNoChance = -9999;

void AppendNumber(float logprob, std::string* out) {
  fmt::format_to(std::back_inserter(*out), "{}", std::isfinite(logprob) ? std::max(logprob, kNoChance) : kNoChance);
}

// Control tokens have no bytes in a text; then their name is used.
std::string BytesOf(const Service& service, TokenId id, bool* control) {
  StatusOr<std::string> bytes = service.TokenBytes(id);
  *control = !bytes.ok() || bytes->empty();
  if (*control) bytes = service.TokenBytes(id, true);
  return bytes.ok() ? *std::move(bytes) : "";
}

void AppendToken(const Service& service, TokenId id, float logprob, std::string* out) {
  bool control = false;
  const std::string bytes = BytesOf(service, id, &control);
  *out += "{\"token\":";
  AppendQuoted(ValidUtf8(bytes), out);
  *out += ",\"logprob\":";
  AppendNumber(logprob, out);
  *out += ",\"bytes\":";
  if (control) {
    *out += "null";
    return;
  }
  *out += '[';
  for (size_t i = 0; i < bytes.size(); ++i) {
    fmt::format_to(std::back_inserter(*out), "{}{}", i > 0 ? "," : "", static_cast<unsigned char>(bytes[i]));
  }
  *out += ']';
}

// A name that no other token's bytes have: bytes that are no complete character are written as numbers.
std::string NameOf(const Service& service, TokenId id) {
  bool control = false;
  std::string bytes = BytesOf(service, id, &control);
  if (ValidUtf8(bytes) == bytes) return bytes;
  std::string name = "bytes:";
  for (char c : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return name;
}

// Appends {"name":logprob,...}: the likeliest tokens and the token itself, each name once.
void AppendTop(const Service& service, const TokenScore& score, std::string* out) {
  std::vector<std::string> names;
  const auto add = [&](TokenId id, float logprob) {
    std::string name = NameOf(service, id);
    if (std::find(names.begin(), names.end(), name) != names.end()) return;
    if (!names.empty()) *out += ',';
    AppendQuoted(name, out);
    *out += ':';
    AppendNumber(logprob, out);
    names.push_back(std::move(name));
  };
  *out += '{';
  for (const TokenLogprob& top : score.top) add(top.id, top.logprob);
  add(score.token, *score.logprob);
  *out += '}';
}

size_t Characters(std::string_view bytes) {
  return bytes.size() - static_cast<size_t>(std::count_if(bytes.begin(), bytes.end(), ContinuesUtf8));
}

}  // namespace

size_t HeldScores::Bytes(const TokenScore& score) const {
  const StatusOr<std::string> bytes = service_->TokenBytes(score.token);
  return bytes.ok() ? bytes->size() : 0;
}

std::vector<TokenScore> HeldScores::Release(std::string_view text) {
  std::vector<TokenScore> out = std::move(held_);
  held_.clear();
  if (!parted_) return out;
  size_t first = out.size();
  for (size_t covered = 0; first > 0 && covered < text.size();) covered += Bytes(out[--first]);
  out.erase(out.begin(), out.begin() + static_cast<ptrdiff_t>(first));
  return out;
}

std::vector<TokenScore> HeldScores::Finish(const Finished& finished, std::string_view text) {
  if (finished.stop_id >= 0 && !held_.empty()) held_.pop_back();
  if (!finished.stop.empty()) {
    size_t end = 0;
    for (size_t covered = 0; end < held_.size() && covered < text.size();) covered += Bytes(held_[end++]);
    held_.resize(end);
  }
  if (text.empty() && parted_) held_.clear();
  return Release(text);
}

void AppendChatLogprobs(const Service& service, std::span<const TokenScore> scores, std::string* out) {
  *out += "{\"content\":[";
  for (size_t i = 0; i < scores.size(); ++i) {
    if (i > 0) *out += ',';
    AppendToken(service, scores[i].token, scores[i].logprob.value_or(0), out);
    *out += ",\"top_logprobs\":[";
    for (size_t j = 0; j < scores[i].top.size(); ++j) {
      if (j > 0) *out += ',';
      AppendToken(service, scores[i].top[j].id, scores[i].top[j].logprob, out);
      *out += '}';
    }
    *out += "]}";
  }
  *out += "],\"refusal\":null}";
}

void AppendTextLogprobs(const Service& service, std::span<const TokenScore> scores, size_t* offset, std::string* out) {
  std::string logprobs = "],\"token_logprobs\":[", top = "],\"top_logprobs\":[", offsets = "],\"text_offset\":[";
  *out += "{\"tokens\":[";
  for (size_t i = 0; i < scores.size(); ++i) {
    if (i > 0) {
      for (std::string* list : {out, &logprobs, &top, &offsets}) *list += ',';
    }
    const TokenScore& score = scores[i];
    AppendQuoted(NameOf(service, score.token), out);
    if (score.logprob) {
      AppendNumber(*score.logprob, &logprobs);
      AppendTop(service, score, &top);
    } else {
      logprobs += "null";
      top += "null";
    }
    fmt::format_to(std::back_inserter(offsets), "{}", *offset);
    bool control = false;
    const std::string bytes = BytesOf(service, score.token, &control);
    if (!control || score.shown) *offset += Characters(bytes);
  }
  *out += logprobs + top + offsets + "]}";
}

}  // namespace gyre::http
