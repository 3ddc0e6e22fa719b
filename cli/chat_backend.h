// The interface between `gyre chat` and the model or server that answers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "boost/json/array.hpp"
#include "cli/commands.h"
#include "client/target.h"
#include "gyre/v1/admin.pb.h"

namespace gyre {

// A call of a tool.
struct ChatCall {
  std::string id, name;
  std::string arguments;  // JSON, as the model wrote it
};

struct ChatAnswer {
  std::string text;
  bool stopped = false;         // by Ctrl-C
  std::optional<Usage> usage;   // absent: not told, or stopped
  std::string note;             // why the answer is cut off; "" = it is not
  std::vector<ChatCall> calls;  // complete ones
  // The model's thoughts. With calls it reads them again, beside the results.
  std::string reasoning;
};

// Not thread-safe.
class ChatBackend {
 public:
  // thinks: the text is the model's reasoning, which is not part of the answer.
  using OnText = std::function<void(const std::string& text, bool thinks)>;

  virtual ~ChatBackend() = default;
  // "demo.gguf (llama), with its own chat template", for the first line. kUnimplemented: there are tools, and the model
  // can't call them.
  virtual StatusOr<std::string> Describe() = 0;
  // The model's name in a file of a conversation.
  virtual std::string model() const = 0;
  // Continues the conversation. If the messages no longer fit into the context, the oldest are removed from
  // `messages`, and the user is told.
  virtual StatusOr<ChatAnswer> Answer(boost::json::array* messages, const GenerateOptions& options,
                                      const OnText& on_text) = 0;
  virtual StatusOr<v1::StatusReply> FetchStatus() = 0;
  virtual StatusOr<v1::ChangeReply> Resize(const std::string& ranges) = 0;
};

// Answers with a model in this process, or through a coordinator over gRPC.
// `tools`: as Conversation has them; empty: none.
std::unique_ptr<ChatBackend> MakeTargetBackend(std::unique_ptr<Target> target, const ChatOptions& options,
                                               boost::json::array tools);
// Answers through the OpenAI-compatible server at options.ring.url.
StatusOr<std::unique_ptr<ChatBackend>> OpenUrlBackend(const ChatOptions& options, boost::json::array tools);

// The last part of a path.
std::string FileName(const std::string& path);

}  // namespace gyre
