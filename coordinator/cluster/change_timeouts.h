// How long the steps of a plan change may take (docs/resize.md). Plain data.
#pragma once

#include <chrono>

#include "base/clock.h"

namespace gyre {

struct ChangeTimeouts {
  Duration prepare = std::chrono::seconds(120);  // without a word from a participant
  Duration drain = std::chrono::seconds(60);
  Duration move = std::chrono::seconds(60);
  // Where pages of a lost plan are restored: in place of `move`, which members end themselves much earlier; and, when
  // all members of the new plan are ready, for those that only give pages.
  Duration restore = std::chrono::seconds(15);
  Duration restore_sources = std::chrono::seconds(1);
  Duration commit = std::chrono::seconds(10);
  // A link that fails makes its neighbors fail: the time for which the fault that began it is waited for.
  Duration blame = std::chrono::milliseconds(500);
};

}  // namespace gyre
