#!/bin/sh
# Installs the source tree into a bare environment, and tries there what the wheel promises:
# ranks under perseusrun, a C program found through pkg-config's and CMake's files, moved elsewhere.
#   wheel_test.sh PYTHON
set -eu
python=$1
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/bare"
began=$(date +%s)
"$work/bare/bin/pip" install -q --disable-pip-version-check "$root"
echo "pip install .: $(($(date +%s) - began)) s"

# Not in the source tree, where Python would find the packages without the wheel.
cd "$work"
cat > ranks.py << 'PYTHON'
import numpy
import perseus_core

perseus_core.init()
result = perseus_core.allreduce(numpy.ones(3), perseus_core.ReduceOp.SUM, name="ones")
assert (result == perseus_core.size()).all(), result
perseus_core.shutdown()
PYTHON
bare/bin/perseusrun -np 2 bare/bin/python ranks.py
bare/bin/python -c '
import importlib.util, perseus_core
assert importlib.util.find_spec("torch") is None
assert "bare" in perseus_core.__file__, perseus_core.__file__'

cat > version.c << 'C'
#include <perseus/perseus.h>
int main(void) { return perseus_version() > 0 ? 0 : 1; }
C
cc version.c $(bare/bin/python -m perseus.config --cflags --libs) -o version
./version

# The package is a tree that can be moved: its CMake files must not remember where they were made.
cp -r "$(bare/bin/python -m perseus.config --include)/.." moved
mkdir project
mv version.c project
cat > project/CMakeLists.txt << 'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(uses_perseus C)
find_package(perseus 0.1 REQUIRED)
add_executable(version version.c)
target_link_libraries(version PRIVATE perseus::perseus)
CMAKE
cmake=$(dirname "$python")/cmake
"$cmake" -S project -B built -DCMAKE_PREFIX_PATH="$work/moved" > /dev/null
"$cmake" --build built > /dev/null
built/version
ldd built/version | grep -q "$work/moved/lib/libperseus.so"

if ldd moved/lib/libperseus.so | grep -Ei 'torch|tensorflow|mxnet|mpi|cuda|nccl'; then
  echo "libperseus.so is linked to a framework, MPI or CUDA" >&2
  exit 1
fi
echo "the wheel works: Python, C, CMake"
