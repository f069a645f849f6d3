"""The slots of an elastic job: which have workers, which are lost, and who outlives a lost one."""

from __future__ import annotations

from collections.abc import Collection

from perseus.elastic.host_table import HostTable
from perseus.elastic.options import ElasticOptions
from perseus.elastic.owner import Owner
from perseus.elastic.workers import Place, Worker, Workers
from perseus.run.ending import NEVER

__all__ = ["WorkerSlots"]


class WorkerSlots:
    """Not thread-safe.

    Args:
      workers, table: the driver's, which keeps them up to date.
    """

    def __init__(
        self, options: ElasticOptions, owner: Owner, workers: Workers, table: HostTable
    ) -> None:
        self._options = options
        self._owner = owner
        self._workers = workers
        self._table = table
        self.are_given_up = False  # since the job is drained as a whole

    def places(self) -> list[Place]:
        """Returns the slots that the job uses, in order: those that it has come first."""
        if self.are_given_up:
            return []
        places = [
            (host.name, slot)
            for host in self._table.usable
            for slot in self._table.slots_of(host.name)
        ]
        had = {worker.place for worker in self._workers.staying()}
        # A slot that is back after a cooldown takes the place of none that is in use.
        chosen = set(sorted(places, key=lambda place: place not in had)[: self._options.most])
        return [place for place in places if place in chosen]

    def failed(self, worker: Worker, how: str | None = None) -> None:
        """Keeps out the slot or the host of a worker that has failed.

        Args:
          how: if the user has not been told yet.
        """
        host, slot = worker.place
        if self._options.blacklist_by == "slot":
            seconds = self._table.fail_slot(host, slot)
            what = f"slot {slot} of host {host}"
        else:
            if self._table.is_blacklisted(host):
                return  # by another of its workers
            seconds = self._table.blacklist(host)
            what = f"host {host}"
        until = "for the rest of the job" if seconds == NEVER else f"for {seconds:.0f} s"
        why = f"has failed: it {how}" if how else "has failed"
        self._owner.say(f"{what} is not used {until}, since worker {worker.number} {why}")

    def keep_the_state(self, places: Collection[Place]) -> None:
        """Has workers whose slots are gone stay if none of the others is sure to have the state.

        Then they stay until as many have it as the job needs.

        Args:
          places: the slots that the job uses.
        """
        heirs = sum(
            worker.place in places and self._workers.can_give_state(worker)
            for worker in self._workers.staying()
        )
        had_last = any(worker.awaits_heir for worker in self._workers)
        has_heirs = heirs >= max(1, min(self._options.least, len(places)) if had_last else 1)
        lost = [
            worker
            for worker in self._workers.alive()
            if worker.is_old
            and worker.place not in places
            and not self._table.is_blacklisted(worker.place[0])
        ]
        last = [worker for worker in lost if not worker.is_leaving]
        last = [] if has_heirs else last or [worker for worker in lost if worker.may_stay]
        for worker in self._workers:
            worker.awaits_heir = worker in last
        if last and not had_last:
            self._owner.say(
                "no worker with the job's state has a slot any more; these stay until a new one "
                f"has the state: {', '.join(str(worker.number) for worker in last)}"
            )
