// The sampling options in docs/openapi.json and docs/api.md are written from their rows: with GYRE_WRITE_DOCS set, this
// test writes what lacks there. Otherwise it only looks.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "coordinator/engine/sampling_options.h"
#include "fmt/format.h"
#include "tests/testing/option_schema.h"

namespace gyre {
namespace {

namespace json = boost::json;

std::filesystem::path Docs() { return std::filesystem::path(GYRE_DEMO_MODEL).parent_path() / "../docs"; }

std::string Read(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The end of the value that begins there, an object, an array or a text, in a JSON document.
size_t EndOf(const std::string& text, size_t begin) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = begin; i < text.size(); ++i) {
    if (quoted && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      quoted = !quoted;
    } else if (!quoted) {
      depth += text[i] == '{' || text[i] == '[';
      depth -= text[i] == '}' || text[i] == ']';
    }
    if (depth == 0 && !quoted) return i + 1;
  }
  throw std::runtime_error("a value does not end");
}

// Where the field's value begins in the object or schema that begins at `object`; npos: it has none.
size_t FieldAt(const std::string& text, size_t object, const std::string& name) {
  const std::string key = "\"" + name + "\": ";
  const size_t end = EndOf(text, object);
  for (size_t at = object + 1; at < end; ++at) {
    if (text.compare(at, key.size(), key) == 0) return at + key.size();
    if (text[at] == '"' || text[at] == '{' || text[at] == '[') at = EndOf(text, at) - 1;
  }
  return std::string::npos;
}

// One schema, and how it names the options.
struct Place {
  std::vector<std::string> path;  // of the schema in components.schemas
  bool llama = false;
  bool answer = false;  // its fields are those of an answer: each is there, and its range is no matter
};
const Place kPlaces[] = {{.path = {"ChatRequest"}},
                         {.path = {"CompletionRequest"}},
                         {.path = {"ResponsesRequest"}},
                         {.path = {"MessagesRequest"}},
                         {.path = {"LlamaRequest"}, .llama = true},
                         {.path = {"OllamaOptions"}, .llama = true},
                         {.path = {"LlamaSettings"}, .llama = true, .answer = true},
                         {.path = {"Model", "properties", "default_sampling"}, .answer = true}};

// With the spaces that the file has.
std::string SchemaOf(const SamplingOption& option, bool answer) {
  if (answer) return fmt::format(R"({{"type": "{}"}})", testing::TypeOf(option));
  std::string out;
  for (const char c : json::serialize(testing::RequestSchema(option))) {
    out += c;
    if (c == ':' || c == ',') out += ' ';
  }
  return out;
}

// Adds `addition` behind what ends at `end`, with the same white space before it as before `begin`.
void AddLike(std::string* text, size_t begin, size_t end, const std::string& addition) {
  const size_t space = text->find_last_of(",[{", begin - 1) + 1;
  text->insert(end, "," + text->substr(space, begin - space) + addition);
}

void AddMissing(const Place& place, std::string* text) {
  const SamplingOption* before = nullptr;
  for (const SamplingOption& option : SamplingOptions()) {
    if (!place.llama && !option.openai) continue;
    const auto name = [&place](const SamplingOption& o) { return std::string(place.llama ? o.llama : o.name); };
    size_t schema = text->find("\"schemas\": {") + 11;
    for (const std::string& step : place.path) schema = FieldAt(*text, schema, step);
    const size_t properties = FieldAt(*text, schema, "properties");
    if (before != nullptr && FieldAt(*text, properties, name(option)) == std::string::npos) {
      const size_t value = FieldAt(*text, properties, name(*before));
      AddLike(text, value - name(*before).size() - 4, EndOf(*text, value),
              fmt::format("\"{}\": {}", name(option), SchemaOf(option, place.answer)));
      if (const size_t required = FieldAt(*text, schema, "required"); place.answer && required != std::string::npos) {
        const size_t last = text->find("\"" + name(*before) + "\"", required);
        AddLike(text, last, EndOf(*text, last), "\"" + name(option) + "\"");
      }
    }
    before = &option;
  }
}

std::string TableOfOptions() {
  std::string out = "| field | also | values | default |\n|---|---|---|---|\n";
  for (const SamplingOption& o : SamplingOptions()) {
    const double usual = ValueOf({}, o);
    std::string values = RangeOf(o);
    if (o.has_foreign) values += fmt::format(", or {}", o.foreign);
    std::string help(o.help);
    // A flag of the help's text is another option's field here.
    for (const SamplingOption& other : SamplingOptions()) {
      const std::string flag = fmt::format("--{}", other.flag);
      if (const size_t at = help.find(flag); at != std::string::npos) {
        help.replace(at, flag.size(), fmt::format("`{}`", other.shown()));
      }
    }
    out += fmt::format("| `{}` | {} | {} is {}: {} | {} |\n", o.shown(),
                       o.openai && o.llama != o.name ? fmt::format("`{}`", o.llama) : "", o.flag_value, values, help,
                       std::holds_alternative<float SamplingParams::*>(o.field) ? fmt::format("{}", float(usual))
                                                                                : fmt::format("{}", usual));
  }
  return out;
}

TEST(OptionDocsTest, TheDescriptionHasEveryOption) {
  const std::string there = Read(Docs() / "openapi.json");
  std::string whole = there;
  for (const Place& place : kPlaces) AddMissing(place, &whole);
  EXPECT_NO_THROW(json::parse(whole));
  if (std::getenv("GYRE_WRITE_DOCS") != nullptr) std::ofstream(Docs() / "openapi.json") << whole;
  EXPECT_EQ(Read(Docs() / "openapi.json") == whole, true)
      << "options are missing in docs/openapi.json; run this test with GYRE_WRITE_DOCS=1, which adds them";
}

TEST(OptionDocsTest, TheTableIsThatOfTheRows) {
  const std::string there = Read(Docs() / "api.md");
  const std::string begins = "<!-- sampling options -->\n", ends = "<!-- end of sampling options -->\n";
  const size_t begin = there.find(begins), end = there.find(ends);
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos && begin < end);
  std::string whole = there;
  whole.replace(begin + begins.size(), end - begin - begins.size(), TableOfOptions());
  if (std::getenv("GYRE_WRITE_DOCS") != nullptr) std::ofstream(Docs() / "api.md") << whole;
  EXPECT_EQ(Read(Docs() / "api.md") == whole, true)
      << "the table in docs/api.md is not that of the rows; run this test with GYRE_WRITE_DOCS=1, which writes it";
}

}  // namespace
}  // namespace gyre
