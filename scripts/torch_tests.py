"""torch_tests.py [--ranks N]... [TEST...]: runs PyTorch's tests of torch.distributed on Perseus.

PyTorch's wheel carries them. They run over Gloo first, and then over Perseus in Gloo's place, but
for those that Gloo leaves out; see tests/torch_distributed/gloos_tests.py. explained.json, beside
it, gives the reason for each test that passes on Gloo and cannot pass on Perseus; any other such
failure is an error, and so is an explained one that passes.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from debian import ROOT

FOLDER = ROOT / "build/torch-tests"
OURS = ROOT / "tests/torch_distributed"
OUTCOMES = ("passed", "skipped", "failed")
#: A rank that has failed leaves the others waiting for it.
SETTINGS = {"PERSEUS_STALL_CHECK_TIME_SECONDS": "20"}


@dataclass
class Outcomes:
    """What became of the tests over one backend at one number of ranks."""

    backend: str
    size: int
    tests: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)

    def count(self, outcome: str) -> int:
        return sum(1 for each in self.tests.values() if each == outcome)


def run(backend: str, size: int, tests: list[str]) -> Outcomes:
    """Runs these tests, or all of them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    lines = FOLDER / f"{backend}-{size}.jsonl"
    lines.unlink(missing_ok=True)
    environment = {
        **os.environ,
        **SETTINGS,
        "PYTHONPATH": os.pathsep.join([str(OURS), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "IN_GLOOS_PLACE": backend,
        "WORLD_SIZE": str(size),
    }
    code = "import sys, gloos_tests; gloos_tests.main(*sys.argv[1:])"
    log = lines.with_suffix(".log")
    with log.open("w") as output:
        subprocess.run(
            [sys.executable, "-c", code, str(lines), *tests],
            cwd=FOLDER,
            env=environment,
            stdout=output,
            stderr=output,
        )
    if not lines.exists():
        sys.exit(f"no test has run; {log} says why")
    return read(lines, backend, size)


def read(lines: Path, backend: str, size: int) -> Outcomes:
    found = Outcomes(backend, size)
    for line in lines.read_text().splitlines() if lines.exists() else []:
        test, outcome, why, _ = json.loads(line)
        found.tests[test] = outcome
        found.why[test] = why
    return found


def explanation(explained: dict[str, str], test: str, size: int) -> str | None:
    """Returns the reason for a test that cannot pass; a key may end in @N for N ranks alone."""
    return explained.get(f"{test}@{size}", explained.get(test))


def surprising(gloo: Outcomes, ours: Outcomes, explained: dict[str, str]) -> list[str]:
    """Returns lines on tests that do worse than on Gloo without a reason, or well despite one."""
    lines = []
    for test, on_gloo in gloo.tests.items():
        outcome = ours.tests.get(test, "not run")
        has_reason = explanation(explained, test, ours.size) is not None
        if outcome == "passed" and has_reason:
            lines.append(f"{test} passes at {ours.size} ranks, and explained.json says why not")
        elif on_gloo == "passed" != outcome and not has_reason:
            lines.append(
                f"{test} passes on Gloo and is {outcome} at {ours.size} ranks, and explained.json "
                "does not say why"
            )
    return lines


def row(found: Outcomes) -> str:
    counts = [found.count(outcome) for outcome in OUTCOMES]
    return f"| {' | '.join(map(str, [found.backend, found.size, *counts]))} |"


def report(gloo: Outcomes, ours: Outcomes, explained: dict[str, str]) -> list[str]:
    """Returns lines: why tests were skipped on Gloo, and what has failed on either."""
    skipped = collections.Counter(
        gloo.why[test] for test, outcome in gloo.tests.items() if outcome == "skipped"
    )
    lines = [f"    {number} left out: {why}" for why, number in skipped.most_common()]
    for found in (gloo, ours):
        for test, outcome in found.tests.items():
            if outcome == "failed":
                why = explanation(explained, test, found.size) if found is ours else None
                last = found.why[test].strip().splitlines()[-1:]
                lines.append(f"    {test} fails on {found.backend}: {why or ' '.join(last)}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tests", nargs="*", metavar="TEST", help="such as test_all_reduce_sum")
    parser.add_argument(
        "--ranks", type=int, action="append", metavar="N", help="2 and 4 if not given"
    )
    args = parser.parse_args()
    explained = json.loads((OURS / "explained.json").read_text())
    done: list[Outcomes] = []
    surprises = []
    for size in args.ranks or [2, 4]:
        gloo = run("gloo", size, args.tests)
        on_both = [test for test, outcome in gloo.tests.items() if outcome != "skipped"]
        ours = run("perseus", size, on_both)
        print(f"{size} ranks:", *report(gloo, ours, explained), sep="\n", flush=True)
        surprises += surprising(gloo, ours, explained)
        done += [gloo, ours]
    print("\n| backend | ranks | pass | skipped | fail |\n|---|---|---|---|---|")
    print(*map(row, done), sep="\n")
    print(*surprises, sep="\n")
    sys.exit(bool(surprises))


if __name__ == "__main__":
    main()
