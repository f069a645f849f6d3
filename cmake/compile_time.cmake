# Shortens compilation without changing what is compiled: unity builds, one precompiled header, and
# ccache where it is installed. docs/development.md has the figures.

# Eight sources at a time, so that two processors can still share a room of the engine. `make build
# UNITY=OFF` compiles each source alone, which is faster when the same source changes repeatedly.
option(CMAKE_UNITY_BUILD "Compile eight sources at a time" ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)
# Relative paths let the cache serve objects that another clone compiled (CMake 4.0).
set(CMAKE_UNITY_BUILD_RELOCATABLE ON)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # It takes an included source for a header, where what is local to a source would be a mistake.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()

# ccache shares objects between builds, folders and clones, so this tree's path must stay out of the
# hash. A precompiled header needs the two kinds of sloppiness; no source uses __TIME__ or __DATE__.
find_program(PERSEUS_CCACHE ccache)
if(PERSEUS_CCACHE)
  set(with_ccache ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
                  CCACHE_SLOPPINESS=pch_defines,time_macros ${PERSEUS_CCACHE})
  foreach(language C CXX)
    # A launcher that the user set is kept; if it is plain ccache, it lacks these settings.
    if(NOT CMAKE_${language}_COMPILER_LAUNCHER OR CMAKE_${language}_COMPILER_LAUNCHER MATCHES "(^|/)ccache$")
      set(CMAKE_${language}_COMPILER_LAUNCHER ${with_ccache})
    endif()
  endforeach()
endif()

set(PERSEUS_PRECOMPILED
    <algorithm> <array> <atomic> <bit> <cerrno> <chrono> <cmath> <condition_variable> <cstddef> <cstdint>
    <cstdlib> <cstring> <functional> <map> <memory> <mutex> <optional> <set> <span> <string> <string_view>
    <thread> <utility> <vector>)
list(TRANSFORM PERSEUS_PRECOMPILED REPLACE "^.*$" "$<$<COMPILE_LANGUAGE:CXX>:\\0>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # Otherwise clang compares timestamps, which differ when the header comes from the cache.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")
endif()

# perseus_precompile(TARGET OWNER [HEADER...]): TARGET uses the precompiled header of OWNER, which
# must be of the same kind (library or program) and compiled with the same options. An owner builds
# it from the given headers and the standard ones. A source with options of its own does not use it.
function(perseus_precompile target owner)
  if(CMAKE_DISABLE_PRECOMPILE_HEADERS)  # CMake would warn of every target that uses another's
    return()
  endif()
  if(target STREQUAL owner)
    target_precompile_headers(${target} PRIVATE ${PERSEUS_PRECOMPILED} ${ARGN})
  else()
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    if(options)
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()
