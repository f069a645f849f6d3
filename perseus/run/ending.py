"""The end of a job that has failed or been interrupted: when its ranks get which signal."""

from __future__ import annotations

import time

# After a rank has failed, the others have REPORT_SECONDS to report what they saw of it, before they
# get SIGTERM. The job's grace later they get SIGKILL, and AGENT_SECONDS later the launcher gives up
# the agents. All this is over as soon as the ranks have ended.
REPORT_SECONDS = 1.0
DEFAULT_GRACE_SECONDS = 10.0
AGENT_SECONDS = 1.0
# Another Ctrl-C this long after the first was meant: scripts pass on the first one, too.
SECOND_INTERRUPT_SECONDS = 0.5

NEVER = float("inf")


class Ending:
    """Moments of time.monotonic at which something is to be done. Not thread-safe.

    Args:
      grace: the seconds between SIGTERM and SIGKILL.
    """

    def __init__(self, grace: float):
        self._grace = grace
        self._interrupted_at = NEVER
        self.terminate_at = NEVER  # when the ranks get SIGTERM, if they have not got it
        self.give_up_at = NEVER  # when the launcher no longer waits for its agents
        self.has_terminated = False

    @property
    def has_begun(self) -> bool:
        """Returns whether the job has to end."""
        return self.has_terminated or self.terminate_at != NEVER

    def begin_in(self, seconds: float) -> None:
        """Plans SIGTERM in these seconds. Later calls cannot prolong the grace."""
        if not self.has_terminated:
            self.terminate_at = time.monotonic() + seconds
            self.give_up_at = self.terminate_at + self._grace + AGENT_SECONDS

    def terminate(self) -> None:
        """Notes that the ranks have got SIGTERM."""
        self.terminate_at = NEVER
        self.has_terminated = True

    def interrupt(self) -> bool:
        """Begins at once; returns whether this Ctrl-C is one too many to wait any longer."""
        now = time.monotonic()
        if now >= self._interrupted_at + SECOND_INTERRUPT_SECONDS:
            self.give_up_at = now + AGENT_SECONDS
            return True
        self._interrupted_at = min(self._interrupted_at, now)
        self.begin_in(0)
        return False
