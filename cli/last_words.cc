#include "cli/last_words.h"

#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

#include "cli/exit_code.h"

namespace gyre {
namespace {

// What follows may run in a signal's handler: only system calls.
void SayAtTheEnd(const char* text) {
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text, std::strlen(text));
}

bool CanMap(size_t bytes) {
  void* const room = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return false;
  ::munmap(room, bytes);
  return true;
}

// Whether a thread's stack, or a large allocation, can't be had any more.
bool NoRoom() { return !CanMap(size_t{64} << 20); }

[[noreturn]] void EndWithoutRoom() {
  SayAtTheEnd("gyre: stopped, as no memory or no thread is left for it (see `ulimit -v` and `ulimit -u`)\n");
  ::_exit(kExitFailed);
}

void OnAbort(int signal) {
  if (NoRoom()) EndWithoutRoom();
  std::signal(signal, SIG_DFL);
  ::raise(signal);
}

void OnBusError(int, siginfo_t* info, void*) {
  if (info->si_code == BUS_ADRERR) {
    SayAtTheEnd("gyre: stopped, as a file that it reads, such as the model's, was cut meanwhile, or its disk failed\n");
    ::_exit(kExitFailed);
  }
  std::signal(SIGBUS, SIG_DFL);
  ::raise(SIGBUS);
}

[[noreturn]] void OnTerminate() {
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    EndWithoutRoom();
  } catch (const std::system_error& e) {
    if (e.code() == std::errc::resource_unavailable_try_again || e.code() == std::errc::not_enough_memory)
      EndWithoutRoom();
  } catch (...) {
  }
  std::abort();
}

}  // namespace

void InstallLastWords() {
  // The initializers of the libraries end the process in words of their own where they get less.
  if (!CanMap(size_t{1} << 20)) EndWithoutRoom();
  std::set_terminate(OnTerminate);
  std::signal(SIGABRT, OnAbort);
  struct sigaction bus {};
  bus.sa_sigaction = OnBusError;
  bus.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &bus, nullptr);
}

}  // namespace gyre
