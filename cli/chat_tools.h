// The tools of a chat: a model calls them, the user allows it, and their commands run here.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "boost/json/array.hpp"
#include "cli/chat_backend.h"
#include "cli/tool_file.h"

namespace gyre {

// `text` for a terminal: `head` and the first line, then the others below it; at most so many lines and bytes of it,
// then how much is left out. Control characters are as TerminalText has them. Ends with a line feed.
std::string Folded(std::string_view head, std::string_view text, size_t lines, size_t bytes);

// Not thread-safe.
class ChatTools {
 public:
  enum class Consent : unsigned char { kYes, kNo, kAlways };
  // Asks the user. nullopt: nobody can be asked.
  using Ask = std::function<std::optional<Consent>(const std::string& question)>;

  ChatTools() = default;  // none
  // `allowed`: names of tools that run without a question. Usage errors: the file, or a name that is none of its tools.
  static StatusOr<ChatTools> Open(const std::string& path, const std::vector<std::string>& allowed);

  // As requests have them; empty: there are none.
  const boost::json::array& declared() const { return file_.declared; }
  // A line for each tool: its name, its command, and whether it runs without a question.
  std::string List() const;
  // Runs one call, if the user allows it, and returns the result for the model: what the command wrote, or a sentence
  // that begins with "error: ". `quiet`: calls and results are not shown on stderr. `stopped` ends the command.
  std::string Run(const ChatCall& call, bool quiet, const Ask& ask, const std::function<bool()>& stopped);

 private:
  const ChatTool* Find(const std::string& name) const;
  StatusOr<std::string> Result(const ChatCall& call, const Ask& ask, const std::function<bool()>& stopped);
  Status Allow(const ChatTool& tool, const ChatCall& call, const std::vector<std::string>& words, const Ask& ask);

  ToolFile file_;
  std::set<std::string> allowed_;
};

}  // namespace gyre
