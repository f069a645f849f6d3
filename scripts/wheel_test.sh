#!/bin/sh
# Builds the sdist and, from it, a manylinux wheel for each Python that scripts/wheels.py finds, which
# tries each in an environment of its own. The wheel of PYTHON is then installed into a bare
# environment, into one with PyTorch and, later, TensorFlow, and into one with MXNet. In each this
# tries what the wheel promises: ranks under perseusrun, and C and C++ programs built with
# perseus.config, pkg-config and CMake after the package was moved.
#   wheel_test.sh PYTHON [--as-tested]
# With --as-tested, the library in the wheel must be the one that `make build` put into this tree.
set -eu
python=$1
as_tested=${2:-}
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# install ENVIRONMENT PACKAGE...: installs with uv, where that is available.
install() {
  began=$(date +%s)
  environment=$1
  shift
  "$python" "$root/scripts/installer.py" "$work/$environment/bin/python" "$@"
  echo "install $* ($environment): $(($(date +%s) - began)) s"
}

# If PYTHONS names some, that of PYTHON is needed, too.
PYTHONS=${PYTHONS:+"$python $PYTHONS"} "$python" "$root/scripts/wheels.py" --out "$work/wheels"
tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
wheel=$(echo "$work"/wheels/perseus_train-*-"$tag"-*.whl)

# code LIBRARY: prints a hash of the library without symbols and the paths of a build folder.
code() {
  objcopy --strip-all --remove-section=.note.gnu.build-id "$1" "$work/code"
  sha256sum < "$work/code"
}

if [ "$as_tested" = --as-tested ]; then
  "$python" -m zipfile -e "$wheel" "$work/shipped"
  for library in "$work"/shipped/perseus_core/lib/lib*.so*[0-9] "$work"/shipped/perseus_core/lib/libperseus_*.so; do
    tested=$root/perseus_core/lib/$(basename "$library")
    if [ "$(code "$library")" != "$(code "$tested")" ]; then
      echo "$(basename "$library") in the wheel is not what was tested" >&2
      exit 1
    fi
  done
fi

# pip ENVIRONMENT ARGUMENT...
pip() {
  environment=$1
  shift
  "$work/$environment/bin/pip" --disable-pip-version-check "$@"
}

"$python" -m venv "$work/bare"
pip bare install -q "$wheel"

# PyTorch first: the installed version must stay, and be used.
"$python" -m venv "$work/with-torch"
install with-torch "$(grep '^torch==' "$root/requirements/test.txt")"
pip with-torch freeze > "$work/before"
pip with-torch install -q "$wheel[torch]"
pip with-torch freeze --exclude perseus-train --exclude cloudpickle --exclude numpy > "$work/after"
diff "$work/before" "$work/after"

# Not in the source tree, where Python would find the packages without the wheel.
cd "$work"
cp "$root/tests/wheel/ranks.py" .
for environment in bare with-torch; do
  $environment/bin/perseusrun -np 2 $environment/bin/python ranks.py
  $environment/bin/python -c "
import importlib.util, perseus_core
assert (importlib.util.find_spec('torch') is not None) == ('$environment' == 'with-torch')
assert '/$environment/' in perseus_core.__file__, perseus_core.__file__"
done

# The man page and the scripts for shells are in the wheel.
test -s bare/share/man/man1/perseusrun.1
bare/bin/perseusrun --print-completion bash | grep -q -- --only-rank

# So are the command and the metadata of the drop-in.
test "$(bare/bin/python -m perseus.dropin --run horovodrun --version)" = 0.28.1
bare/bin/python -m perseus.dropin -c "
from importlib.metadata import version
assert version('horovod') == '0.28.1+perseus'"

cat > torch_ranks.py << 'PYTHON'
import torch
import perseus.torch.horovod as hvd

hvd.init()
assert hvd.size() == 2
result = hvd.allreduce(torch.full((3,), float(hvd.rank())), op=hvd.Sum)
assert result.tolist() == [1.0] * 3, result
hvd.shutdown()
PYTHON
with-torch/bin/python -c 'import torch' # writes its bytecode; two ranks would both compile it
with-torch/bin/perseusrun -np 2 with-torch/bin/python torch_ranks.py

