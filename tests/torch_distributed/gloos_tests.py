"""PyTorch's own tests of torch.distributed, with another backend in Gloo's place.

    WORLD_SIZE=4 IN_GLOOS_PLACE=perseus python -c "import gloos_tests; gloos_tests.main('outcomes')"

They are those of torch.testing._internal.distributed.distributed_test, of the installed PyTorch and
unmodified. That module chooses tests when it is imported, by the variable BACKEND, and is told only
then which backend to use. So tests that PyTorch has for Gloo alone run, too.

main writes a line of JSON for each test at once: its name, what became of it, why, and its seconds.
Ranks are forked by a server that has imported PyTorch already; importing it anew would take each of
them seconds.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import time
import unittest
from pathlib import Path
from typing import Any

os.environ["BACKEND"] = "gloo"

from torch.testing._internal import common_distributed
from torch.testing._internal.distributed import distributed_test

import perseus.torch  # noqa: F401  registers the backend


class InGloosPlace(str):
    """The name of a backend that some tests take for Gloo, to see that it has no GPU's tensors."""

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


distributed_test.BACKEND = InGloosPlace(os.environ["IN_GLOOS_PLACE"])
#: A test that takes longer hangs: the longest on Gloo takes 20 s.
common_distributed.TIMEOUT_DEFAULT = 60


class GloosTests(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def _spawn_processes(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])

        def process(kwargs: dict[str, Any], **options: Any) -> Any:
            # The server's own variables are those of its start.
            return context.Process(kwargs={"variables": dict(os.environ), **kwargs}, **options)

        self._start_processes(process)

    @classmethod
    def _run(
        cls, rank: int, test: str, file: str, pipe: Any, variables: dict[str, str], **options: Any
    ) -> None:
        os.environ.update(variables)
        super()._run(rank, test, file, pipe, **options)


class Outcomes(unittest.TestResult):
    """Writes each test's outcome into a file at once."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self._began = 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._began = time.monotonic()

    def _write(self, test: unittest.TestCase, outcome: str, why: str) -> None:
        seconds = round(time.monotonic() - self._began, 1)
        with self._file.open("a") as file:
            file.write(json.dumps([test.id().rpartition(".")[2], outcome, why, seconds]) + "\n")

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._write(test, "passed", "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._write(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, error: Any) -> None:
        super().addFailure(test, error)
        self._write(test, "failed", self.failures[-1][1])

    def addError(self, test: Any, error: Any) -> None:
        super().addError(test, error)
        self._write(test, "failed", self.errors[-1][1])


def main(file: str, *tests: str) -> None:
    logging.basicConfig(level=logging.INFO)
    loader = unittest.defaultTestLoader
    names = tests or loader.getTestCaseNames(GloosTests)
    unittest.TestSuite(GloosTests(name) for name in names).run(Outcomes(Path(file)))
