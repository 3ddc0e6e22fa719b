// What a person may change during a chat.
#pragma once

#include <string>

#include "base/status.h"
#include "cli/commands.h"

namespace gyre {

// The settings of a chat, which /set changes and /show shows. Not thread-safe.
class ChatSettings {
 public:
  // description: of the model, for /show.
  ChatSettings(const ChatOptions& options, std::string description)
      : flags_(options.flags),
        description_(std::move(description)),
        generate_(options.generate),
        system_(options.system),
        wrap_(!options.no_wrap),
        usage_(!options.ring.quiet) {}

  // "NAME VALUE", as "temp 0.7" or "system Be brief."; also as ollama writes them ("parameter num_predict 50",
  // "nowordwrap"). Returns the setting's new value as text to show. "" shows all settings and changes none.
  // kInvalidArgument: what is wrong.
  StatusOr<std::string> Set(const std::string& words);
  // "" = all; or system, parameters, info.
  StatusOr<std::string> Show(const std::string& what) const;

  const GenerateOptions& generate() const { return generate_; }
  const std::string& system() const { return system_; }
  bool wrap() const { return wrap_; }
  // Whether a line says after each answer how many tokens it has, and how fast they came.
  bool usage() const { return usage_; }

 private:
  std::string ShowSystem() const;
  std::string ShowParameters() const;

  const GenerateFlags flags_;
  const std::string description_;
  GenerateOptions generate_;
  std::string system_;
  bool wrap_, usage_;
};

}  // namespace gyre
