"""cpp_tests.py [address|thread]: builds and runs the GoogleTest programs, perhaps sanitized."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import cpp_build
import toolchain
from debian import ROOT, skipped

# A finding must end the program: a test that goes on after one may pass.
SANITIZER_OPTIONS = {
    # Of clang++ 14 the search for leaks trips over thread-local memory of libraries.
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=1:intercept_tls_get_addr=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


def run(sanitizer: str) -> int:
    if not toolchain.load().googletest:
        why = "GoogleTest could not be fetched; on Debian or Ubuntu: apt-get install libgtest-dev"
        return skipped("C++ tests", why)
    cpp_build.build(sanitizer)
    ctest = [str(Path(sys.executable).parent / "ctest"), "--output-on-failure", "--progress"]
    ctest += ["--test-dir", str(cpp_build.folder(sanitizer))]
    ctest += ["-j", str(os.cpu_count()), "--timeout", "120"]
    # ThreadSanitizer of older compilers does not know the randomised layout of newer kernels.
    if sanitizer == "thread" and shutil.which("setarch"):
        ctest = ["setarch", platform.machine(), "-R", *ctest]
    return subprocess.run(ctest, cwd=ROOT, env={**os.environ, **SANITIZER_OPTIONS}).returncode


if __name__ == "__main__":
    sys.exit(run(sys.argv[1] if len(sys.argv) > 1 else ""))
