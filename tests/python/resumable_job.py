"""An elastic job whose ranks outlive its launchers, and what each of these has said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from perseus.run import processes


class ResumableJob:
    """The job's folder holds `run`, where launchers keep records, and the program, train.py.

    That writes the process of each worker into `pid.WORKER`, in a line.

    Args:
      prefix: the words before the command of each launcher.
    """

    def __init__(
        self,
        folder: Path,
        program: str,
        environment: Mapping[str, str] = os.environ,
        prefix: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        (folder / "run").mkdir()
        (folder / "train.py").write_text(program)
        self.environment = {
            **environment,
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "PERSEUSRUN_IF_KILLED": "go-on",
        }
        self.launchers: list[subprocess.Popen[bytes]] = []
        self._command = [*prefix, sys.executable, "-m", "perseus.run"]

    def launch(self, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
        said = self.folder / f"said.{len(self.launchers)}"
        with said.open("wb") as file:
            launcher = subprocess.Popen(
                [*self._command, *arguments],
                env={**self.environment, **more},
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        self.launchers.append(launcher)
        return launcher

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def wait_for(self, condition: Callable[[], object], seconds: float = 40) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.said[-3000:]
            time.sleep(0.02)

    @property
    def said(self) -> str:
        """Returns the words of the last launcher."""
        return (self.folder / f"said.{len(self.launchers) - 1}").read_text()

    def pid(self, worker: int) -> int:
        return int((self.folder / f"pid.{worker}").read_text())

    def processes(self) -> list[int]:
        found = [path.read_text() for path in self.folder.glob("pid.*")]
        return [int(text) for text in found if text.endswith("\n")]

    def have_ended(self) -> bool:
        return not any(processes.began(process) is not None for process in self.processes())

    def close(self) -> None:
        for launcher in self.launchers:
            launcher.kill()
            launcher.wait()
        for number in {path.name.partition(".")[0] for path in self.folder.rglob("*.job")}:
            self.command("--end", number)
        for process in self.processes():
            processes.kill(process, signal.SIGKILL)
