set(SOURCES cpu/kernels.cc cpu/kernels_generic.cc cpu/pack.cc
    cuda/cuda_error.cc cuda/gpu.cc cuda/gpu_copies.cc cuda/gpu_thread.cc cuda/kernels_image.cc cuda/lane_calls.cc cuda/libraries.cc
    cuda/move_launch.cc cuda/nccl_comm.cc cuda/nccl_lane.cc)
set(NEEDS base observe)

# kernels_impl.inc is compiled once for each instruction set. -O3 because at -O2 gcc vectorises no
# loop of unknown length; no contraction, so that every variant gives the same bits.
set(KERNEL_OPTIONS -O3 -ffp-contract=off -fno-trapping-math)
set(AVX2_OPTIONS -mavx2 -mfma -mf16c)
set_source_files_properties(device/cpu/kernels_generic.cc PROPERTIES COMPILE_OPTIONS "${KERNEL_OPTIONS}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND SOURCES cpu/kernels_avx2.cc cpu/kernels_avx512.cc)
  set_source_files_properties(device/cpu/kernels_avx2.cc PROPERTIES
    COMPILE_OPTIONS "${KERNEL_OPTIONS};${AVX2_OPTIONS}")
  set_source_files_properties(device/cpu/kernels_avx512.cc PROPERTIES
    COMPILE_OPTIONS "${KERNEL_OPTIONS};${AVX2_OPTIONS};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mprefer-vector-width=512")
endif()
