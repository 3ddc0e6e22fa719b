#include "model/foreign_file.h"

#include <algorithm>
#include <string_view>

namespace gyre {
namespace {

using std::string_view_literals::operator""sv;

constexpr size_t kLooked = 4096;

bool BeginsWith(std::string_view text, std::string_view what) { return text.substr(0, what.size()) == what; }

// Like BeginsWith, for ASCII letters of either case; `what` is in lower case.
bool BeginsWithWord(std::string_view text, std::string_view what) {
  return text.size() >= what.size() && std::equal(what.begin(), what.end(), text.begin(), [](char w, char t) {
           return w == (t >= 'A' && t <= 'Z' ? t - 'A' + 'a' : t);
         });
}

bool IsText(std::string_view head) {
  return std::all_of(head.begin(), head.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 ? c != 0x7F : c == '\n' || c == '\r' || c == '\t' || c == '\f';
  });
}

struct Magic {
  std::string_view bytes;
  const char* what;
};
constexpr Magic kMagics[] = {
    {"PK\x03\x04"sv,
     "looks like a zip archive, as PyTorch's .bin and .pt files are; expected GGUF, or a folder of safetensors"},
    {"\x80\x02}"sv, "looks like a Python pickle, as old PyTorch files are; expected GGUF, or a folder of safetensors"},
    {"\x80\x02\x8A"sv,
     "looks like a Python pickle, as old PyTorch files are; expected GGUF, or a folder of safetensors"},
    {"\x80\x04\x95"sv, "looks like a Python pickle, not a model file"},
    {"\x80\x05\x95"sv, "looks like a Python pickle, not a model file"},
    {"\x1F\x8B"sv, "looks like a gzip archive: unpack it first"},
    {"\x28\xB5\x2F\xFD"sv, "looks like a zstd archive: unpack it first"},
    {"\xFD"
     "7zXZ"sv,
     "looks like an xz archive: unpack it first"},
    {"7z\xBC\xAF"sv, "looks like a 7z archive: unpack it first"},
    {"tjgg"sv, "is a GGML file of the time before GGUF, which is not supported: download the model as GGUF"},
    {"fmgg"sv, "is a GGML file of the time before GGUF, which is not supported: download the model as GGUF"},
    {"lmgg"sv, "is a GGML file of the time before GGUF, which is not supported: download the model as GGUF"},
    {"\x7F"
     "ELF"sv,
     "is a program, not a model file"},
    {"\x89HDF"sv, "looks like an HDF5 file; expected GGUF, or a folder of safetensors"},
};

// The file begins with eight bytes of length, then JSON.
bool IsSafetensors(std::string_view head) {
  return head.size() > 9 && head[8] == '{' && head[7] == '\0' && head[6] == '\0' && head[5] == '\0' &&
         IsText(head.substr(8, 64));
}

}  // namespace

std::string DescribeForeignFile(std::span<const std::byte> file) {
  const std::string_view head(reinterpret_cast<const char*>(file.data()), std::min(file.size(), kLooked));
  for (const Magic& m : kMagics) {
    if (BeginsWith(head, m.bytes)) return m.what;
  }
  if (IsSafetensors(head)) return "looks like a safetensors file: give the folder that it lies in";
  if (head.size() > 262 && head.substr(257, 5) == "ustar") return "looks like a tar archive: unpack it first";
  if (head.size() >= 28 && std::all_of(head.begin(), head.end(), [](char c) { return c == '\0'; })) {
    return "begins with zeros only, as an unfinished download does: download it again";
  }
  constexpr size_t kFewest = 8;  // bytes that tell a text from a model's first bytes
  if (head.size() < kFewest || !IsText(head)) return "";
  std::string_view text = head;
  if (BeginsWith(text, "\xEF\xBB\xBF")) text.remove_prefix(3);
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n\f"), text.size()));
  for (const std::string_view tag : {"<!doctype html", "<html", "<head", "<body"}) {
    if (BeginsWithWord(text, tag)) return "looks like an HTML page, not a model file: download it again";
  }
  if (BeginsWith(text, "<?xml") || BeginsWith(text, "<Error>")) {
    return "looks like an XML answer of a server, not a model file: download it again";
  }
  if (BeginsWith(text, "version https://git-lfs.github.com/")) {
    return "is a Git LFS pointer, not the model file that it stands for: fetch that with `git lfs pull`";
  }
  if (BeginsWith(text, "{") || BeginsWith(text, "[")) return "looks like JSON, not a model file";
  return "looks like plain text, not a model file";
}

}  // namespace gyre
