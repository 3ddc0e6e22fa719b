#include "coordinator/state/term_file.h"

#include <charconv>

#include "base/crc32c.h"
#include "base/files.h"

namespace gyre {
namespace {

constexpr std::string_view kBegin = "gyre-term 1\n";

uint32_t CrcOfText(std::string_view text) { return Crc32c(std::as_bytes(std::span(text.data(), text.size()))); }

// Takes "NAME NUMBER\n" from the beginning.
std::optional<uint64_t> TakeNumber(std::string_view* text, std::string_view name, int base) {
  if (text->substr(0, name.size()) != name) return std::nullopt;
  text->remove_prefix(name.size());
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number, base);
  const auto length = static_cast<size_t>(end - text->data());
  if (error != std::errc() || length >= text->size() || (*text)[length] != '\n') return std::nullopt;
  text->remove_prefix(length + 1);
  return number;
}

}  // namespace

std::string EncodeTerm(const KeptTerm& kept) {
  const std::string text = fmt::format("{}cluster {}\nterm {}\n", kBegin, kept.cluster_id, kept.term);
  return text + fmt::format("crc32c {:08x}\n", CrcOfText(text));
}

std::optional<KeptTerm> DecodeTerm(std::string_view text) {
  const std::string_view all = text;
  if (text.substr(0, kBegin.size()) != kBegin) return std::nullopt;
  text.remove_prefix(kBegin.size());
  const auto cluster = TakeNumber(&text, "cluster ", 10);
  const auto term = cluster ? TakeNumber(&text, "term ", 10) : std::nullopt;
  if (!term) return std::nullopt;
  const uint32_t crc = CrcOfText(all.substr(0, all.size() - text.size()));
  if (TakeNumber(&text, "crc32c ", 16) != crc || !text.empty()) return std::nullopt;
  return KeptTerm{.cluster_id = *cluster, .term = *term};
}

StatusOr<std::optional<KeptTerm>> ReadTerm(const std::string& folder) {
  const std::string path = PathIn(folder, "term");
  if (FileStamp(path) == "-;") return std::optional<KeptTerm>();
  const StatusOr<std::string> text = ReadSmallFile(path);
  const std::optional<KeptTerm> kept = text.ok() ? DecodeTerm(*text) : std::nullopt;
  if (!kept) return DataLoss("{}: it is damaged", path);
  return kept;
}

Status WriteTerm(const std::string& folder, const KeptTerm& kept) {
  return ReplaceFile(PathIn(folder, "term"), EncodeTerm(kept), 0600);
}

}  // namespace gyre
