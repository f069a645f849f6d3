"""A launcher tells agents to end with which only the connection was lost, until they have heard."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from perseus.elastic import outliving
from perseus.elastic.job_record import JobRecord
from perseus.elastic.options import ElasticOptions
from perseus.elastic.outliving import Outliving
from perseus.run.remote_shell import RemoteShell
from perseus.run.start import Request


class Call:
    """Stands in for a process that calls an agent. It has failed once a test says so."""

    made: ClassVar[list[Call]] = []

    def __init__(self, record: JobRecord, agent: Any, *_: object) -> None:
        self.host = agent.host
        self.fails = False
        Call.made.append(self)

    def has_failed(self) -> bool:
        return self.fails

    def fault(self, deadline: float) -> str:
        return "no route" if self.fails else ""

    def close(self) -> None: ...


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Outliving:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(outliving, "EndCall", Call)
    monkeypatch.setattr(Call, "made", [])
    request = Request(command=["true"], size=1, outlives=True)
    record = JobRecord.make("ab" * 32, request, ElasticOptions(least=1))
    return Outliving(record, RemoteShell(), 30, lambda _: None)


def test_an_agent_out_of_reach_is_told_again_before_its_host_is_used_and_at_the_end(
    job: Outliving, tmp_path: Path
) -> None:
    job.new_agent("10.86.0.9", [0])
    job.new_agent("localhost", [1])
    for host, rank in (("10.86.0.9", 0), ("localhost", 1)):
        job.lost(SimpleNamespace(host=host, ranks=[rank]))  # type: ignore[arg-type]
    assert [call.host for call in Call.made] == ["10.86.0.9"]  # one here ends with its connection
    job.new_agent("10.86.0.9", [2])
    assert len(Call.made) == 1  # the first call is under way, or has come through
    Call.made[0].fails = True
    job.new_agent("10.86.0.8", [3])
    assert len(Call.made) == 1
    job.new_agent("10.86.0.9", [4])
    assert len(Call.made) == 2
    Call.made[1].fails = True
    job.close()
    assert len(Call.made) == 3
    assert not list((tmp_path / "perseus").iterdir())
