// Speed of the tokenizers: megabytes of English prose per second on one core, and texts on which a faulty algorithm
// takes quadratic time. Prints medians of the thread's CPU time, as other programs may run on the machine, as one JSON
// object.
//
//   tokenizer_bench [TOKENIZER...] [--text FILE] [--mb 4] [--runs 5] [--only-prose]
//
// TOKENIZER: a GGUF file or a folder with tokenizer.json; without any, vocabularies of the text's own words, one of
// each kind. The text is a file, or the paragraphs of docs/*.md and README.md repeated in a seeded order.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "model/bpe.h"
#include "model/spm.h"
#include "model/unigram.h"
#include "model/weights.h"
#include "runtime/measure.h"
#include "tests/testing/cpu_time.h"

namespace gyre {
namespace {

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(in)), {});
}

// Only paragraphs that begin with a letter and have no bar: code, tables and lists are no prose.
std::string Prose(size_t bytes) {
  std::vector<std::filesystem::path> files{std::filesystem::path(GYRE_SOURCE_DIR) / "README.md"};
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(GYRE_SOURCE_DIR) / "docs")) {
    if (entry.path().extension() == ".md") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> paragraphs;
  for (const auto& file : files) {
    const std::string text = ReadFile(file);
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find("\n\n", at), text.size());
      const std::string p = text.substr(at, end - at);
      if (!p.empty() && std::isalpha(static_cast<unsigned char>(p[0])) != 0 && p.find('|') == p.npos)
        paragraphs.push_back(p);
      at = end + 2;
    }
  }
  std::mt19937 random(1);
  std::string out;
  while (!paragraphs.empty() && out.size() < bytes) out += paragraphs[random() % paragraphs.size()] + "\n\n";
  return out.substr(0, bytes);
}

// The words of the text, with a space before them, and all their prefixes; each with its number of occurrences.
std::vector<std::pair<std::string, double>> Pieces(const std::string& text) {
  std::map<std::string, double> words, pieces;
  std::string word = " ";
  for (char c : text) {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += c;
    } else {
      if (word.size() > 1) words[word] += 1;
      word = " ";
    }
  }
  for (const auto& [w, n] : words) {
    for (size_t k = 2; k <= w.size(); ++k) pieces[w.substr(0, k)] += n;
  }
  std::vector<std::pair<std::string, double>> out(pieces.begin(), pieces.end());
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return out;
}

std::unique_ptr<Tokenizer> Synthetic(const std::string& kind, const std::string& text) {
  Vocabulary v;
  const auto pieces = Pieces(text);
  if (kind == "bpe") {
    for (int b = 0; b < 256; ++b) v.Add(std::string(1, static_cast<char>(b)), TokenType::kNormal);
    for (const auto& [piece, n] : pieces) v.Add(piece, TokenType::kNormal);
    const auto merges = MergesByRank(v);
    return *MakeBpeTokenizer(std::move(v), merges, *PreTokenizerByName("llama3"));
  }
  auto add = [&](const std::string& piece, double score, TokenType type) {
    v.Add(piece, type);
    v.scores.push_back(static_cast<float>(score));
  };
  for (int b = 0; b < 256; ++b) add(fmt::format("<0x{:02X}>", b), 0, TokenType::kByte);
  const double n = static_cast<double>(text.size());
  for (int c = 33; c < 127; ++c)
    add(std::string(1, static_cast<char>(c)), kind == "spm" ? -1e6 : std::log(1 / n), TokenType::kNormal);
  add("\xE2\x96\x81", kind == "spm" ? -1e6 : std::log(1 / n), TokenType::kNormal);
  for (size_t i = 0; i < pieces.size(); ++i) {
    add("\xE2\x96\x81" + pieces[i].first.substr(1),
        kind == "spm" ? -static_cast<double>(i) : std::log(pieces[i].second / n), TokenType::kNormal);
  }
  if (kind == "spm") return *MakeSpmTokenizer(std::move(v), {});
  return *MakeUnigramTokenizer(std::move(v), {.steps = {{.kind = NormalizerStep::Kind::kCollapseSpaces}}});
}

