// The tools of a chat, as a file of the user's has them (docs/cli.md, "Tools in a chat").
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "boost/json/array.hpp"
#include "boost/json/object.hpp"

namespace gyre {

// A program that a model may call. Immutable.
struct ChatTool {
  std::string name;
  std::string schema;                 // of its arguments, JSON; "" = none
  std::vector<std::string> required;  // arguments that must be there
  // The program and its words. {NAME} in a word stands for an argument, {{NAME}} for the text {NAME}.
  std::vector<std::string> command;
  std::string folder;  // where it runs
  Duration time{};     // after it the program is ended
  size_t output_bytes = 0;

  // The program and its words for these arguments. A word with an argument that is absent or null is left out.
  // kInvalidArgument: one is missing, or can't be a word.
  StatusOr<std::vector<std::string>> Words(const boost::json::object& arguments) const;
};

struct ToolFile {
  std::vector<ChatTool> tools;
  // As a model is told of them: {"type": "function", "function": {"name", "description", "parameters"}} each.
  boost::json::array declared;
};

// kNotFound, kUnavailable: the file can't be read. kInvalidArgument: what is wrong in it, and where.
StatusOr<ToolFile> ReadToolFile(const std::string& path);

}  // namespace gyre
