#include "kernels/cuda/products/int8.cuh"

namespace gyre::cuda {

void ProductInt8(Stream stream, const Matrices& w, const Operand& x, size_t rows, const uint32_t* bounds,
                 const RowsOut& out) {
  const ProductArguments a = ArgumentsOf(w, x, rows, bounds, out);
  WithCodes(w.first->type, [&]<DType kType>() {
    WithEights(w, rows, bounds != nullptr, [&]<int kEights>(const gpu::Grid& grid) {
      GPU_LAUNCH((ProductInt8Kernel<FormOf<kType>, kEights>), grid, 256, stream, a);
    });
  });
}

}  // namespace gyre::cuda
