// How a chat template reads messages that have more than a text: found by rendering small conversations, once.
#pragma once

#include <array>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "boost/json/value.hpp"

namespace gyre {

// Calls of tools.
struct CallShape {
  bool texts = false;       // arguments are JSON texts
  bool no_content = false;  // a message that only calls has null
};

// The reasoning of an earlier answer.
struct ThoughtShape {
  std::string_view field;  // "": the first part of the content has the type "thinking" (Magistral)
  bool alone = false;      // beside calls there is no text: it goes to the thoughts (gpt-oss)
};

// Something that is found once for conversations without tools and once for those with them. Thread-safe.
template <typename T>
class FoundOnce {
 public:
  template <typename Find>
  const T& Get(bool tools, const Find& find) {
    Slot& slot = slots_[tools ? 1 : 0];
    std::call_once(slot.once, [&] { slot.value = find(); });
    return slot.value;
  }

 private:
  struct Slot {
    std::once_flag once;
    T value;
  };
  std::array<Slot, 2> slots_;
};

struct MessageShapes {
  FoundOnce<CallShape> calls;
  FoundOnce<std::optional<ThoughtShape>> thoughts;  // nullopt: the template reads none
};

// The tools of the conversations that are tried: one of our own, or null. Those of a request must not decide on what
// all others get.
boost::json::value ProbeTools(bool tools);

}  // namespace gyre