struct Speed {
  double megabytes_a_second = 0;
  size_t tokens = 0;
};
Speed Measure(const Tokenizer& t, const std::string& text, int runs) {
  std::vector<double> rates;
  Speed s;
  for (int i = 0; i < runs; ++i) {
    const double begin = testing::ThreadSeconds();
    s.tokens = t.Encode(text, {}).size();
    rates.push_back(static_cast<double>(text.size()) / 1e6 / (testing::ThreadSeconds() - begin));
  }
  s.megabytes_a_second = bench::Median(rates);
  return s;
}

// Seconds per megabyte of each text.
std::string Quadratic(const Tokenizer& t) {
  constexpr size_t kBytes = 1000000;
  std::mt19937 random(2);
  std::string word;
  for (size_t i = 0; i < kBytes; ++i) word += static_cast<char>('a' + random() % 26);
  auto seconds = [&](const std::string& text) {
    return static_cast<double>(kBytes) / 1e6 / Measure(t, text, 1).megabytes_a_second;
  };
  return fmt::format("{{\"one_letter\": {:.3f}, \"spaces\": {:.3f}, \"one_word\": {:.3f}}}",
                     seconds(std::string(kBytes, 'a')), seconds(std::string(kBytes, ' ')), seconds(word));
}

std::string Describe(const std::string& name, const Tokenizer& t, const std::string& text, int runs, bool only_prose) {
  const Speed all = Measure(t, text, runs);
  // Texts as short as a chat message, for which a cache that each text fills again is of no use.
  std::vector<double> rates;
  for (int i = 0; i < runs; ++i) {
    const double begin = testing::ThreadSeconds();
    size_t bytes = 0;
    for (size_t at = 0; at + 500 <= text.size() && bytes < 1000000; at += 500, bytes += 500)
      (void)t.Encode(text.substr(at, 500), {});
    rates.push_back(static_cast<double>(bytes) / 1e6 / (testing::ThreadSeconds() - begin));
  }
  return fmt::format(
      "{{\"tokenizer\": \"{}\", \"kind\": \"{}\", \"vocabulary\": {}, \"mb_a_second\": {:.1f}, "
      "\"mb_a_second_of_500_bytes\": {:.1f}, "
      "\"bytes_a_token\": {:.2f}, \"seconds_a_megabyte\": {}}}",
      name, t.kind(), t.size(), all.megabytes_a_second, bench::Median(rates),
      static_cast<double>(text.size()) / static_cast<double>(std::max<size_t>(all.tokens, 1)),
      only_prose ? "null" : Quadratic(t));
}

}  // namespace
}  // namespace gyre

int main(int argc, char** argv) {
  using namespace gyre;
  std::vector<std::string> paths;
  std::string file;
  int megabytes = 4, runs = 5;
  CLI::App app{"Megabytes of text a second that tokenizers encode on one core"};
  app.add_option("TOKENIZER", paths, "GGUF files or folders; none: the built-in vocabularies");
  app.add_option("--text", file, "a text file; none: the documentation's prose")->check(CLI::ExistingFile);
  app.add_option("--mb", megabytes, "megabytes of it")->check(CLI::Range(1, 1000));
  app.add_option("--runs", runs)->check(CLI::PositiveNumber);
  bool only_prose = false;
  app.add_flag("--only-prose", only_prose, "without the texts of one letter, of spaces and of one word");
  CLI11_PARSE(app, argc, argv);
  std::string text = file.empty() ? Prose(static_cast<size_t>(megabytes) * 1000000) : ReadFile(file);
  if (text.empty()) {
    fmt::print(stderr, "tokenizer_bench: the text is empty\n");
    return 1;
  }
  text.resize(std::min(text.size(), static_cast<size_t>(megabytes) * 1000000));
  std::vector<std::string> results;
  for (const std::string& path : paths) {
    const auto t = OpenTokenizer(path);
    if (!t.ok()) {
      fmt::print(stderr, "tokenizer_bench: {}\n", Message(t.status()));
      return 1;
    }
    results.push_back(Describe(path.substr(path.rfind('/') + 1), **t, text, runs, only_prose));
  }
  for (const char* kind : {"bpe", "spm", "unigram"}) {
    if (paths.empty()) results.push_back(Describe("built in", *Synthetic(kind, text), text, runs, only_prose));
  }
  std::string all;
  for (const std::string& r : results) all += (all.empty() ? "" : ",\n  ") + r;
  bench::PrintResult(file.empty() ? "none" : file, runs, "\"tokenizers\": [\n  " + all + "]");
}
