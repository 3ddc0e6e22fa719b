// A stream of the emulated GPU, which a runtime makes: it runs what it is given later, in that order.
#pragma once

#include <functional>

struct CUstream_st {
  virtual ~CUstream_st() = default;
  virtual void Enqueue(std::function<void()> work) = 0;
};
