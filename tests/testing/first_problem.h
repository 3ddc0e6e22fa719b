// The first violation that a simulated world has found.
#pragma once

#include <string>
#include <utility>

#include "base/status.h"

namespace gyre::testing {

class FirstProblem {
 public:
  // Empty: there is none.
  const std::string& text() const { return text_; }
  bool none() const { return text_.empty(); }
  void Found(std::string what) {
    if (none()) text_ = std::move(what);
  }
  void Check(const Status& status) {
    if (!status.ok()) Found(Message(status));
  }

 private:
  std::string text_;
};

}  // namespace gyre::testing
