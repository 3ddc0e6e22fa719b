// The object that answers requests: a ring in this process, or a coordinator elsewhere.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "boost/json/array.hpp"
#include "coordinator/engine/engine.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"

namespace gyre {

namespace v1 {
class ChangeReply;
class StatusReply;
}  // namespace v1

struct TargetFacts {
  std::string model, architecture, kv_type;
  uint32_t context = 0;
  bool context_shift = false;   // a full context doesn't end a text
  bool rounds_prompts = false;  // rows of prompts have rounded activations (docs/bits.md)
  int vocab = 0;
  std::string tokenizer_note;  // why there is none; "" where there is
  bool add_bos = false;
  TokenId bos = -1;
};

// Not thread-safe.
class Target {
 public:
  virtual ~Target() = default;

  virtual const TargetFacts& facts() const = 0;
  // Runs one request and hands its events over on the calling thread, the terminal one last. `interrupted` is asked
  // every 50 ms, on any thread; if it is true, the request is cancelled. The error is that of a refusal or of a Failed
  // event; OK after Finished and Cancelled. With prompt_logits: LogitsEvents only.
  virtual Status Run(Request request, const std::function<void(const Event&)>& on_event,
                     const std::function<bool()>& interrupted) = 0;
  // Runs the request to its end.
  Status Run(Request request, const std::function<void(const Event&)>& on_event) {
    return Run(std::move(request), on_event, [] { return false; });
  }
  virtual StatusOr<std::vector<TokenId>> Encode(const std::string& text, const EncodeOptions& options) = 0;
  // `format`: a built-in template, "" = the model's own.
  // `tools`: as Conversation has them, or null.
  virtual StatusOr<ChatPrompt> Prompt(const boost::json::array& messages, const boost::json::value& tools,
                                      const std::string& format) = 0;

  virtual StatusOr<v1::StatusReply> FetchStatus() = 0;
  // Returns when the new plan serves, or why it does not.
  virtual StatusOr<v1::ChangeReply> Resize(const std::string& ranges) = 0;
};

}  // namespace gyre
