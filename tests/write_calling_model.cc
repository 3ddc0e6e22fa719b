// Writes the model that calls a tool, for tests in other languages: asked anew it calls get_weather twice, after a
// tool's result it answers.
//   write_calling_model FILE
#include <cstdio>
#include <fstream>

#include "tests/testing/calling_model.h"

int main(int count, char** words) {
  if (count != 2) {
    std::fprintf(stderr, "usage: %s FILE\n", words[0]);
    return 2;
  }
  const auto bytes = gyre::testing::CallingModel(
      {"I look.", "\n<tool_", "call>\n{\"name\": \"get_", "weather\", \"argum", "ents\": {\"city\": \"Pa",
       "ris\"}}\n</tool_call>",
       "\n<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>"},
      {"It is ", "sunny", " in both."});
  std::ofstream out(words[1], std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) std::fprintf(stderr, "%s: %s can't be written\n", words[0], words[1]);
  return out ? 0 : 1;
}
