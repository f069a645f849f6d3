"""The variables from which torch.distributed learns a rank's place in a world of an elastic job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perseus.elastic.owner import NextWorld
from perseus.elastic.workers import Workers, worker_places
from perseus.run.environment import torch_environment
from perseus.run.hosts import is_local, slots_on
from perseus.run.master import Master, address_of
from perseus.run.remote_shell import RemoteShell

__all__ = ["TorchPlaces", "TorchVariables"]


class TorchPlaces:
    """Chooses where rank 0 of each world is to serve the store of torch.distributed.

    The port is another one in each world, since the store of the last one may still be there. A
    MASTER_ADDR or MASTER_PORT that the user has set is for ranks that stay where they are, and
    does not count.

    Args:
      addresses: from a host to the address at which it reaches this machine.
    """

    def __init__(self, addresses: Mapping[str, str], remote_shell: RemoteShell) -> None:
        self._addresses = addresses
        self._remote_shell = remote_shell
        self._address_of: dict[str, str] = {}  # hosts other than this one

    def variables(self, hosts: Sequence[str], numbers: Sequence[int]) -> list[dict[str, str]]:
        """Returns the variables of each rank of a new world, given their hosts.

        `numbers` are those of their slots there.
        """
        first = hosts[0]
        here = is_local(first)
        master = Master({}, here=here, several_hosts=len(set(hosts)) > 1)
        if not here and first not in self._address_of:
            self._address_of[first] = address_of(first, self._remote_shell)
        return [
            torch_environment(slot.rank, slot.size, slot.local_rank, slot.local_size)
            | master.environment(self._addresses[slot.host] if here else self._address_of[first])
            for slot in slots_on(hosts, numbers)
        ]


class TorchVariables:
    """The variables of the workers in the last world that they were told of.

    Args:
      workers: the driver's.
    """

    def __init__(self, places: TorchPlaces, workers: Workers) -> None:
        self._places = places
        self._workers = workers
        self._meeting = 0  # of that world; 0: the first one is planned
        self._by_worker: dict[int, dict[str, str]] = {}

    def plan(self, workers: Sequence[int]) -> None:
        """Notes who is to be in the first world, in the order of ranks."""
        self._by_worker = self._variables(workers)

    def planned(self, worker: int) -> dict[str, str]:
        """Returns a worker's variables in the first world; {} if it is not planned to be there."""
        return self._by_worker.get(worker, {})

    def entered(self, worker: int, world: NextWorld) -> dict[str, str]:
        """Returns a worker's variables in this world, which is the one before or the next one."""
        if world.meeting != self._meeting:
            is_as_planned = world.meeting == 1 and list(self._by_worker) == list(world.workers)
            if not is_as_planned:
                self._by_worker = self._variables(world.workers)
            self._meeting = world.meeting
        return self._by_worker[worker]

    def _variables(self, workers: Sequence[int]) -> dict[int, dict[str, str]]:
        places = worker_places([self._workers[number] for number in workers])
        return dict(zip(workers, self._places.variables(*places), strict=True))