# TensorFlow is added later: the same wheel contains its operations.
install with-torch "$(grep '^tensorflow-cpu==' "$root/requirements/test.txt")"
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
with-torch/bin/python -c 'import tensorflow'
with-torch/bin/perseusrun -np 2 with-torch/bin/python tensorflow_ranks.py

# MXNet needs an older NumPy; the extra brings both, where a Python that supports them is found.
if "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; then
  "$python" -m venv "$work/with-mxnet"
  install with-mxnet "$wheel[mxnet]"
  cat > mxnet_ranks.py << 'PYTHON'
import mxnet as mx
import perseus.mxnet as perseus

kv = perseus.create("dist_sync_perseus")
array = mx.nd.ones((3,)) * kv.rank
kv.init("sum", array, param_only=True)
kv.push("sum", array)
kv.pull("sum", array)
assert array.asnumpy().tolist() == [1.0] * 3, array
PYTHON
  with-mxnet/bin/perseusrun -np 2 with-mxnet/bin/python -W ignore mxnet_ranks.py
fi

cat > sum.c << 'C'
#include <perseus/perseus.h>
int main(void) {
  float value = 1.0f;
  perseus_tensor_t tensor = {&value, &value, 0, 0, PERSEUS_FLOAT32};
  perseus_submission_t submission = {sizeof submission};
  perseus_handle_t handle;
  submission.tensor_count = 1;
  submission.tensors = &tensor;
  submission.reduce_op = PERSEUS_SUM;
  submission.prescale = submission.postscale = 1.0;
  if (perseus_init(0) || perseus_register(PERSEUS_WORLD, PERSEUS_ALLREDUCE, "sum", &submission.id) ||
      perseus_submit(&submission, &handle) || perseus_wait(handle, -1) || perseus_shutdown())
    return 1;
  return value == 2.0f ? 0 : 2;
}
C
cp sum.c sum.cc
# summed COMMAND...: runs two ranks, which need no Python.
summed() {
  bare/bin/perseusrun -np 2 env -u PYTHONHOME -u PYTHONPATH PATH=/nowhere "$@"
  if ldd "$1" | grep libpython; then
    echo "$1 is linked to Python" >&2
    exit 1
  fi
}
cc -std=c99 -Wall -Werror sum.c $(bare/bin/python -m perseus.config --cflags --libs) -o by-config
c++ -std=c++17 -Wall -Werror sum.cc $(bare/bin/python -m perseus.config --cflags --libs) -o by-config++
"$work/bare/bin/pip" install -q --disable-pip-version-check pkgconf
PKG_CONFIG_PATH=$(bare/bin/python -m perseus.config --pkg-config)
export PKG_CONFIG_PATH
cc -std=c99 sum.c $(bare/bin/pkgconf --cflags --libs perseus) -o by-pkg-config
for program in by-config by-config++ by-pkg-config; do
  summed "$work/$program"
done

# The package can be moved: its CMake files must not contain the path where they were made.
cp -r "$(bare/bin/python -m perseus.config --include)/.." moved
mkdir project
mv sum.c sum.cc project
cat > project/CMakeLists.txt << 'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(uses_perseus C CXX)
find_package(perseus 0.1 REQUIRED)
set(CMAKE_CXX_STANDARD 17)
add_executable(sum sum.c)
add_executable(sum++ sum.cc)
target_link_libraries(sum PRIVATE perseus::perseus)
target_link_libraries(sum++ PRIVATE perseus::perseus)
CMAKE
cmake=$(dirname "$python")/cmake
"$cmake" -S project -B built -DCMAKE_PREFIX_PATH="$work/moved" > /dev/null
"$cmake" --build built > /dev/null
summed "$work/built/sum"
summed "$work/built/sum++"
# Looked up by the soname, which names the ABI.
ldd built/sum | grep -q "$work/moved/lib/libperseus.so.0.1"

if ldd moved/lib/libperseus.so.* | grep -Ei 'torch|tensorflow|mxnet|libpython|mpi|cuda|nccl'; then
  echo "libperseus is linked to a framework, Python, MPI or CUDA" >&2
  exit 1
fi
echo "the wheel works: Python, with PyTorch, TensorFlow, MXNet, with none, C, C++, pkg-config, CMake"
