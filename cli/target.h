// What run, chat and logits talk to: a ring in this process, or a coordinator elsewhere.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "boost/json/array.hpp"
#include "cli/options.h"
#include "coordinator/engine.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"

namespace gyre {

struct TargetFacts {
  std::string model, architecture, kv_type;
  uint32_t context = 0;
  int vocab = 0;
  std::string tokenizer_note;  // why there is none; "" where there is
  bool add_bos = false;
  TokenId bos = -1;
};

// Not thread-safe.
class Target {
 public:
  // Over the cluster at options.cluster, or in this process.
  static StatusOr<std::unique_ptr<Target>> Open(const RingOptions& options);
  virtual ~Target() = default;

  virtual const TargetFacts& facts() const = 0;
  // Runs one request and hands its events over on the calling thread, the terminal one last. Ctrl-C cancels it. The
  // error of a refusal or of a Failed event; OK after Finished and Cancelled. With prompt_logits: LogitsEvents only.
  virtual Status Run(Request request, const std::function<void(const Event&)>& on_event) = 0;
  virtual StatusOr<std::vector<TokenId>> Encode(const std::string& text, const EncodeOptions& options) = 0;
  // `format`: a built-in template, "" = the model's own.
  virtual StatusOr<ChatPrompt> Prompt(const boost::json::array& messages, const std::string& format) = 0;

  // For people.
  virtual StatusOr<std::string> DescribeLayers() = 0;
  virtual StatusOr<std::string> DescribeStatus() = 0;
  virtual StatusOr<std::string> Resize(const std::string& ranges) = 0;
};

// Of a cluster, by HOST:PORT.
StatusOr<std::unique_ptr<Target>> OpenRemote(const std::string& cluster);

}  // namespace gyre
