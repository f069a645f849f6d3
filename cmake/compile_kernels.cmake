# cmake -DNVCC=... -DOPTIONS=... -DSOURCES=... -DOUT=... -DKEPT=... -P compile_kernels.cmake:
# compiles the first of SOURCES, which includes the others, to OUT. ccache does not support fat
# binaries, so they are kept in KEPT, named by the hash of all their inputs, and shared by all build
# folders.
set(made_from "${NVCC} ${OPTIONS}")
foreach(source ${SOURCES})
  file(SHA256 ${source} hash)
  string(APPEND made_from " ${hash}")
endforeach()
execute_process(COMMAND ${NVCC} --version OUTPUT_VARIABLE nvcc_version)
string(SHA256 key "${made_from} ${nvcc_version}")
set(image ${KEPT}/${key}.fatbin)
if(NOT EXISTS ${image})
  # Another build may compile the same image: it gets its final name only when it is complete.
  string(RANDOM LENGTH 16 unique)
  file(MAKE_DIRECTORY ${KEPT})
  list(GET SOURCES 0 source)
  execute_process(COMMAND ${NVCC} ${OPTIONS} -o ${image}.${unique} ${source} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    file(REMOVE ${image}.${unique})
    message(FATAL_ERROR "nvcc failed (${status}); its message is above")
  endif()
  file(RENAME ${image}.${unique} ${image})
endif()
get_filename_component(folder ${OUT} DIRECTORY)
file(MAKE_DIRECTORY ${folder})
file(COPY_FILE ${image} ${OUT})
file(TOUCH_NOCREATE ${OUT})
