set(SOURCES mpi_abi.cc mpi_library.cc mpi_process.cc mpich.cc open_mpi.cc)
set(NEEDS base observe)
