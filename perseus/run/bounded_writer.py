"""Writing to places that may be slow or stuck, by threads of their own, so that no job waits.

The rule on what becomes of output that is not read as fast as it comes is in docs/launching.md.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable

#: Above so many bytes that wait for one place, the ranks are held back, until it is half as many.
BOUND_BYTES = 4 << 20
#: A reader that takes nothing for so long, while the job has to end, is not waited for.
PATIENCE_SECONDS = 1.0
#: What is written at once. Small pieces show that a reader reads.
_BATCH_BYTES = 65536

NEVER = float("inf")

Put = Callable[[memoryview], int]  # writes some of the bytes, and returns how many


class BoundedWriter:
    """Writes to one place in a thread of its own. Thread-safe; the thread calls `changed`.

    Args:
      name: what the place is called in messages.
      changed: is called when the ranks need not be held back any more, and after an error.
      failed: is called once when nothing can be written any more.
    """

    def __init__(
        self,
        name: str,
        changed: Callable[[], None],
        failed: Callable[[OSError], None] = lambda error: None,
    ):
        self.name = name
        self.error: OSError | None = None  # after it, all is dropped
        self.dropped = 0  # bytes
        self.drops = False  # whether to drop what is beyond the bound
        self.is_awaited = False  # whether to call `changed` when all is written
        self._changed = changed
        self._failed = failed
        self._lock = threading.Condition()
        self._queue: deque[tuple[Put, bytearray]] = deque()
        self._waiting = 0  # bytes, also those that are being written
        self._moved_at = 0.0  # when bytes were written, or the first came
        self._is_clogged = False
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def refuses(self, size: int, *, is_own: bool = False) -> bool:
        """Returns whether output of so many bytes has to be dropped now, and counts it if so.

        Args:
          is_own: these are words of the launcher, which nothing holds back. They may go beyond the
            bound, but not beyond twice as much.
        """
        with self._lock:
            after = self._waiting + size
            is_beyond = after > 2 * BOUND_BYTES if is_own else self.drops and after > BOUND_BYTES
            if is_beyond:
                self.dropped += size
            return is_beyond

    def write(self, put: Put, data: bytes) -> None:
        """Has `put` write the data later."""
        with self._lock:
            if self.error:
                self.dropped += len(data)
                return
            if not self._waiting:
                self._moved_at = time.monotonic()
            self._waiting += len(data)
            self._is_clogged = self._is_clogged or self._waiting > BOUND_BYTES
            if self._queue and self._queue[-1][0] == put and len(self._queue[-1][1]) < _BATCH_BYTES:
                self._queue[-1][1].extend(data)
            else:
                self._queue.append((put, bytearray(data)))
            if self._thread is None:
                # A daemon: a place that never takes what is written must not keep us from ending.
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
            self._lock.notify()

    @property
    def waiting(self) -> int:
        """Returns how many bytes are not written yet."""
        return self._waiting

    @property
    def is_clogged(self) -> bool:
        """Returns whether so much waits that the ranks should be held back."""
        return self._is_clogged

    @property
    def stalls_at(self) -> float:
        """Returns when the reader will have taken nothing for too long, if it takes nothing."""
        return self._moved_at + PATIENCE_SECONDS if self._waiting else NEVER

    def close(self) -> None:
        """Drops what waits, and ends the thread as soon as the place lets it go on."""
        with self._lock:
            self.dropped += self._waiting
            self._waiting = 0
            self._queue.clear()
            self._is_closed = True
            self._lock.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._queue:
                    if self._is_closed:
                        return
                    self._lock.wait()
                put, data = self._queue.popleft()
            try:
                self._put(put, data)
            except Exception as error:
                if self._is_closed:
                    return  # and so is the file, perhaps
                self._fail(_as_os_error(error))

    def _put(self, put: Put, data: bytearray) -> None:
        rest = memoryview(data)
        while rest and not self._is_closed:
            written = put(rest)
            rest = rest[written:]
            if written:
                self._moved(written)

    def _moved(self, written: int) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._waiting -= written
            self._moved_at = time.monotonic()
            was_clogged, is_clogged = self._is_clogged, self._waiting > BOUND_BYTES // 2
            self._is_clogged = was_clogged and is_clogged
            is_written = self.is_awaited and not self._waiting
            news = is_written or was_clogged != self._is_clogged
        if news:
            self._changed()

    def _fail(self, error: OSError) -> None:
        self._failed(error)
        with self._lock:
            self.error = error
            self.dropped += self._waiting
            self._waiting = 0
            self._is_clogged = False
            self._queue.clear()
        self._changed()


class Writers:
    """The writers of one job. Not thread-safe, but for what the writers' threads call.

    When something has changed that matters to a loop of events, `wakeup_fd` can be read. It is None
    as long as there are no writers.
    """

    def __init__(self) -> None:
        self._writers: list[BoundedWriter] = []
        self._reported: set[BoundedWriter] = set()
        self._lock = threading.Lock()
        self.wakeup_fd: int | None = None
        self._to_wakeup_fd: int | None = None

    def add(
        self, name: str, failed: Callable[[OSError], None] = lambda error: None
    ) -> BoundedWriter:
        if self.wakeup_fd is None:
            self.wakeup_fd, self._to_wakeup_fd = os.pipe()
            for end in (self.wakeup_fd, self._to_wakeup_fd):
                os.set_blocking(end, False)
        self._writers.append(BoundedWriter(name, self._wake_up, failed))
        return self._writers[-1]

    def register(self, selector: selectors.BaseSelector) -> None:
        """Has a loop of events go on when something has changed that matters to it."""
        if self.wakeup_fd is not None:
            selector.register(self.wakeup_fd, selectors.EVENT_READ, self.take_wakeups)

    def take_wakeups(self) -> None:
        if self.wakeup_fd is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wakeup_fd, 4096)

    def must_hold_back(self, now: float, *, ends: bool) -> bool:
        """Returns whether the ranks must be held back.

        Args:
          ends: the job has to end. Then what a reader does not read is dropped, so that ranks can
            go on and end.
        """
        for writer in self._writers:
            writer.drops = ends and writer.is_clogged and now >= writer.stalls_at
        return any(writer.is_clogged and not writer.drops for writer in self._writers)

    def next_stall(self) -> float:
        """Returns when the first writer that holds the ranks back will have stalled."""
        held = [writer for writer in self._writers if writer.is_clogged and not writer.drops]
        return min((writer.stalls_at for writer in held), default=NEVER)

    def last_stall(self) -> float:
        """Returns when all writers with something left will have stalled; NEVER if none has."""
        return max((writer.stalls_at for writer in self._writers if writer.waiting), default=NEVER)

    def await_all(self) -> None:
        """Has `wakeup_fd` tell when a writer has written all, too."""
        for writer in self._writers:
            writer.is_awaited = True

    @property
    def waiting(self) -> int:
        return sum(writer.waiting for writer in self._writers)

    def new_errors(self) -> list[BoundedWriter]:
        """Returns the writers that have failed since the last call."""
        failed = {writer for writer in self._writers if writer.error} - self._reported
        self._reported |= failed
        return [writer for writer in self._writers if writer in failed]

    def losses(self) -> list[str]:
        """Returns a line about each writer that has dropped output, or has some left unwritten."""
        lines = []
        for writer in self._writers:
            lost = writer.dropped + writer.waiting
            if lost == 0 or isinstance(writer.error, BrokenPipeError):
                continue
            why = f"{writer.name}'s reader did not read"
            if writer.error:
                why = f"{writer.name} cannot be written: {writer.error.strerror}"
            lines.append(f"dropped {size_text(lost)} of output, because {why}")
        return lines

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
        with self._lock:
            for end in (self.wakeup_fd, self._to_wakeup_fd):
                if end is not None:
                    os.close(end)
            self.wakeup_fd = self._to_wakeup_fd = None

    def _wake_up(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._to_wakeup_fd is not None:
                os.write(self._to_wakeup_fd, b"w")


def _as_os_error(error: Exception) -> OSError:
    """Returns an error with a `strerror`, for anything that writing may raise."""
    if isinstance(error, OSError) and error.strerror:
        return error
    return OSError(errno.EIO, str(error) or type(error).__name__)


def size_text(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB" if count >= 1 << 20 else f"{max(1, count >> 10)} KiB"
