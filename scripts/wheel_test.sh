#!/bin/sh
# Builds the wheel, installs it into a bare environment and into one with PyTorch and, later,
# TensorFlow, and tries there what it promises: ranks under perseusrun, a C program found through pkg-config's and CMake's files,
# moved elsewhere.
#   wheel_test.sh PYTHON
set -eu
python=$1
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# install ENVIRONMENT WHAT...
install() {
  began=$(date +%s)
  environment=$1
  shift
  "$work/$environment/bin/pip" install -q --disable-pip-version-check "$@"
  echo "pip install $* ($environment): $(($(date +%s) - began)) s"
}

began=$(date +%s)
"$python" -m pip wheel -q --disable-pip-version-check --no-deps -w "$work/wheel" "$root"
echo "pip wheel .: $(($(date +%s) - began)) s"
wheel=$(echo "$work"/wheel/perseus-*.whl)

# pip ENVIRONMENT ARGUMENT...
pip() {
  environment=$1
  shift
  "$work/$environment/bin/pip" --disable-pip-version-check "$@"
}

"$python" -m venv "$work/bare"
pip bare install -q "$wheel"

# PyTorch first: what is there must stay, and be used.
"$python" -m venv "$work/with-torch"
pip with-torch install -q "$(grep '^torch==' "$root/requirements/test.txt")"
pip with-torch freeze > "$work/before"
pip with-torch install -q "$wheel[torch]"
pip with-torch freeze --exclude perseus --exclude cloudpickle --exclude numpy > "$work/after"
diff "$work/before" "$work/after"

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
for environment in bare with-torch; do
  $environment/bin/perseusrun -np 2 $environment/bin/python ranks.py
  $environment/bin/python -c "
import importlib.util, perseus_core
assert (importlib.util.find_spec('torch') is not None) == ('$environment' == 'with-torch')
assert '/$environment/' in perseus_core.__file__, perseus_core.__file__"
done

cat > torch_ranks.py << 'PYTHON'
import torch
import perseus.torch.horovod as hvd

hvd.init()
assert hvd.size() == 2
result = hvd.allreduce(torch.full((3,), float(hvd.rank())), op=hvd.Sum)
assert result.tolist() == [1.0] * 3, result
hvd.shutdown()
PYTHON
with-torch/bin/perseusrun -np 2 with-torch/bin/python torch_ranks.py

# TensorFlow comes after: the same wheel has the operations for it.
pip with-torch install -q "$(grep '^tensorflow-cpu==' "$root/requirements/test.txt")"
cat > tensorflow_ranks.py << 'PYTHON'
import tensorflow as tf
import perseus.tensorflow as hvd

hvd.init()
assert hvd.size() == 2
with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
    x = tf.Variable(1.0)
    y = x * float(hvd.rank())
assert tape.gradient(y, x).numpy() == 0.5
hvd.shutdown()
PYTHON
with-torch/bin/perseusrun -np 2 with-torch/bin/python tensorflow_ranks.py

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
echo "the wheel works: Python, with PyTorch, with TensorFlow, with neither, C, CMake"
