// Stacks that one thread of the system switches between. AddressSanitizer is told of each switch.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace gyre::simt {

// Where a fiber, or the thread of the system, goes on.
class Context {
 public:
  // The next switch here calls entry() on this stack, which must not return.
  void Begin(std::byte* stack, size_t bytes, void (*entry)());
  // The stack of the calling thread of the system.
  void UseThisThread();

 private:
  friend void Switch(Context* from, Context* to);
  friend void Arrive(Context* here);
#if defined(__x86_64__)
  void* top_ = nullptr;
#else
  ucontext_t state_;
#endif
  std::byte* stack_ = nullptr;
  size_t bytes_ = 0;
  void* fake_stack_ = nullptr;  // AddressSanitizer's
};

// Returns when somebody switches back to `from`.
void Switch(Context* from, Context* to);
// The first call on a new stack.
void Arrive(Context* here);

}  // namespace gyre::simt
