# GYRE_CUDA: whether programs compute on GPUs (docs/cuda.md). AUTO: where nvcc is found and the machine has NVIDIA's driver, as
# nvcc takes minutes for what is of no use without; and in no build with sanitizers, as these run the emulator. ON: without
# nvcc the configuration fails. Sets GYRE_HAS_CUDA, and CUDAToolkit's variables.
set(GYRE_CUDA AUTO CACHE STRING "Compile the GPU kernels with nvcc, into the programs: AUTO, ON or OFF")
set_property(CACHE GYRE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(GYRE_CUDA_ARCHITECTURES 80 90 120 CACHE STRING "Compute capabilities that kernels are compiled for; PTX of the last serves later ones")
set(GYRE_HAS_CUDA OFF)
if(GYRE_CUDA STREQUAL AUTO AND NOT GYRE_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  if(EXISTS /proc/driver/nvidia/version OR EXISTS /dev/dxg)  # the second is that of Windows' Linux
    find_package(CUDAToolkit 13 QUIET)
    set(GYRE_HAS_CUDA ${CUDAToolkit_FOUND})
  endif()
elseif(GYRE_CUDA AND NOT GYRE_CUDA STREQUAL AUTO)
  find_package(CUDAToolkit 13 REQUIRED)
  set(GYRE_HAS_CUDA ON)
endif()
if(GYRE_HAS_CUDA AND NOT TARGET CUDA::cudart_static)
  if(NOT GYRE_CUDA STREQUAL AUTO)
    message(FATAL_ERROR "GYRE_CUDA=${GYRE_CUDA}: CUDA ${CUDAToolkit_VERSION} has no static runtime, libcudart_static.a")
  endif()
  set(GYRE_HAS_CUDA OFF)
endif()
if(GYRE_HAS_CUDA)
  message(STATUS "GPUs: CUDA ${CUDAToolkit_VERSION}, for compute capability ${GYRE_CUDA_ARCHITECTURES}")
else()
  message(STATUS "GPUs: no driver, or no nvcc of CUDA 13 or later; programs compute on processors only (GYRE_CUDA=${GYRE_CUDA})")
endif()

# gyre_cuda_objects(OUT FILES...): compiles .cu files; OUT gets the names of their object files. No language of CMake's is
# needed for that, so that a build without nvcc has the same presets.
function(gyre_cuda_objects out)
  set(code "")
  set(last "")
  foreach(arch ${GYRE_CUDA_ARCHITECTURES})
    list(APPEND code "-gencode=arch=compute_${arch},code=sm_${arch}")
    set(last ${arch})
  endforeach()
  list(APPEND code "-gencode=arch=compute_${last},code=compute_${last}")
  set(objects "")
  foreach(file ${ARGN})
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${file})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/nvcc/${name}.o)
    get_filename_component(folder ${object} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CCACHE} ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr ${code} -I${PROJECT_SOURCE_DIR}
              -Xcompiler=-fPIC,-fvisibility=hidden,-ffp-contract=off -MD -MF ${object}.d -MT ${object} -c ${file} -o ${object}
      DEPENDS ${file} DEPFILE ${object}.d COMMENT "Compiling ${name} for GPUs" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set(${out} ${objects} PARENT_SCOPE)
endfunction()
