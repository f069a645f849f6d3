"""This process's end of the connection to the driver of an elastic job.

The driver, in the launcher, decides which processes form each world. init asks it for the next one;
the process hears from it when that is going to be another one than the present. In other jobs there
is no driver, and `link` returns None.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from perseus_core import _engine
from perseus_core.driver_messages import (
    Abandoned,
    Call,
    Change,
    Ending,
    Question,
    Refusal,
    World,
    parse,
)
from perseus_core.errors import AbortedError, HorovodInternalError, UnreachableError
from perseus_core.leave_on_signal import LeaveOnSignal

__all__ = [
    "AbandonedError",
    "Change",
    "DriverLink",
    "DriverLostError",
    "RemovedError",
    "World",
    "drain",
    "is_elastic",
    "joins_at_once",
    "link",
]

# They are named in perseus.run.agent_protocol, too.
_FD = "PERSEUS_DRIVER_FD"
_INODE = "PERSEUS_DRIVER_INODE"
_JOIN = "PERSEUS_ELASTIC_JOIN"

_LONGEST = 1 << 20  # bytes of a message
_LAUNCHER_ENDED = "the job's launcher has ended"
# So often a thread that waits looks for signals.
_SECONDS_BETWEEN_LOOKS = 0.5


class RemovedError(SystemExit):
    """The job has no place for this process any more: its host is gone, or the job has finished.

    If the program does not catch it, the process exits with code 0.
    """

    def __init__(self, why: str) -> None:
        super().__init__(0)
        self.why = why

    def __str__(self) -> str:
        return f"this process has no place in the job any more: {self.why}"


class AbandonedError(SystemExit):
    """The job's launcher has died, and nobody has taken the job over in time.

    If the program does not catch it, the process says so on stderr, and exits with code 1.
    """


class DriverLostError(AbortedError):
    """This process hears nothing from the driver any more, so it gets into no other world.

    To call init once more does not help. hvd.elastic.run raises it.
    """


Listener = Callable[[Change], object]


class DriverLink:
    """Any thread may call it, but only one at a time asks for a world."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._process = os.getpid()
        # The answer to the last question; a question that is not answered yet is not asked again.
        self._is_asking = False
        self._answer: World | RemovedError | None = None
        self._lost_because = ""  # why the driver is not heard any more, if it is not
        self._farewell: AbandonedError | None = None  # ends all waits, whenever it comes
        # Wakes up whoever waits for one of these.
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._changes: list[Change] = []  # that no listener has heard of, since there was none
        self.world: World | None = None  # the last one
        #: How many commits this process's state has seen. Who has seen most gives it to the others.
        self.commits = 0
        #: How many times this process has called a training function.
        self.call = 0
        #: The call that the job is in, or one before it.
        self.call_of_job = 0
        #: Whether it has left out a call, and has not begun another one since.
        self.has_skipped = False
        self._is_calling = False
        self._latest = 0  # the number of the last change that has been heard of
        #: Has signals ask the driver to let this process go at the end of its step.
        self.leave_on_signal = LeaveOnSignal(self._ask_to_leave)
        threading.Thread(target=self._read, name="perseus driver link", daemon=True).start()

    def next_world(self, failure: HorovodInternalError | None = None) -> World:
        """Returns the world that this process is to be in now; waits until all have come.

        Args:
          failure: why the meeting in the last one has failed, if it has.

        If a signal's handler raises, the next call waits for the same answer.

        Raises RemovedError if the job has no place for this process; AbandonedError if there has
        been no driver for too long; DriverLostError if the driver, and this process's agent, have
        ended, or if the driver has said what makes no sense.
        """
        if not self._is_asking:
            self._answer = None
            self._tell(
                says="ready",
                failure="" if failure is None else str(failure),
                is_out_of_reach=isinstance(failure, UnreachableError),
                call=self.call,
                commits=self.commits,
            )
            self._is_asking = True
        while (answer := self._answer or self._farewell) is None and not self._lost_because:
            # With a time-out, so that handlers of signals run meanwhile.
            with contextlib.suppress(queue.Empty):
                self._wakeups.get(timeout=_SECONDS_BETWEEN_LOOKS)
        if answer is None:
            raise DriverLostError(
                f"{self._lost_because}, so this rank cannot meet the others again"
            )
        self._is_asking = False
        if isinstance(answer, SystemExit):
            raise answer
        self.world = answer
        self._note_call(answer.call)
        return answer

    def has_joined(self) -> None:
        """Tells this process what the world is, for other libraries, and passes on a change that
        was heard of while there was no engine. Call it after init."""
        with self._lock:
            latest = self._latest
        if self.world:
            os.environ.update(self.world.environment)
        if self.world and latest > self.world.change:
            _announce(latest)

    def has_changed(self) -> bool:
        """Returns whether the next world is going to be another one.

        It is the same on all ranks at the same point of their programs, if all operations have
        completed: a change becomes known with an operation.
        """
        return self.world is not None and _engine.announced() > self.world.change

    def add_listener(self, listener: Listener) -> None:
        """Has this function called with each change, in a thread of the link's."""
        with self._lock:
            self._listeners.append(listener)
            missed, self._changes = self._changes, []
        for change in missed:
            listener(change)

    def remove_listener(self, listener: Listener) -> None:
        with self._lock:
            self._listeners.remove(listener)

    def begun(self) -> None:
        """Tells the driver that training has begun: exit code 0 is a failure until it has ended."""
        self._tell(says="begun", call=self.call)

    def finished(self) -> None:
        """Tells the driver that training is complete."""
        self._tell(says="finished", call=self.call)

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """Counts a call of a training function, as long as it lasts.

        Raises RuntimeError if another one has not returned.
        """
        with self._lock:
            if self._is_calling:
                raise RuntimeError(
                    "a function of hvd.elastic.run was called before another one, or the same, has "
                    "returned; call the inner function as it is, without hvd.elastic.run"
                )
            self._is_calling = True
        self.call += 1
        try:
            yield
        finally:
            self.has_skipped |= self.is_behind
            self._is_calling = False

    @property
    def is_behind(self) -> bool:
        """Returns whether the others are in a later call of a training function than this process.

        It has come later, or has failed at the end of a call that others have completed.
        """
        return self.call < self.call_of_job

    def _note_call(self, number: int) -> None:
        with self._lock:
            self.call_of_job = max(self.call_of_job, number)

    def _ask_to_leave(self) -> bool:
        """Asks, without waiting; returns whether the driver will hear it."""
        try:
            self._socket.send(json.dumps({"says": "drain"}).encode(), socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def _tell(self, **said: Any) -> None:
        if os.getpid() != self._process:
            raise ValueError(
                f"this process was forked from process {self._process}, which is a rank of an "
                "elastic job; let that one call init"
            )
        try:
            self._socket.send(json.dumps(said).encode())
        except OSError:
            self._lose_driver(_LAUNCHER_ENDED)

    def _take_answer(self, answer: World | RemovedError) -> None:
        self._answer = answer
        self._wakeups.put(None)

    def _lose_driver(self, why: str) -> None:
        self._lost_because = self._lost_because or why
        self._wakeups.put(None)

    def _read(self) -> None:
        """Runs in a thread. However it ends, whoever waits for the driver hears why."""
        why = _LAUNCHER_ENDED
        try:
            while message := self._receive():
                self._take(message)
        except ValueError as error:
            why = str(error)
        except BaseException as error:
            why = f"the thread that hears the job's driver has failed ({error!r})"
            raise
        finally:
            self._lose_driver(why)
            self.leave_on_signal.job_ends()

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(_LONGEST)
        except OSError:
            return b""

    def _take(self, message: bytes) -> None:
        match parse(message):
            case World() as world:
                self._take_answer(world)
            case Call(number):
                self._note_call(number)
            case Refusal(why):
                self._take_answer(RemovedError(why))
            case Abandoned(why):
                self._farewell = AbandonedError(why)
                self._wakeups.put(None)
            case Change() as change:
                self._take_change(change)
            case Question():
                with contextlib.suppress(OSError):
                    self._socket.send(json.dumps({"says": "here"}).encode())
            case Ending():
                self.leave_on_signal.job_ends()

    def _take_change(self, change: Change) -> None:
        with self._lock:
            self._latest = max(self._latest, change.number)
            listeners = list(self._listeners)
            if not listeners:
                self._changes.append(change)
        _announce(change.number)
        for listener in listeners:
            try:
                listener(change)
            except Exception:  # the program's, perhaps; what the driver says is still heard
                what = (*sys.exc_info(), threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(what))


_link: DriverLink | None = None
_link_lock = threading.Lock()


def is_elastic() -> bool:
    """Returns whether this process is a rank of an elastic job."""
    return _FD in os.environ


def joins_at_once() -> bool:
    """Returns whether new ranks are waited for as soon as there is a slot for them, as in Horovod.

    Otherwise they join when they are ready, and nobody waits for them.
    """
    return os.environ.get(_JOIN) == "at_once"


def link() -> DriverLink | None:
    """Returns this process's connection to the driver of its job; None if the job is not elastic.

    Raises ValueError in a process that a rank has started: that one has the connection.
    """
    global _link
    if not is_elastic():
        return None
    with _link_lock:
        if _link is None:
            _link = DriverLink(_inherited_socket())
        return _link


def drain() -> bool:
    """Asks the driver to let this process go at the end of its step, without waiting.

    Returns False if there is no driver who hears it: before init, in a job that is not elastic, and
    when the job ends. A signal's handler may call it in the middle of anything.
    """
    link = _link  # the lock may be held by what the handler has interrupted
    return link is not None and link.leave_on_signal.drain()


def _inherited_socket() -> socket.socket:
    fd, inode = os.environ[_FD], os.environ.get(_INODE)
    try:
        is_ours = str(os.fstat(int(fd)).st_ino) == inode
    except (OSError, ValueError):
        is_ours = False
    if not is_ours:
        raise ValueError(
            "this process was started by a rank of an elastic job, which alone is connected to the "
            f"job's driver; let the rank call init, or unset {_FD} and set PERSEUS_RANK=0 and "
            "PERSEUS_SIZE=1 for this process to work alone"
        )
    connection = socket.socket(fileno=int(fd))
    connection.setblocking(True)
    connection.set_inheritable(False)
    return connection


def _announce(number: int) -> None:
    # Between two worlds there is nobody to tell; has_joined passes it on.
    with contextlib.suppress(HorovodInternalError):
        _engine.announce(number)
