from __future__ import annotations

import os
from pathlib import Path

import pytest

from perseus.run import cli
from perseus.run.mpi import MpiJob, Mpirun, find_mpirun, identify, mpirun_command

OPEN_MPI = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://example.org\n"
MPICH = "HYDRA build details:\n    Version:                                 5.0.2\n"


def job(**options: object) -> MpiJob:
    values = {"command": ["python", "t.py"], "size": 4, "hosts": [], "exported": {}, **options}
    return MpiJob(**values)  # type: ignore[arg-type]


def test_the_two_families_are_told_apart() -> None:
    assert identify("/m", OPEN_MPI) == Mpirun("/m", "Open MPI", 5)
    assert identify("/m", MPICH) == Mpirun("/m", "MPICH", 5)


def test_an_unknown_mpirun_is_quoted() -> None:
    with pytest.raises(ValueError, match=r"/m is neither .* it says 'mpirun \(Foo\) 1'"):
        identify("/m", "mpirun (Foo) 1\nmore")


def test_no_mpirun_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="there is no mpirun on the path"):
        find_mpirun()


def test_open_mpi_command() -> None:
    command = mpirun_command(
        Mpirun("mpirun", "Open MPI", 4),
        job(hosts=[("a", 2), ("b", 2)], exported={"B": "secret", "A": "1"}, ssh_port=2222),
    )
    assert " ".join(command) == (
        "mpirun -np 4 -H a:2,b:2 --bind-to none --map-by slot --tag-output "
        "--mca plm_rsh_args -p 2222 -x A -x B python t.py"
    )


def test_mpich_command() -> None:
    command = mpirun_command(
        Mpirun("mpirun", "MPICH", 5),
        job(hosts=[("a", 2), ("b", 2)], exported={"B": "2", "A": "1"}, more=["-rmk", "user"]),
    )
    assert " ".join(command) == (
        "mpirun -n 4 -hosts a:2,b:2 -bind-to none -prepend-rank -genvlist A,B -rmk user python t.py"
    )


def test_binding_arguments_replace_ours() -> None:
    command = mpirun_command(Mpirun("mpirun", "Open MPI", 5), job(binding=["--bind-to", "core"]))
    assert "none" not in command
    assert "core" in command


def test_perseusrun_becomes_mpirun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!/bin/sh\ncat <<'E'\n{OPEN_MPI}E\n")
    mpirun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    became: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(
        os, "execve", lambda _, line, environment: became.append((line, environment))
    )
    cli.main(["-np", "2", "--mpi", "--log-level", "info", "--mpi-args=--mca x y", "python", "t.py"])
    ((line, environment),) = became
    assert line[0] == str(mpirun)
    assert line[-5:] == ["--mca", "x", "y", "python", "t.py"]
    assert line[line.index("-x") + 1] == "PERSEUS_LOG_LEVEL"
    assert environment["PERSEUS_LOG_LEVEL"] == "info"
