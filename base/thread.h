// The one way to start a thread. Thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <thread>

#include "base/status.h"

namespace gyre {

// Starts a thread that lists of threads show under `name`, of which the system keeps 15 bytes; "" = the process's name.
// Throws std::system_error: the system gives no thread, or no memory for one; its text says which thread. For callers
// without a Status, such as constructors; they start it last, as a thread that runs must be joined.
std::thread MakeThread(const std::string& name, std::function<void()> run);
// The same with kResourceExhausted in place of the exception.
StatusOr<std::thread> StartThread(const std::string& name, std::function<void()> run);

// Runs `work` on the calling thread and on others, at most `threads` in all, and waits for all of them. Where the
// system gives fewer threads, fewer run, so they must share the work among themselves. If some throw, the first
// exception is thrown when all have ended. `work` is told whether it runs on the calling thread.
void OnThreads(size_t threads, const std::function<void(bool caller)>& work);

// Whether a library that ends the process where it gets no thread or no memory may begin its work: so many threads can
// be started at once, and so many bytes be mapped. kResourceExhausted says for what there is too little.
Status CheckRoom(const std::string& what, size_t threads, size_t bytes);

}  // namespace gyre
