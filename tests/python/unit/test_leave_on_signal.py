"""Signals that have a rank of an elastic job leave: which are taken, and when they act as usual."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from perseus_core.leave_on_signal import LeaveOnSignal


def in_child(act: Callable[[], Any]) -> int:
    """Runs this in a process whose signals act as usual; returns its status as Python has it."""
    process = os.fork()
    if process == 0:
        try:
            for number in (signal.SIGTERM, signal.SIGUSR1):  # whatever earlier tests have left
                signal.signal(number, signal.SIG_DFL)
            act()
            os._exit(0)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def asked(times: list[None], can_ask: bool = True) -> Callable[[], bool]:
    def ask() -> bool:
        times.append(None)
        return can_ask

    return ask


def sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_the_first_sigterm_asks_and_the_second_ends_the_process() -> None:
    def once() -> None:
        times: list[None] = []
        with LeaveOnSignal(asked(times)).handling():
            sigterm()
            assert len(times) == 1

    def twice() -> None:
        with LeaveOnSignal(asked([])).handling():
            sigterm()
            sigterm()

    assert in_child(once) == 0
    assert in_child(twice) == -signal.SIGTERM


@pytest.mark.parametrize("is_told_first", [True, False])
def test_sigterm_ends_the_process_when_its_job_ends(is_told_first: bool) -> None:
    def act() -> None:
        leave = LeaveOnSignal(asked([]))
        with leave.handling():
            for step in (leave.job_ends, sigterm) if is_told_first else (sigterm, leave.job_ends):
                step()

    assert in_child(act) == -signal.SIGTERM


def test_the_end_of_a_job_alone_does_not_end_a_process() -> None:
    def act() -> None:
        leave = LeaveOnSignal(asked([]))
        with leave.handling():
            leave.job_ends()

    assert in_child(act) == 0


def test_sigterm_ends_a_process_that_cannot_reach_its_driver() -> None:
    def act() -> None:
        with LeaveOnSignal(asked([], can_ask=False)).handling():
            sigterm()

    assert in_child(act) == -signal.SIGTERM


def test_the_default_handler_is_back_afterwards() -> None:
    def act() -> None:
        with LeaveOnSignal(asked([])).handling():
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        sigterm()

    assert in_child(act) == -signal.SIGTERM


def test_the_handler_of_a_program_and_what_it_ignores_are_left_alone() -> None:
    def act() -> None:
        times: list[None] = []
        leave = LeaveOnSignal(asked(times))
        handled = []
        for handler in (lambda *_: handled.append(1), signal.SIG_IGN):
            signal.signal(signal.SIGTERM, handler)
            with leave.handling():
                sigterm()
            assert signal.getsignal(signal.SIGTERM) is handler
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with leave.handling():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # in the middle of training
        sigterm()
        assert handled == [1]
        assert not times

    assert in_child(act) == 0


@pytest.mark.parametrize("is_told_first", [True, False])
def test_the_handler_of_a_program_learns_that_its_job_ends(is_told_first: bool) -> None:
    def act() -> None:
        times: list[None] = []
        leave = LeaveOnSignal(asked(times))
        heard = []
        signal.signal(signal.SIGTERM, lambda *_: heard.append(leave.drain()))
        with leave.handling():
            for step in (leave.job_ends, sigterm) if is_told_first else (sigterm, leave.job_ends):
                step()
        assert heard == ([False] if is_told_first else [True, False])
        assert len(times) == (0 if is_told_first else 1)

    assert in_child(act) == 0


def test_a_forked_child_asks_for_nobody() -> None:
    def act() -> None:
        times: list[None] = []
        leave = LeaveOnSignal(asked(times))
        process = os.fork()
        if process == 0:
            os._exit(2 * leave.drain() + len(times))
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0

    assert in_child(act) == 0


def test_no_signal_is_taken_in_other_threads_than_the_main_one() -> None:
    def act() -> None:
        handlers = []

        def train() -> None:
            with LeaveOnSignal(asked([])).handling():
                handlers.append(signal.getsignal(signal.SIGTERM))

        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        assert handlers == [signal.SIG_DFL]

    assert in_child(act) == 0


def test_a_signal_of_the_batch_system_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSEUS_ELASTIC_DRAIN_SIGNAL", "SIGUSR1")

    def act() -> None:
        times: list[None] = []
        with LeaveOnSignal(asked(times)).handling():
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGUSR1)
        assert len(times) == 3
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL

    assert in_child(act) == 0


def test_a_forked_child_has_the_default_handler() -> None:
    def act() -> None:
        times: list[None] = []
        with LeaveOnSignal(asked(times)).handling():
            process = os.fork()
            if process == 0:
                sigterm()
                os._exit(99)
            status = os.waitpid(process, 0)[1]
        assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
        assert not times

    assert in_child(act) == 0
