"""Jobs over hosts that are network namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

NETLAB = Path(__file__).parents[3] / "scripts/netlab.sh"


def netlab(*arguments: str) -> None:
    subprocess.run([str(NETLAB), *arguments], check=True)


@dataclass
class Hosts:
    """Host I has the address 10.86.0.(I+1). The launcher runs on host 0."""

    folder: Path  # for programs

    def start(
        self, places: str, *command: str, options: tuple[str, ...] = (), **environment: str
    ) -> subprocess.Popen[str]:
        """perseusrun on these places, such as "0:2,1:2": two ranks on host 0, two on host 1."""
        hosts = ",".join(f"10.86.0.{int(i) + 1}:{n}" for i, n in self._pairs(places))
        size = sum(int(slots) for _, slots in self._pairs(places))
        launcher = [sys.executable, "-m", "perseus.run", "-np", str(size), "-H", hosts, *options]
        return subprocess.Popen(
            [str(NETLAB), "at", "0", *launcher, *command],
            env={**os.environ, "PERSEUSRUN_RSH": f"{NETLAB} rsh", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self,
        places: str,
        *command: str,
        options: tuple[str, ...] = (),
        timeout: float = 60,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        with self.start(places, *command, options=options, **environment) as job:
            try:
                out, err = job.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                job.terminate()
                out, err = job.communicate(timeout=10)
                pytest.fail(f"the job did not end within {timeout} s\n{out}\n{err}")
        return subprocess.CompletedProcess(job.args, job.returncode, out, err)

    def run_script(
        self, places: str, script: str, **options: object
    ) -> subprocess.CompletedProcess[str]:
        program = self.folder / "program.py"
        program.write_text(script)
        return self.run(places, sys.executable, str(program), **options)  # type: ignore[arg-type]

    def ranks_without_launcher(
        self,
        places: Sequence[int],
        script: str,
        arguments_of: Callable[[int], Sequence[str]] = lambda rank: (),
        variables_of: Callable[[int], Mapping[str, str]] = lambda rank: {},
        timeout: float = 60,
    ) -> list[str]:
        """Runs a rank on each of these hosts, with arguments and variables of its own.

        Returns what each printed. All must end well, and none outlives the call.
        """
        program = self.folder / "program.py"
        program.write_text(script)
        python = [sys.executable, str(program)]
        ranks = [
            subprocess.Popen(
                [str(NETLAB), "at", str(host), *python, *arguments_of(rank)],
                env={**os.environ, **variables_of(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            for rank, host in enumerate(places)
        ]
        try:
            said = [rank.communicate(timeout=timeout)[0] for rank in ranks]
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    os.killpg(rank.pid, signal.SIGKILL)
                    rank.wait()
        assert [rank.returncode for rank in ranks] == [0] * len(ranks), said
        return said

    @staticmethod
    def _pairs(places: str) -> list[list[str]]:
        return [place.split(":") for place in places.split(",")]


def lines(text: str) -> list[str]:
    """Returns what the ranks printed, without their tags, sorted."""
    return sorted(line.partition(":")[2] for line in text.splitlines() if line.startswith("["))
