"""cpp_tests.py [address|thread]: builds and runs the GoogleTest programs, perhaps sanitized."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import toolchain
from debian import ROOT, skipped

# A finding must end the program: a test that goes on after one may pass.
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


def run(sanitizer: str) -> int:
    found = toolchain.load()
    if not found.googletest:
        why = "GoogleTest could not be fetched; on Debian or Ubuntu: apt-get install libgtest-dev"
        return skipped("C++ tests", why)
    bin_dir = Path(sys.executable).parent
    build = ROOT / "build" / (sanitizer or "dev")
    configure = [str(bin_dir / "cmake"), f"-S{ROOT}", f"-B{build}", "-GNinja", *found.cmake_args]
    configure += [f"-DCMAKE_MAKE_PROGRAM={bin_dir / 'ninja'}", "-DPERSEUS_BUILD_TESTS=ON"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}"]
    if sanitizer:
        # -O1 -g1 builds in half the time and keeps line numbers.
        configure += [f"-DSANITIZE={sanitizer}", "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1"]
    ctest = [str(bin_dir / "ctest"), "--test-dir", str(build), "--output-on-failure"]
    ctest += ["-j", str(os.cpu_count()), "--timeout", "120", "--progress"]
    # ThreadSanitizer of older compilers does not know the randomised layout of newer kernels.
    if sanitizer == "thread" and shutil.which("setarch"):
        ctest = ["setarch", platform.machine(), "-R", *ctest]
    environment = {**os.environ, **SANITIZER_OPTIONS}
    for command in (configure, [str(bin_dir / "cmake"), "--build", str(build)], ctest):
        status = subprocess.run(command, cwd=ROOT, env=environment).returncode
        if status != 0:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1] if len(sys.argv) > 1 else ""))
