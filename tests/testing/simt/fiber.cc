#include "tests/testing/simt/fiber.h"

#include <pthread.h>

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#define GYRE_TELLS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GYRE_TELLS_ASAN 1
#endif
#endif
#if defined(GYRE_TELLS_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
// Keeps the registers that a call must keep on the stack, leaves its top in *save, and goes on with the other one.
extern "C" void gyre_simt_switch(void** save, void* load);
asm(R"(
  .text
  .globl gyre_simt_switch
  .type gyre_simt_switch, @function
gyre_simt_switch:
  pushq %rbx
  pushq %rbp
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbp
  popq %rbx
  ret
  .size gyre_simt_switch, . - gyre_simt_switch
)");
#endif

namespace gyre::simt {

void Context::Begin(std::byte* stack, size_t bytes, void (*entry)()) {
  stack_ = stack;
  bytes_ = bytes;
  fake_stack_ = nullptr;
#if defined(GYRE_TELLS_ASAN)
  __asan_unpoison_memory_region(stack, bytes);  // what a fiber that never ended has left there
#endif
#if defined(__x86_64__)
  void** top = reinterpret_cast<void**>(stack + bytes);
  *--top = nullptr;                         // entry() has no caller; with it the stack is aligned as a call leaves it
  *--top = reinterpret_cast<void*>(entry);  // where the switch returns to
  for (int i = 0; i < 6; ++i) *--top = nullptr;  // the registers
  top_ = top;
#else
  getcontext(&state_);
  state_.uc_stack.ss_sp = stack;
  state_.uc_stack.ss_size = bytes;
  state_.uc_link = nullptr;
  makecontext(&state_, entry, 0);
#endif
}

void Context::UseThisThread() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
  void* stack = nullptr;
  pthread_attr_getstack(&attributes, &stack, &bytes_);
  pthread_attr_destroy(&attributes);
  stack_ = static_cast<std::byte*>(stack);
}

void Switch(Context* from, Context* to) {
#if defined(GYRE_TELLS_ASAN)
  __sanitizer_start_switch_fiber(&from->fake_stack_, to->stack_, to->bytes_);
#endif
#if defined(__x86_64__)
  gyre_simt_switch(&from->top_, to->top_);
#else
  swapcontext(&from->state_, &to->state_);
#endif
  Arrive(from);
}

void Arrive([[maybe_unused]] Context* here) {
#if defined(GYRE_TELLS_ASAN)
  __sanitizer_finish_switch_fiber(here->fake_stack_, nullptr, nullptr);
#endif
}

}  // namespace gyre::simt
