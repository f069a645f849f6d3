"""Asks again and again which hosts there are, and tells when they change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Protocol, runtime_checkable

from perseus.run.hosts import Host
from perseus.run.own_streams import tell

__all__ = ["Cancellable", "Discovery", "DiscoveryError", "HostSource", "find_first"]

#: Seconds between the end of one look for hosts and the next.
DISCOVERY_SECONDS = 1.0
# How long `stop` waits for the thread.
_STOP_SECONDS = 0.8
# How long a first look that is cancelled may take to end.
_CANCEL_SECONDS = 10.0


class DiscoveryError(RuntimeError, ValueError):
    """The hosts cannot be found out. The text is one line, for the user.

    It is a ValueError because what names the source is an argument, and a RuntimeError because
    Horovod raises that.
    """


class HostSource(Protocol):
    """Knows the hosts that a job may use at the moment."""

    def find(self) -> list[Host]:
        """Returns the hosts in the order in which they are to be used; [] if it names none.

        Names are distinct. It blocks no longer than its time-out. Raises DiscoveryError.
        """
        ...


@runtime_checkable
class Cancellable(Protocol):
    """A source whose `find` may take long."""

    def cancel(self) -> None:
        """Has a `find` that runs in another thread, and each later one, raise at once."""
        ...


def find_first(source: HostSource) -> list[Host]:
    """Returns source.find(), which runs in a thread of its own.

    So the handler of a signal cannot raise in the middle of starting a program, which nobody would
    end then. If one raises, the look for hosts is cancelled.
    """
    outcome: futures.Future[list[Host]] = futures.Future()

    def find() -> None:
        try:
            outcome.set_result(source.find())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=find, name="first look for hosts", daemon=True)
    thread.start()
    try:
        return outcome.result()
    finally:
        if not outcome.done() and isinstance(source, Cancellable):
            source.cancel()
            thread.join(_CANCEL_SECONDS)


class Discovery:
    """A thread that asks a source for its hosts until it is stopped.

    A source that fails is reported once for each different error, and the hosts that are known stay
    as they are. So it is if a source names no host any more: a script that has lost its own source
    prints nothing, too, and must not end a job.

    Args:
      source: any exception that its `find` raises counts as a failure.
      on_hosts: is called in the thread with the first list of hosts, and with each that differs
        from the last that it has taken. If it raises, that look counts as failed.
      interval: seconds between two looks, or a function that is asked for them each time.
      log: gets a line for the user when the source fails for a new reason, or works again.
      known: what a look before has found, which is then the first one.
    """

    def __init__(
        self,
        source: HostSource,
        on_hosts: Callable[[list[Host]], object],
        *,
        interval: float | Callable[[], float] = DISCOVERY_SECONDS,
        log: Callable[[str], object] = tell,
        known: Sequence[Host] | None = None,
    ) -> None:
        self._source = source
        self._on_hosts = on_hosts
        self._interval = interval if callable(interval) else lambda: interval
        self._log = log
        self._has_hosts = bool(known)
        self._stopped = threading.Event()
        self._has_first = threading.Event()
        self._first: list[Host] | DiscoveryError | None = None
        self._failures: set[str] = set()  # those since the source has last worked
        self._thread = threading.Thread(target=self._run, name="host discovery", daemon=True)
        if known is not None:
            self._answer(list(known))

    def start(self) -> None:
        self._thread.start()

    def first(self, timeout: float | None = None) -> list[Host]:
        """Returns what the source has found at the first look, after `on_hosts` has had it.

        Raises DiscoveryError if that look failed, whether or not a later one has not, or if it has
        not ended after `timeout` seconds.
        """
        if not self._has_first.wait(timeout):
            raise DiscoveryError(f"no hosts have been found out in {timeout:g} s")
        if isinstance(self._first, DiscoveryError):
            raise self._first
        return list(self._first or [])

    def stop(self) -> None:
        """Ends the thread within a second. `on_hosts` may be inside this call, but no later one.

        If it is called by the thread itself, from `on_hosts`, the thread ends afterwards.
        """
        self._stopped.set()
        if isinstance(self._source, Cancellable):
            self._source.cancel()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        last: list[Host] | None = None
        while not self._stopped.is_set():
            try:
                hosts = self._find()
            except Exception as error:
                self._failed(error, "the source of hosts")
            else:
                if self._stopped.is_set():
                    return
                if hosts == last or self._is_taken(hosts):
                    last = list(hosts)
                    self._worked()
                    self._answer(hosts)
            self._stopped.wait(self._interval())

    def _find(self) -> list[Host]:
        hosts = self._source.find()
        if self._has_hosts and not hosts:
            raise DiscoveryError("no host is named any more")
        self._has_hosts = bool(hosts)
        return hosts

    def _is_taken(self, hosts: list[Host]) -> bool:
        try:
            self._on_hosts(list(hosts))
        except Exception as error:
            self._failed(error, "who is to use the hosts")
            return False
        return True

    def _failed(self, error: Exception, who: str) -> None:
        if not isinstance(error, DiscoveryError):
            text = str(error)
            kind = type(error).__name__
            error = DiscoveryError(f"{who} has raised {kind}{text and ': '}{text}")
        if not self._stopped.is_set() and str(error) not in self._failures:
            self._failures.add(str(error))
            if self._has_first.is_set():  # the first failure is raised by `first`
                self._log(f"{error}; the hosts known so far stay in use")
        self._answer(error)

    def _worked(self) -> None:
        if self._failures:
            self._failures.clear()
            self._log("hosts can be found out again")

    def _answer(self, outcome: list[Host] | DiscoveryError) -> None:
        if not self._has_first.is_set():
            self._first = outcome
            self._has_first.set()
