"""Records the life of an elastic job, from which docs/elastic.svg is drawn.

python benchmarks/elastic_life.py docs/timelines/elastic.json

The hosts are two names of this machine. Three ranks train; the second host gets another slot; a
rank is killed with SIGKILL, and its slot is used again; the second host is drained.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from contest import ending
from contest.elastic_jobs import Job, Step, perseus_job, running

NAMES = {"localhost": "first host", "127.0.0.1": "second host"}
CALM_SECONDS = 2.5
TICKS = os.sysconf("SC_CLK_TCK")


class Life:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._places: dict[int, tuple[str, int]] = {}
        self._began: dict[int, float] = {}
        self._steps: dict[int, list[Step]] = {}
        self.ends: dict[int, str] = {}

    def look(self) -> None:
        """Notes the processes that live, and their steps."""
        for pid, steps in self._job.steps().items():
            self._steps[pid] = steps
            if pid not in self._places:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                self._began[pid] = int(fields[19]) / TICKS
                words = Path(f"/proc/{pid}/environ").read_text().split("\0")
                environment = dict(word.partition("=")[::2] for word in words)
                host = environment["PERSEUS_HOSTNAME"]
                self._places[pid] = (host, int(environment["PERSEUS_LOCAL_RANK"]))

    def wait_for(self, ranks: int, since: float) -> None:
        self._job.wait_for(ranks, since, ranks)
        time.sleep(CALM_SECONDS)
        self.look()

    def of_place(self, host: str, slot: int) -> int:
        return next(
            pid
            for pid, place in self._places.items()
            if place == (host, slot) and pid not in self.ends
        )

    def on(self, host: str) -> list[int]:
        return [pid for pid, (name, _) in self._places.items() if name == host]

    def record(self) -> dict[str, Any]:
        start = min(self._began.values())
        processes = []
        in_order = sorted(
            self._places, key=lambda pid: (NAMES[self._places[pid][0]], self._began[pid])
        )
        for pid in in_order:
            host, slot = self._places[pid]
            steps = self._steps[pid]
            worlds = [
                {"size": size, "first": group[0].moment - start, "last": group[-1].moment - start}
                for size, of_size in itertools.groupby(steps, key=lambda step: step.size)
                if (group := list(of_size))
            ]
            processes.append(
                {
                    "host": NAMES[host],
                    "slot": slot,
                    "began": self._began[pid] - start,
                    "worlds": worlds,
                    "end": self.ends.get(pid, "trains on"),
                }
            )
        usual = [
            b.moment - a.moment
            for steps in self._steps.values()
            for a, b in itertools.pairwise(steps)
        ]
        return {"step_seconds": sorted(usual)[len(usual) // 2], "processes": processes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path)
    file = parser.parse_args().file
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hosts = folder / "hosts"
        hosts.write_text("localhost:2\n127.0.0.1:1\n")
        flags = ["--min-np", "1", "--blacklist-by", "slot", "--blacklist-cooldown-range", "1", "1"]
        flags += ["--host-discovery-script", f"cat {hosts}"]
        with running(perseus_job(folder / "job", 3, flags)) as job:
            life = Life(job)
            life.wait_for(3, 0)
            new = folder / "new"
            new.write_text("localhost:2\n127.0.0.1:2\n")
            new.rename(hosts)
            life.wait_for(4, 0)
            killed = life.of_place("localhost", 1)
            life.ends[killed] = "killed"
            moment = job.kill(killed)
            life.wait_for(3, moment)
            life.wait_for(4, moment)
            drain = [sys.executable, "-m", "perseus.run", "--drain", "127.0.0.1"]
            drain += ["--job", str(job.process.pid)]
            moment = time.monotonic()
            subprocess.run(drain, check=True, stdout=subprocess.DEVNULL)
            life.ends |= dict.fromkeys(life.on("127.0.0.1"), "drained")
            life.wait_for(2, moment)
            record = life.record()
    file.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    with ending.by_exception():
        main()
