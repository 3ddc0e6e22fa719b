#include "cli/conversation_file.h"

#include <boost/json.hpp>
#include <filesystem>
#include <set>
#include <span>

#include "cli/session.h"
#include "http_client/json_fields.h"

namespace gyre {
namespace {

namespace json = boost::json;

// Notes the ids of a message's calls. False: a call has another form.
bool TakeCalls(const json::object& message, std::set<std::string>* ids) {
  const json::value* calls = message.if_contains("tool_calls");
  if (calls == nullptr) return true;
  if (!calls->is_array()) return false;
  for (const json::value& call : calls->get_array()) {
    const json::value* function = FieldOf(call, "function");
    const json::value* arguments = function == nullptr ? nullptr : FieldOf(*function, "arguments");
    if (arguments == nullptr || !arguments->is_string() || TextOf(*function, "name").empty()) return false;
    ids->insert(TextOf(call, "id"));
  }
  return true;
}

}  // namespace

Status SaveConversation(const std::string& path, const NewFileOptions& options, const std::string& model,
                        const json::array& messages) {
  GYRE_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path, options));
  const std::string text = json::serialize(json::object{{"model", model}, {"messages", messages}}) + "\n";
  GYRE_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(text.data(), text.size()))));
  return file.Finish();
}

StatusOr<json::array> LoadConversation(const std::string& path) {
  constexpr uintmax_t kLargest = uintmax_t{64} << 20;
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (!error && size > kLargest)
    return InvalidArgument("{}: {} bytes, expected a conversation of at most {}", path, size, kLargest);
  GYRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  json::error_code wrong;
  json::value v = json::parse(text, wrong);
  const json::value* messages = wrong ? nullptr : &v;
  if (messages != nullptr && v.is_object()) messages = v.get_object().if_contains("messages");
  if (messages == nullptr || !messages->is_array()) {
    return InvalidArgument("{}: expected JSON as /save writes it, an object with messages", path);
  }
  std::set<std::string> called;  // ids of calls of tools
  for (size_t i = 0; i < messages->get_array().size(); ++i) {
    const json::value& m = messages->get_array()[i];
    for (const char* key : {"role", "content"}) {
      const json::value* field = m.is_object() ? m.get_object().if_contains(key) : nullptr;
      if (field == nullptr || !field->is_string()) {
        return InvalidArgument("{}: message {} has no {}, expected {{\"role\", \"content\"}} with texts", path, i + 1,
                               key);
      }
    }
    const json::string& role = m.at("role").get_string();
    if (role == "assistant" && !TakeCalls(m.get_object(), &called)) {
      return InvalidArgument("{}: message {} has calls of tools in another form than OpenAI's API has them", path,
                             i + 1);
    }
    if (role == "tool" && called.count(TextOf(m, "tool_call_id")) == 0) {
      return InvalidArgument("{}: message {} is a tool's result, but no call before it has its tool_call_id", path,
                             i + 1);
    }
    if (role != "user" && role != "assistant" && role != "tool" && !(role == "system" && i == 0)) {
      return InvalidArgument("{}: message {} is by '{}', expected user, assistant or tool, or system at the beginning",
                             path, i + 1, std::string(role));
    }
  }
  return messages->get_array();
}

}  // namespace gyre
