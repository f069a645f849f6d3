"""An elastic job of real processes, whose hosts are those that a file names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


class Job:
    def __init__(self, folder: Path, program: str) -> None:
        self.folder = folder
        self.program = program
        self.result = subprocess.CompletedProcess[str]([], 0)

    def run(
        self,
        *arguments: str,
        hosts: str,
        prints: str = "",
        steps: int = 60,
        timeout: float = 40,
        **more: str,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a job to its end; `prints` is what the script does before it prints the hosts."""
        (self.folder / "hosts").write_text(hosts.replace(",", "\n") + "\n")
        script = self.folder / "discover.sh"
        script.write_text(f"#!/bin/sh\n{prints}\ncat {self.folder}/hosts\n")
        script.chmod(0o755)
        program = self.folder / "train.py"
        program.write_text(self.program)
        environment = {
            **os.environ,
            "FOLDER": str(self.folder),
            "STEPS": str(steps),
            "EVENTS": "{}",
            **more,
        }
        command = [sys.executable, "-m", "perseus.run", "--host-discovery-script", str(script)]
        return subprocess.run(
            [*command, "--verbose", *arguments, sys.executable, str(program)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )


def finished(result: subprocess.CompletedProcess[str]) -> list[tuple[int, int, int]]:
    """Returns rank, size and entries of those that have come to the end, by rank."""
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [line.split("well ")[1] for line in result.stdout.splitlines() if "well " in line]
    return sorted(tuple(map(int, line.split())) for line in lines)
