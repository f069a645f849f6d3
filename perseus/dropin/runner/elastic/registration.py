"""The reports of the workers of an ElasticDriver, in Horovod's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perseus.elastic.workers import Place, State

if TYPE_CHECKING:
    from perseus.dropin.runner.elastic.driver import ElasticDriver

__all__ = ["FAILURE", "READY", "SUCCESS", "WorkerStateRegistry"]

READY = "READY"
SUCCESS = "SUCCESS"
FAILURE = "FAILURE"


class WorkerStateRegistry:
    """A view of a driver's workers, each named by its host and slot.

    The real driver keeps the states, and the limit of resets.
    """

    def __init__(
        self,
        driver: ElasticDriver,
        host_manager: Any,
        reset_limit: int | None = None,
        verbose: bool = False,
    ):
        self._driver = driver

    def record_ready(self, host: str, slot: int) -> int:
        """Waits until this worker is in a new world; returns the number of that."""
        self._driver.record_ready(host, slot)
        return self.last_rendezvous()

    def get(self, state: str) -> set[Place]:
        """Returns the slots whose workers wait for a world, or have ended well, or have failed."""
        threads = self._driver.worker_threads
        if state == READY:
            return threads.in_state(State.WAITING)
        return threads.ended_with(is_success=state == SUCCESS)

    def count(self, state: str) -> int:
        return len(self.get(state))

    def get_recorded_slots(self) -> set[Place]:
        return self.get(READY) | self.get(SUCCESS) | self.get(FAILURE)

    def size(self) -> int:
        """Returns the number of ranks in the world, or of those that are to meet first."""
        return self._driver.world_size()

    def last_rendezvous(self) -> int:
        """Returns the number of the last world, which counts from 1; 0 before."""
        return self._driver.worker_threads.meeting
