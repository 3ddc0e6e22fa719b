// Vectors of numbers that kernels read in whole registers.
#pragma once

#include <boost/align/aligned_allocator.hpp>

#include <vector>

namespace gyre {

// Begins at a multiple of 64, the widest register and a line of the caches, so that no read touches two lines.
template <typename T>
using AlignedVector = std::vector<T, boost::alignment::aligned_allocator<T, 64>>;

}  // namespace gyre
