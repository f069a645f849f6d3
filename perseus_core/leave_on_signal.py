"""Signals upon which a rank of an elastic job finishes its step and leaves the others.

The first SIGTERM is a request to leave, and the next one ends the process as usual. SIGTERM also
comes from the rank's agent when the whole job ends. The agent tells the rank first that it does,
over the connection to the driver, and then SIGTERM ends the process at once. A program with a
handler of its own asks by `drain`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

__all__ = ["LeaveOnSignal"]

# perseus.elastic.launcher sets it to the name of a signal, from --drain-signal.
_SIGNAL = "PERSEUS_ELASTIC_DRAIN_SIGNAL"


class LeaveOnSignal:
    """`handling` is for the main thread; any thread may call `job_ends` and `drain`.

    There is no lock, since a handler interrupts whatever its thread does.

    Args:
      ask: asks the driver to let this process go, without waiting; returns whether it could.
    """

    def __init__(self, ask: Callable[[], bool]) -> None:
        self._ask = ask
        self._process = os.getpid()
        self._handled: list[int] = []
        # Whoever asks sets the first and then reads the second, and job_ends does the reverse, so
        # that one of them sees both.
        self._may_have_taken_term = False
        self._job_ends = False
        os.register_at_fork(after_in_child=self._restore)

    @contextlib.contextmanager
    def handling(self) -> Iterator[None]:
        """Takes SIGTERM, and the signal of --drain-signal, for a request to leave.

        Signals that the program handles or ignores are left to it, and in other threads than the
        main one all are. Children get the default handler back.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for number in _signals():
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._handle)
                self._handled.append(number)
        try:
            yield
        finally:
            self._restore()

    def drain(self) -> bool:
        """Asks the driver to let this process go; returns False if it does not hear it.

        A handler of any signal may call it. It is not there for a forked child, or once the job
        ends.
        """
        if os.getpid() != self._process:
            return False
        self._may_have_taken_term = True  # for which a handler of the program's has called this
        return not self._job_ends and self._ask()

    def job_ends(self) -> None:
        """Has SIGTERM end this process from now on, also one that has come already.

        The program's own handler gets it once more, and `drain` returns False.
        """
        self._job_ends = True
        if self._may_have_taken_term:
            os.kill(os.getpid(), signal.SIGTERM)

    def _handle(self, number: int, _: object) -> None:
        if os.getpid() != self._process:  # a child that was not forked by Python
            _act_as_usual(number)
        elif number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)  # for the next one
            self._may_have_taken_term = True
            if self._job_ends or not self._ask():
                _act_as_usual(number)
        else:
            self._ask()

    def _restore(self) -> None:
        handled, self._handled = self._handled, []
        for number in handled:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL)


def _signals() -> set[int]:
    name = os.environ.get(_SIGNAL)
    return {signal.SIGTERM, signal.Signals[name]} if name else {signal.SIGTERM}


def _act_as_usual(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
