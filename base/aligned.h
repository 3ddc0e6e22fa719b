// Vectors of numbers with the alignment that kernels need to read whole registers.
#pragma once

#include <boost/align/aligned_allocator.hpp>

#include <vector>

namespace gyre {

// Aligned to 64 bytes, the widest register and a cache line, so that no read touches two lines.
template <typename T>
using AlignedVector = std::vector<T, boost::alignment::aligned_allocator<T, 64>>;

}  // namespace gyre
