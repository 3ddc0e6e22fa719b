// A stream of a GPU, without CUDA's headers. Null is the default stream.
#pragma once

struct CUstream_st;

namespace gyre::cuda {

using Stream = CUstream_st*;

}  // namespace gyre::cuda
