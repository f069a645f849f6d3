# Compiles the kernels for NVIDIA's GPUs and puts them into libperseus, if there is an nvcc. It is
# looked for in CUDACXX (variable or environment), on PATH, in CUDA_HOME, CUDA_PATH and
# /usr/local/cuda, and in the wheel nvidia-cuda-nvcc beside Python_EXECUTABLE, in this order.
# CUDACXX=OFF builds without. The search is repeated each time CMake runs, since nvcc may be
# installed or removed in between.
set(PERSEUS_MOVES_ROOM ${PROJECT_SOURCE_DIR}/csrc/device/cuda)
# Those of these that this nvcc supports. Code for x.y runs on every x.z with z >= y; 8.6 and 8.9
# are listed because they run more in parallel than 8.0.
if(NOT DEFINED PERSEUS_GPU_ARCHITECTURES)
  set(PERSEUS_GPU_ARCHITECTURES 75 80 86 89 90 100 120)
endif()

function(perseus_find_nvcc result)
  set(wanted "${CUDACXX}")
  if(NOT DEFINED CUDACXX)
    set(wanted "$ENV{CUDACXX}")
  endif()
  unset(nvcc)
  if(wanted MATCHES "^(OFF|off|NO|no|0)$")
    set(why "CUDACXX is ${wanted}")
  elseif(wanted)
    find_program(nvcc NAMES ${wanted} NO_CACHE)
    if(NOT nvcc)
      message(FATAL_ERROR "CUDACXX is ${wanted}, which is no program")
    endif()
  else()
    set(why "no nvcc")
    set(beside_python "")
    if(Python_EXECUTABLE)
      get_filename_component(environment ${Python_EXECUTABLE} DIRECTORY)
      file(GLOB beside_python ${environment}/../lib/python3*/site-packages/nvidia/*/bin)
    endif()
    set(folders "")
    foreach(home "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}" /usr/local/cuda)
      if(home)
        list(APPEND folders ${home}/bin)
      endif()
    endforeach()
    find_program(nvcc nvcc PATHS ENV PATH NO_CACHE NO_DEFAULT_PATH)
    find_program(nvcc nvcc PATHS ${folders} ${beside_python} NO_CACHE NO_DEFAULT_PATH)
  endif()
  if(NOT nvcc)
    message(STATUS "CUDA kernels: ${why}, so tensors on GPUs cannot be packed there; "
                   "for nvcc, see CUDA_HOME, PATH, or `make env-nvcc`")
    set(nvcc "")
  endif()
  set(${result} "${nvcc}" PARENT_SCOPE)
endfunction()

# Options that make nvcc emit machine code for all architectures, and PTX of the newest for later
# ones.
function(perseus_gpu_options nvcc result)
  execute_process(
    COMMAND ${nvcc} --list-gpu-arch
    OUTPUT_VARIABLE listed ERROR_VARIABLE message RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${nvcc} --list-gpu-arch failed (${status}): ${message}")
  endif()
  string(REGEX MATCHALL "[0-9]+" known "${listed}")
  set(options "")
  set(names "")
  foreach(architecture ${PERSEUS_GPU_ARCHITECTURES})
    if(architecture IN_LIST known)
      list(APPEND options -gencode=arch=compute_${architecture},code=sm_${architecture})
      list(APPEND names ${architecture})
      set(newest ${architecture})
    endif()
  endforeach()
  if(NOT names)
    message(FATAL_ERROR "${nvcc} knows none of the architectures ${PERSEUS_GPU_ARCHITECTURES}")
  endif()
  list(APPEND options -gencode=arch=compute_${newest},code=compute_${newest})
  list(JOIN names " " names)
  message(STATUS "CUDA kernels: ${nvcc}, for sm ${names}")
  set(${result} ${options} PARENT_SCOPE)
endfunction()

perseus_find_nvcc(nvcc)
if(nvcc)
  perseus_gpu_options(${nvcc} gpu_options)
  set(image ${CMAKE_CURRENT_BINARY_DIR}/generated/kernels.fatbin)
  set(kernels ${PERSEUS_MOVES_ROOM}/kernels.cu)
  # The host's compiler only preprocesses here, so any version will do. Contraction is off so that
  # the arithmetic matches the CPU's. Compression reduces the size to a sixth; by default nvcc
  # compresses only the PTX.
  set(nvcc_options -fatbin -std=c++17 -O3 -fmad=false --expt-relaxed-constexpr --threads 0 -Xfatbin=-compress-all
      -ccbin ${CMAKE_CXX_COMPILER} -allow-unsupported-compiler ${gpu_options} -I ${PROJECT_SOURCE_DIR}/csrc)
  set(read ${kernels} ${PERSEUS_MOVES_ROOM}/moves_kernels.inc ${PERSEUS_MOVES_ROOM}/moves.h)
  set(script ${PROJECT_SOURCE_DIR}/cmake/compile_kernels.cmake)
  add_custom_command(
    OUTPUT ${image}
    COMMAND ${CMAKE_COMMAND} -DNVCC=${nvcc} "-DOPTIONS=${nvcc_options}" "-DSOURCES=${read}" -DOUT=${image}
            -DKEPT=${PROJECT_SOURCE_DIR}/build/kernels -P ${script}
    DEPENDS ${read} ${script} ${nvcc}
    COMMENT "Compiling the CUDA kernels"
    VERBATIM)
  set(holder ${PERSEUS_MOVES_ROOM}/kernels_image.cc)
  target_sources(perseus_device PRIVATE ${image})
  set_source_files_properties(${holder} PROPERTIES
    COMPILE_DEFINITIONS "PERSEUS_KERNELS_IMAGE=\"${image}\"" OBJECT_DEPENDS ${image})
endif()
