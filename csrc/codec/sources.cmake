set(SOURCES bf16_codec.cc codec.cc fp16_codec.cc function_codec.cc residuals.cc)
set(NEEDS base device)

# These loop over whole tensors; at -O2 gcc vectorises no loop of unknown length.
set_source_files_properties(codec/fp16_codec.cc codec/residuals.cc PROPERTIES COMPILE_OPTIONS -O3)
