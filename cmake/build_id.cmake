# cmake -DROOT=... -DOUT=... -P build_id.cmake: a header with the hash of all sources of the engine. Ranks
# of different hashes may mean different things by the same bytes.
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
