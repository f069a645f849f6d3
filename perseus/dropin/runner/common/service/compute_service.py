"""The service through which a training job and a job of compute workers find each other.

Compute workers run TensorFlow's tf.data service: dispatchers, and workers of each. They register
here, and whoever needs one waits here until it has come. The service runs on rank 0 of the compute
job, until a client asks it to shut down.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Any

from perseus.dropin.runner.common.util import network, timeout
from perseus.dropin.runner.util.threads import in_thread

__all__ = ["ComputeClient", "ComputeService"]


class RegisterDispatcherRequest:
    def __init__(self, dispatcher_id: int, dispatcher_address: str):
        self.dispatcher_id = dispatcher_id
        self.dispatcher_address = dispatcher_address


class WaitForDispatcherRegistrationRequest:
    def __init__(self, dispatcher_id: int, timeout: float):
        self.dispatcher_id = dispatcher_id
        self.timeout = timeout


class WaitForDispatcherRegistrationResponse:
    def __init__(self, dispatcher_address: str):
        self.dispatcher_address = dispatcher_address


class RegisterDispatcherWorkerRequest:
    def __init__(self, dispatcher_id: int, worker_id: int):
        self.dispatcher_id = dispatcher_id
        self.worker_id = worker_id


class WaitForDispatcherWorkerRegistrationRequest:
    def __init__(self, dispatcher_id: int, timeout: float):
        self.dispatcher_id = dispatcher_id
        self.timeout = timeout


class ShutdownRequest:
    pass


class WaitForShutdownRequest:
    pass


class ComputeService(network.BasicService):
    """Knows the address of each of so many dispatchers, and how many workers each has."""

    NAME = "Compute service"

    def __init__(
        self,
        dispatchers: int,
        workers_per_dispatcher: int,
        key: bytes,
        nics: Iterable[str] | None = None,
    ):
        for name, value in (
            ("dispatchers", dispatchers),
            ("workers_per_dispatcher", workers_per_dispatcher),
        ):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        self._dispatchers = dispatchers
        self._workers_per_dispatcher = workers_per_dispatcher
        self._changed = threading.Condition()
        self._addresses_of_dispatchers: dict[int, str] = {}
        self._workers: dict[int, set[int]] = {each: set() for each in range(dispatchers)}
        self._is_over = False
        super().__init__(self.NAME, key, nics)

    def _handle(self, req: Any, client_address: tuple[str, int]) -> Any:
        """Answers with the error if there is one, which the client raises."""
        answers: dict[type, Callable[[Any], Any]] = {
            RegisterDispatcherRequest: self._register_dispatcher,
            WaitForDispatcherRegistrationRequest: self._wait_for_dispatcher,
            RegisterDispatcherWorkerRequest: self._register_worker,
            WaitForDispatcherWorkerRegistrationRequest: self._wait_for_workers,
            WaitForShutdownRequest: self._wait_for_shutdown,
        }
        if isinstance(req, ShutdownRequest):
            in_thread(self.shutdown)  # which waits for this very request
            return network.AckResponse()
        answer = answers.get(type(req))
        if answer is None:
            return super()._handle(req, client_address)
        try:
            with self._changed:
                return answer(req) or network.AckResponse()
        except (ValueError, IndexError, timeout.TimeoutException) as error:
            return error

    def _register_dispatcher(self, req: RegisterDispatcherRequest) -> None:
        self._check(req.dispatcher_id)
        known = self._addresses_of_dispatchers.setdefault(req.dispatcher_id, req.dispatcher_address)
        if known != req.dispatcher_address:
            raise ValueError(
                f"dispatcher {req.dispatcher_id} is registered at {known} already, and now at "
                f"{req.dispatcher_address}"
            )
        self._changed.notify_all()

    def _register_worker(self, req: RegisterDispatcherWorkerRequest) -> None:
        self._check(req.dispatcher_id)
        self._workers[req.dispatcher_id].add(req.worker_id)
        self._changed.notify_all()

    def _wait_for_dispatcher(
        self, req: WaitForDispatcherRegistrationRequest
    ) -> WaitForDispatcherRegistrationResponse:
        self._check(req.dispatcher_id)
        known = self._addresses_of_dispatchers
        self._wait(
            lambda: req.dispatcher_id in known, req.timeout, f"dispatcher {req.dispatcher_id}"
        )
        return WaitForDispatcherRegistrationResponse(known[req.dispatcher_id])

    def _wait_for_workers(self, req: WaitForDispatcherWorkerRegistrationRequest) -> None:
        # A single dispatcher is everybody's.
        dispatcher = 0 if self._dispatchers == 1 else req.dispatcher_id
        self._check(dispatcher)
        workers = self._workers[dispatcher]
        self._wait(
            lambda: len(workers) >= self._workers_per_dispatcher,
            req.timeout,
            f"workers for dispatcher {dispatcher}",
        )

    def _wait_for_shutdown(self, req: WaitForShutdownRequest) -> None:
        self._changed.wait_for(lambda: self._is_over)

    def _wait(self, is_there: Callable[[], bool], seconds: float, what: str) -> None:
        self._changed.wait_for(lambda: is_there() or self._is_over, seconds)
        if not is_there():
            if self._is_over:
                raise ValueError(f"the compute service was shut down before {what} registered")
            raise timeout.TimeoutException(
                f"{what} did not register in {seconds} seconds: look at what the compute job says, "
                "or raise its --timeout"
            )

    def _check(self, dispatcher: int) -> None:
        if not 0 <= dispatcher < self._dispatchers:
            raise IndexError(
                f"dispatcher id is {dispatcher}; it must be from 0 to {self._dispatchers - 1}"
            )

    def shutdown(self) -> None:
        """Ends all waiting, and the service. Does nothing the second time."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        super().shutdown()


class ComputeClient(network.BasicClient):
    """Speaks to a ComputeService.

    Methods raise TimeoutException if what they wait for does not come in `timeout` seconds.
    """

    def __init__(self, compute_addresses: network.Addresses, key: bytes, verbose: int = 1):
        super().__init__(ComputeService.NAME, compute_addresses, key, verbose)

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        self._ask(RegisterDispatcherRequest(dispatcher_id, dispatcher_address))

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """Returns the dispatcher's address."""
        response = self._ask(WaitForDispatcherRegistrationRequest(dispatcher_id, timeout))
        return str(response.dispatcher_address)

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        self._ask(RegisterDispatcherWorkerRequest(dispatcher_id, worker_id))

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Waits until the dispatcher has all its workers."""
        self._ask(WaitForDispatcherWorkerRegistrationRequest(dispatcher_id, timeout))

    def shutdown(self) -> None:
        self._ask(ShutdownRequest())

    def wait_for_shutdown(self) -> None:
        """Returns when the service is shut down, or if it is gone already."""
        with contextlib.suppress(OSError, EOFError):
            self._ask(WaitForShutdownRequest())

    def _ask(self, request: Any) -> Any:
        response = self._send(request)
        if isinstance(response, Exception):
            raise response
        return response
