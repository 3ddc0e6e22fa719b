// Any text, cut anywhere, in any form of calls: the deltas are the same, and those of a call stand together.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "model/tool_reader.h"

namespace {

using gyre::AnswerDelta;

// Put together, as a client does.
std::vector<AnswerDelta> Merged(const std::vector<AnswerDelta>& deltas) {
  std::vector<AnswerDelta> out;
  for (const AnswerDelta& delta : deltas) {
    const bool alone = delta.kind == AnswerDelta::Kind::kCall || delta.kind == AnswerDelta::Kind::kCallEnd;
    if (alone || out.empty() || out.back().kind != delta.kind) {
      out.push_back(delta);
    } else {
      out.back().text += delta.text;
    }
  }
  return out;
}

void CheckCalls(const std::vector<AnswerDelta>& deltas) {
  bool open = false;
  for (const AnswerDelta& delta : deltas) {
    const bool argument = delta.kind == AnswerDelta::Kind::kArguments || delta.kind == AnswerDelta::Kind::kCallEnd;
    if (argument != open && (argument || delta.kind != AnswerDelta::Kind::kCall)) std::abort();
    if (delta.kind == AnswerDelta::Kind::kCall) open = true;
    if (delta.kind == AnswerDelta::Kind::kCallEnd) open = false;
  }
}

}  // namespace

// The first byte is the form, the second one how it is cut; a byte below 16 stands for a control token.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const uint8_t form = size > 0 ? data[0] : 0, cuts = size > 1 ? data[1] : 0;
  const auto formats = gyre::ToolFormats();
  const gyre::AnswerFormat format = gyre::AnswerFormatOf(formats[form % formats.size()], "");
  const size_t step = cuts % 7 + 1;
  const bool cut = (cuts & 128) != 0;
  const gyre::DeclaredTools tools = {{"f", {"t"}}, {"get", {}}};
  gyre::ToolReader whole(format, tools), parts(format, tools);
  std::vector<AnswerDelta> a, b;
  const auto add = [](std::vector<AnswerDelta> deltas, std::vector<AnswerDelta>* all) {
    all->insert(all->end(), deltas.begin(), deltas.end());
  };
  std::string text;
  const auto push = [&](gyre::TokenId id) {
    add(whole.Push(id, text), &a);
    for (size_t i = 0; i < text.size(); i += step) add(parts.Push(-1, text.substr(i, step)), &b);
    if (id >= 0) add(parts.Push(id, ""), &b);
    text.clear();
  };
  for (size_t i = 2; i < size; ++i) {
    if (data[i] < 16 && data[i] != '\n' && data[i] != '\t' && data[i] != '\r') {
      push(data[i]);
    } else {
      text += static_cast<char>(data[i]);
    }
  }
  push(-1);
  add(whole.Finish("", cut), &a);
  add(parts.Finish("", cut), &b);
  CheckCalls(a);
  CheckCalls(b);
  // A long call that turns out to be wrong may have been given out by then, or not.
  if (size < gyre::ToolReader::kHeldCall && Merged(a) != Merged(b)) std::abort();
  return 0;
}
