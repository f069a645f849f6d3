"""Tests that perseusrun knows every flag of horovodrun, and obeys it or says why not.

horovodrun_flags.json has the flags of horovodrun 0.28.1, with the number of values they take.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perseus.elastic.options import ElasticOptions
from perseus.run import cli
from perseus.run.hosts import Host
from perseus.run.start import Request

FLAGS: dict[str, int] = json.loads((Path(__file__).parent / "horovodrun_flags.json").read_text())


@dataclasses.dataclass
class Effect:
    """Returns what a flag with these values changes in the requested job, and its remark."""

    values: tuple[str, ...] = ()
    setting: dict[str, str] = dataclasses.field(default_factory=dict)
    request: dict[str, Any] = dataclasses.field(default_factory=dict)
    elastic: dict[str, Any] = dataclasses.field(default_factory=dict)
    note: str = ""
    refusal: str = ""
    printed: str = ""


def sets(name: str, value: str, *values: str, **more: str) -> Effect:
    return Effect(values, setting={name: value, **more})


def asks(name: str, value: Any, *values: str, note: str = "") -> Effect:
    return Effect(values, request={name: value}, note=note)


def notes(why: str, *values: str) -> Effect:
    return Effect(values, note=f"changes nothing: {why}")


def refuses(why: str, *values: str) -> Effect:
    return Effect(values, refusal=why)


def elastic(name: str, value: Any, *values: str) -> Effect:
    return Effect(values, elastic={name: value})


def only_elastic(*values: str) -> Effect:
    return Effect(values, note="changes nothing without --host-discovery-script")


EFFECTS = {
    "-v": Effect(printed="perseus 0."),
    "--version": Effect(printed="perseus 0."),
    "-np": asks("size", 3, "3"),
    "--num-proc": asks("size", 3, "3"),
    "-cb": Effect(printed="MPI"),
    "--check-build": Effect(printed="MPI"),
    "--disable-cache": notes("nothing that is found out about hosts is kept"),
    "--start-timeout": asks("start_timeout", 60, "60"),
    "--network-interfaces": sets("PERSEUS_INTERFACES", "eth0,eth1", "eth0,eth1"),
    "--network-interface": sets("PERSEUS_INTERFACES", "eth0", "eth0"),
    "--output-filename": asks("output_folder", "logs", "logs"),
    "--verbose": asks("verbose", True),
    "--config-file": sets("PERSEUS_LOG_LEVEL", "INFO", "CONFIG"),
    "-p": asks("ssh_port", 2222, "2222"),
    "--ssh-port": asks("ssh_port", 2222, "2222"),
    "-i": asks("ssh_identity_file", "key", "key"),
    "--ssh-identity-file": asks("ssh_identity_file", "key", "key"),
    "--fusion-threshold-mb": sets("PERSEUS_ALLREDUCE_FUSION", "8", "8"),
    "--cycle-time-ms": notes("agreement is driven by events", "1.5"),
    "--cache-capacity": sets("PERSEUS_CACHE_CAPACITY", "", "0", HOROVOD_CACHE_CAPACITY="0"),
    "--hierarchical-allreduce": sets("PERSEUS_ALLREDUCE_MODE", "hierarchical"),
    "--no-hierarchical-allreduce": sets("PERSEUS_ALLREDUCE_MODE", "flat"),
    "--hierarchical-allgather": notes("allgather chooses its algorithm by itself"),
    "--no-hierarchical-allgather": notes("allgather chooses its algorithm by itself"),
    "--torus-allreduce": sets("PERSEUS_ALLREDUCE_MODE", "hierarchical"),
    "--no-torus-allreduce": notes("there is no torus allreduce to turn off"),
    "--autotune": sets("PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING", "0"),
    "--no-autotune": sets("PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING", "1"),
    "--autotune-log-file": sets("PERSEUS_TUNING_LOG", "log", "log"),
    "--autotune-warmup-samples": sets(
        "PERSEUS_TUNING_WARM_UP", "", "3", HOROVOD_AUTOTUNE_WARMUP_SAMPLES="3"
    ),
    "--autotune-steps-per-sample": sets(
        "PERSEUS_TUNING_STEPS", "", "10", HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE="10"
    ),
    "--autotune-bayes-opt-max-samples": sets(
        "PERSEUS_TUNING_TRIALS", "", "20", HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES="20"
    ),
    "--autotune-gaussian-process-noise": notes("the tuner compares times as they are", "0.8"),
    "--min-np": elastic("least", 1, "1"),
    "--min-num-proc": elastic("least", 1, "1"),
    "--max-np": elastic("most", 4, "4"),
    "--max-num-proc": elastic("most", 4, "4"),
    "--slots-per-host": only_elastic("2"),
    "--elastic-timeout": only_elastic("600"),
    "--reset-limit": only_elastic("3"),
    "--blacklist-cooldown-range": only_elastic("10", "100"),
    "--timeline-filename": sets("PERSEUS_TIMELINE", "t.json", "t.json"),
    "--timeline-mark-cycles": sets("PERSEUS_TIMELINE_MARK_CYCLES", "1"),
    "--no-timeline-mark-cycles": sets("PERSEUS_TIMELINE_MARK_CYCLES", "0"),
    "--no-stall-check": sets("PERSEUS_STALL_CHECK_DISABLE", "1"),
    "--stall-check": sets("PERSEUS_STALL_CHECK_DISABLE", "0"),
    "--stall-check-warning-time-seconds": sets(
        "PERSEUS_STALL_CHECK_TIME_SECONDS", "", "9", HOROVOD_STALL_CHECK_TIME_SECONDS="9"
    ),
    "--stall-check-shutdown-time-seconds": sets("PERSEUS_STALL_SHUTDOWN_TIME_SECONDS", "99", "99"),
    "--mpi-threads-disable": notes("only the engine's one thread calls MPI"),
    "--no-mpi-threads-disable": notes("only the engine's one thread calls MPI"),
    "--mpi-args": asks("mpi_args", "-q -x A", "-q -x A", note="changes nothing: it is for mpirun"),
    "--tcp": asks("tcp", True, note="without --mpi, hosts reach each other by TCP"),
    "--binding-args": asks("binding_args", "-b c", "-b c", note="it is for mpirun"),
    "--num-nccl-streams": sets("PERSEUS_ALLREDUCE_STREAMS", "2", "2"),
    "--thread-affinity": sets("PERSEUS_THREAD_AFFINITY", "1", "1"),
    "--gloo-timeout-seconds": sets(
        "PERSEUS_START_TIMEOUT", "", "9", HOROVOD_GLOO_TIMEOUT_SECONDS="9"
    ),
    "--log-level": sets("PERSEUS_LOG_LEVEL", "DEBUG", "DEBUG"),
    "--log-with-timestamp": sets("PERSEUS_LOG_HIDE_TIME", "0"),
    "--log-without-timestamp": sets("PERSEUS_LOG_HIDE_TIME", "1"),
    "-prefix-timestamp": asks("timestamps", True),
    "--prefix-output-with-timestamp": asks("timestamps", True),
    "--log-hide-timestamp": sets("PERSEUS_LOG_HIDE_TIME", "1"),
    "--no-log-hide-timestamp": sets("PERSEUS_LOG_HIDE_TIME", "0"),
    "-H": asks("hosts", [Host("a", 2), Host("b", 1)], "a:2,b:1"),
    "--hosts": asks("hosts", [Host("a", 2), Host("b", 1)], "a:2,b:1"),
    "-hostfile": asks("hosts", [Host("c", 4)], "HOSTFILE"),
    "--hostfile": asks("hosts", [Host("c", 4)], "HOSTFILE"),
    "--host-discovery-script": elastic("script", "SCRIPT", "SCRIPT"),
    "--gloo": Effect(),  # what is done anyway
    "--mpi": asks("mpi", True),
    "--jsrun": refuses("ranks are not started with jsrun"),
}


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any] | None]:
    """Returns what perseusrun would start with these arguments, if anything."""

    def ask(*arguments: str) -> dict[str, Any] | None:
        requests: list[dict[str, Any]] = []

        def start(request: Request, elastic: ElasticOptions | None) -> tuple[None, int]:
            asked = None if elastic is None else dataclasses.asdict(elastic)
            requests.append({**dataclasses.asdict(request), "elastic": asked})
            return None, 0

        monkeypatch.setattr(cli, "_start", start)
        assert cli.main([*arguments, "train"]) == 0
        return requests[0] if requests else None

    return ask


def test_every_flag_of_horovodrun_is_listed() -> None:
    assert EFFECTS.keys() == FLAGS.keys()
    assert {flag: len(effect.values) for flag, effect in EFFECTS.items()} == FLAGS


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_does_its_work_or_says_why_not(
    flag: str,
    requested: Callable[..., dict[str, Any] | None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    effect = EFFECTS[flag]
    files = {"HOSTFILE": "c slots=4\n", "CONFIG": "logging:\n  level: INFO\n", "SCRIPT": ""}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    values = [str(tmp_path / value) if value in files else value for value in effect.values]
    if effect.values and effect.values[0].startswith("-"):
        arguments = [f"{flag}={values[0]}"]  # as horovodrun requires, too
    else:
        arguments = [flag, *values]
    if effect.refusal:
        with pytest.raises(SystemExit) as exit:
            requested("-np", "2", *arguments)
        assert exit.value.code == 2
        *_, line = capsys.readouterr().err.splitlines()
        assert f"{flag}: {effect.refusal}" in line
        return
    before = requested("-np", "2")
    assert before
    capsys.readouterr()
    asked = requested("-np", "2", *arguments)
    said = capsys.readouterr()
    if effect.printed:
        assert asked is None
        assert effect.printed in said.out
        return
    hosts = [dataclasses.asdict(host) for host in effect.request.get("hosts", [])]
    expected = {**before, "settings": effect.setting, **effect.request}
    if effect.elastic:
        by = "slot" if "least" in effect.elastic else "host"
        plain = dataclasses.asdict(ElasticOptions(least=2, blacklist_by=by))
        in_place = {
            name: str(tmp_path / v) if v in files else v for name, v in effect.elastic.items()
        }
        expected["elastic"] = plain | in_place
    assert asked == (expected | {"hosts": hosts} if hosts else expected)
    if effect.note:
        (line,) = said.err.splitlines()
        assert line.startswith(f"perseusrun: {flag} ")
        assert effect.note in line
    else:
        assert said.err == ""


def test_the_start_time_out_wins_over_gloo_s(
    requested: Callable[..., dict[str, Any] | None],
) -> None:
    for arguments in (
        ("--start-timeout", "60", "--gloo-timeout-seconds", "5"),
        ("--gloo-timeout-seconds", "5", "--start-timeout", "60"),
    ):
        asked = requested("-np", "2", *arguments)
        assert asked and asked["start_timeout"] == 60
