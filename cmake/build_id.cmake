# cmake -DROOT=... -DOUT=... -P build_id.cmake: writes a header with the hash of all the engine's
# sources. Ranks with different hashes may interpret the same bytes differently.
file(GLOB_RECURSE files RELATIVE ${ROOT} ${ROOT}/*.h ${ROOT}/*.cc ${ROOT}/*.inc ${ROOT}/*.cu)
list(FILTER files EXCLUDE REGEX "^python/")
list(SORT files)
set(hashes "")
foreach(name ${files})
  file(SHA256 ${ROOT}/${name} hash)
  string(APPEND hashes "${name} ${hash}\n")
endforeach()
string(SHA256 id "${hashes}")
string(SUBSTRING ${id} 0 16 id)
file(WRITE ${OUT} "#pragma once\n\nnamespace perseus {\ninline constexpr char kBuildId[] = \"${id}\";\n}\n")
