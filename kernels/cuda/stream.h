// What every launch needs, without CUDA's headers.
#pragma once

#include <cstddef>

struct CUstream_st;

namespace gyre::cuda {

// A stream of a GPU. Null is the default stream.
using Stream = CUstream_st*;

// The blocks of a launch in which n things are dealt out, `each` to a block.
inline unsigned Blocks(size_t n, size_t each) { return static_cast<unsigned>((n + each - 1) / each); }

}  // namespace gyre::cuda
