"""Functions that run in threads of their own."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["execute_function_multithreaded", "in_thread", "on_event"]


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Calls `fn(*args)` for each of `args_list`, so many at a time.

    Returns the results by their place in the list; with `block_until_all_done` false, None at once.
    RuntimeError if a call has raised an exception, which is its cause.
    """
    if not args_list:
        return {} if block_until_all_done else None
    most = min(max_concurrent_executions, len(args_list))
    if not block_until_all_done:
        left = iter(list(args_list))
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    args = next(left, None)
                if args is None:
                    return
                fn(*args)

        for _ in range(most):
            in_thread(work)
        return None
    with ThreadPoolExecutor(most) as pool:
        calls = [pool.submit(fn, *args) for args in args_list]
    for place, call in enumerate(calls):
        if error := call.exception():
            name = getattr(fn, "__name__", repr(fn))
            raise RuntimeError(f"{name}{tuple(args_list[place])} raised {error!r}") from error
    return {place: call.result() for place, call in enumerate(calls)}


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Calls `target(*args)` in a new thread, which it returns; `silent` ignores its exceptions."""
    _check_arguments(args)
    function = functools.partial(_ignoring_errors, target) if silent else target
    thread = threading.Thread(target=function, args=args, name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(
    event: threading.Event,
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Calls `func(*args)` in a new thread once `event` is set, unless `stop` is set before.

    `stop` is looked at every `check_stop_interval_s` seconds. A thread that is no daemon needs one.
    """
    if event is None:
        raise ValueError("event is None; it must be a threading.Event")
    _check_arguments(args)
    if stop is None and not daemon:
        raise ValueError("stop is None; a thread that is no daemon must have an event that ends it")

    def wait() -> None:
        if stop is None:
            event.wait()
        else:
            while not stop.is_set() and not event.wait(check_stop_interval_s):
                pass
            if stop.is_set():
                return
        func(*args)

    return in_thread(wait, daemon=daemon, silent=silent)


def _ignoring_errors(target: Callable[..., Any], *args: Any) -> None:
    with contextlib.suppress(Exception):
        target(*args)


def _check_arguments(args: object) -> None:
    if not isinstance(args, tuple):
        raise ValueError(f"args is a {type(args).__name__}; it must be a tuple, such as (value,)")
