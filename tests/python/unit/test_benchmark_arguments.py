"""Tests that benchmarks refuse arguments that make no sense before they start anything."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("contest.arguments")


@pytest.mark.parametrize(
    ("text", "count"),
    [("4", 4), ("4B", 4), ("64K", 65536), ("64KiB", 65536), ("64KB", 65536), ("1G", 1 << 30)],
)
def test_a_size_is_read_with_its_unit(arguments: ModuleType, text: str, count: int) -> None:
    assert arguments.float32_bytes(text) == count


@pytest.mark.parametrize("text", ["3", "0", "-4", "4.5", "64X", "K", ""])
def test_a_size_of_no_whole_float32_is_refused(arguments: ModuleType, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        arguments.float32_bytes(text)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "much", ""])
def test_what_is_not_more_than_nothing_is_refused(arguments: ModuleType, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        arguments.positive(text)


def test_a_setting_has_a_known_name_and_a_number_of_its_type(arguments: ModuleType) -> None:
    checked = arguments.setting({"ranks": arguments.at_least(1)})
    assert checked("ranks=2") == "ranks=2"
    for text in ("foo=3", "ranks", "ranks=", "ranks=0", "ranks=2.5"):
        with pytest.raises(argparse.ArgumentTypeError):
            checked(text)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("versus /nowhere latency", "there is no build of Perseus in /nowhere"),
        ("latency --ranks 0", "argument --ranks: at least 2"),
        ("latency --ranks two", "argument --ranks: 'two' is not a whole number"),
        ("latency --sizes 3", "argument --sizes: 3 is not a multiple of the 4 bytes"),
        ("latency --contenders perseus perseus", "argument --contenders: perseus is given twice"),
        ("bandwidth --sizes 64X", "argument --sizes: '64X' is not a size such as 4, 64K or 256M"),
        ("bandwidth --sizes 8", "argument --sizes: alltoall needs 4 bytes for each rank"),
        (
            "bandwidth --contenders 'copy limit' 'memory limit' --works broadcast",
            "argument --contenders: the limits are known of allreduce only",
        ),
        ("hosts --shapes 1x2", "argument --shapes: at least 2"),
        ("hosts --shapes 2x1 2x1", "argument --shapes: 2x1 is given twice"),
        ("c10d --hosts 1", "argument --hosts: at least 2, or 0 for none"),
        ("c10d --works reduce", "argument --works: invalid choice: 'reduce'"),
        ("torch_pipelining --runs 0", "argument --runs: at least 1"),
        ("torch_pipelining --limit 0", "argument --limit: more than 0"),
        ("torch_pipelining --places 3", "argument --places: invalid choice: '3'"),
        ("torch_pipelining --schedules GPipe GPipe", "argument --schedules: GPipe is given twice"),
        ("negotiation --ranks 1", "argument --ranks: at least 2"),
        ("negotiation --simulated 1", "argument --simulated: at least 2"),
        ("negotiation --model foo=3", "argument --model: 'foo' is none of ranks_per_host, "),
        ("step --slowdown 0", "argument --slowdown: more than 0"),
        ("step --framework tensorflow --only steps", "argument --only: with tensorflow grad"),
        ("training --batch 2000", "argument --batch: 4 ranks share 5000 images"),
        (
            "training --framework tensorflow --contenders perseus",
            "argument --contenders: perseus is not of tensorflow",
        ),
        ("tuning --works --works-over-hosts", "--works and --works-over-hosts leave nothing to"),
        ("negotiation --ranks --step-ranks --simulated", "--ranks, --step-ranks and --simulated"),
        ("tuning --hosts 0", "argument --hosts: at least 2"),
        ("idle --seconds 0", "argument --seconds: more than 0"),
        ("elastic_commit --rounds 0", "argument --rounds: at least 1"),
        ("elastic_commit --models ctr ctr", "argument --models: ctr is given twice"),
        ("elastic_commit_tensorflow --trained 0", "argument --trained: more than 0"),
        ("elastic_commit_tensorflow --trained 1.5", "argument --trained: at most 1"),
        ("hook --rounds 0", "argument --rounds: at least 1"),
        ("dbn --layers 1", "argument --layers: at least 2"),
        ("dbn --data digits digits", "argument --data: digits is given twice"),
        ("forward_overlap --layers 0", "argument --layers: at least 1"),
        ("pipeline --microbatches 6", "argument --microbatches: must be a multiple of --ranks"),
        ("pipeline --link-microbatches 3", "argument --link-microbatches: at least as many as"),
        ("pipeline --only links --timeline x", "argument --timeline: bubbles are recorded, and"),
    ],
)
def test_a_program_refuses_what_makes_no_sense(command: str, expected: str) -> None:
    program, *words = shlex.split(command)
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{program}.py"), *words],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert f"error: {expected}" in done.stderr


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("hosts --parts links latency", "steps are drawn, and --parts leaves them out"),
        ("negotiation --simulated", "simulated ranks are drawn, and --simulated has none"),
    ],
)
def test_a_plot_of_what_is_left_out_is_refused(
    arguments: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    expected: str,
) -> None:
    program, *words = command.split()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())  # matplotlib
    monkeypatch.setattr(sys, "argv", [program, *words, "--plot", "figures.svg"])
    with pytest.raises(SystemExit):
        importlib.import_module(program).main()
    assert f"error: argument --plot: {expected}" in capsys.readouterr().err


def test_a_sweep_over_hosts_alone_takes_hosts() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "tuning.py"), "--works"],
        env={**os.environ, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr == "no hosts: the program ip (package iproute2) is missing\n"
