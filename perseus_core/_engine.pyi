"""perseus.h for Python, for the modules of perseus_core alone; adapters use perseus_core.engine.

Numbers are those of the header: addresses, dtypes, operations, statuses. A call that fails raises
what ``perseus_core.errors.from_status`` makes of its status. Memory given by address must stay
valid until the operation is complete.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, final

from numpy.typing import NDArray

_Tensor = tuple[int, int, tuple[int, ...], int]  # input, output or 0, shape, dtype
_Place = tuple[int, int, int]  # device, its index, stream or NO_STREAM

#: In place of a stream: there is nothing to wait for.
NO_STREAM: int

def version() -> int: ...

# Process
def init(
    ranks: Sequence[int] | None = None,
    meeting_board: Callable[[int, int], int] | None = None,
    place: tuple[int, int, str, str, bool, int] | None = None,
) -> None:
    """place: rank, size, rendezvous, its secret, whether others may know that, and the meeting."""

def launched_as() -> tuple[int, int, str]:
    """Returns rank, size (0: only MPI knows it) and the variable that tells the rank ("")."""

def shutdown(why: str = "") -> None: ...
def environment_variable(name: str, /) -> str | None: ...
def is_initialized() -> bool: ...
def prefer_huge_pages(memory: int, bytes: int, /) -> None: ...
def rank() -> int: ...
def size() -> int: ...
def local_rank() -> int: ...
def local_size() -> int: ...
def cross_rank() -> int: ...
def cross_size() -> int: ...
def is_homogeneous() -> int: ...
def processor_share() -> int: ...
def mpi_thread_level() -> int: ...
def announce(number: int, /) -> None: ...
def announced() -> int: ...

# Process sets
def add_process_set(ranks: Sequence[int]) -> int: ...
def remove_process_set(process_set: int) -> None: ...
def open_process_set(process_set: int, ranks: Sequence[int]) -> None: ...
def close_process_set(process_set: int) -> None: ...

FIRST_OPENED_SET: int

def process_set_rank(process_set: int) -> int: ...
def process_set_size(process_set: int) -> int: ...
def process_set_ranks(process_set: int) -> list[int]: ...
def process_sets() -> list[int]: ...

# Operations
def register(process_set: int, operation: int, name: str, /) -> int: ...
def submit_allreduce(
    id: int,
    keep: object,
    input: int,
    output: int,
    shape: tuple[int, ...],
    dtype: int,
    reduce_op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    priority: int = 0,
    codec: int = 0,
    callback: Callable[[int, int, str], object] | LateCallback | None = None,
    device: int = 0,
    device_index: int = 0,
    stream: int = 0,
    /,
) -> int:
    """submit for one tensor. Give all of the last three arguments, or none."""

def run_allreduce(
    id: int,
    keep: object,
    input: int,
    output: int,
    shape: tuple[int, ...],
    dtype: int,
    reduce_op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    priority: int = 0,
    codec: int = 0,
    /,
) -> int:
    """0: it is complete."""

def submit(
    id: int,
    keep: object,
    tensors: Sequence[_Tensor],
    /,
    *,
    reduce_op: int = 1,
    root: int = 0,
    prescale: float = 1.0,
    postscale: float = 1.0,
    splits: Sequence[int] | None = None,
    priority: int = 0,
    codec: int = 0,
    callback: Callable[[int, int, str], object] | LateCallback | None = None,
    place: _Place | None = None,
    offered: Sequence[tuple[int, int]] | None = None,
) -> int:
    """Starts an operation; see perseus_core.engine.

    `keep` owns the memory that the tensors' addresses point to, and lives until the handle is
    released. `place` is that of all tensors; None is CPU memory. `callback(handle, status,
    message)` runs on the thread that is in dispatch_callbacks."""

def refuse(id: int, reason: str) -> None:
    """Tells the other ranks that this rank's call of a name failed before it was submitted."""

def result_address(handle: int, index: int = 0) -> int:
    """Returns where a complete operation has its result; 0 if the result has no bytes."""

def sequence(handle: int) -> int:
    """Returns how many operations its set has agreed on, with this one: the same on all ranks."""

# Messages between two ranks
ANY_RANK: int
ANY_TAG: int
FIRST_TAG_OF_LIBRARIES: int

def send(
    process_set: int,
    peer: int,
    tag: int,
    keep: object,
    address: int,
    shape: tuple[int, ...],
    dtype: int,
    priority: int,
    callback: Callable[[int, int, str], object] | LateCallback | None,
    codec: int = 0,
    device: int = 0,
    device_index: int = 0,
    stream: int = 0,
    /,
) -> int:
    """Starts to send a tensor; `keep` and `callback` are as for submit. `codec` 0 is none. The last
    three are the parts of a place; give all of them or none."""

def recv(
    process_set: int,
    peer: int,
    tag: int,
    keep: object,
    address: int,
    shape: tuple[int, ...] | None,
    dtype: int,
    priority: int,
    callback: Callable[[int, int, str], object] | LateCallback | None,
    codec: int = 0,
    device: int = 0,
    device_index: int = 0,
    stream: int = 0,
    /,
) -> int:
    """Starts to receive into that memory, or with no shape into a Result."""

def refuse_message(is_send: bool, process_set: int, peer: int, tag: int, reason: str, /) -> None:
    """Has the other end of a message fail, since this rank's call was refused."""

def message_of(handle: int, /) -> tuple[int, int]:
    """Returns source and tag of the message that a complete receive has got."""

# Proofs
PROOF_BYTES: int

def prove(process_set: int, sender: int, what: str, sequence: int, data: object) -> bytes:
    """Returns the proof that this rank, the sender, has sent the bytes; see perseus_core.proven."""

def check_proof(
    process_set: int, sender: int, what: str, sequence: int, data: object, proof: object
) -> None:
    """Raises AbortedError, and ends the work of all ranks, unless the proof is the sender's."""

def array_address(array: NDArray[Any], /) -> int: ...
def poll(handle: int, /) -> int: ...
def wait(handle: int, time_out_ms: int = -1, /) -> bool:
    """Returns whether the operation is complete; raises if it failed. Signal handlers run."""

def wait_on_stream(handle: int, stream: int, /) -> None:
    """Makes a CUDA stream wait for the results; raises if the operation failed. The object kept for
    the operation may then be dropped in the order of that stream."""

def kept(handle: int, /) -> Any:
    """Returns what submit was given to keep; None if it is not kept any more."""

def drop_kept(handle: int, /) -> None:
    """Drops what is kept."""

def finish(handle: int, /) -> None:
    """Waits without bound, then releases the handle, also if the operation failed."""

def last_rank(handle: int) -> int: ...
def error(handle: int, /) -> Exception | None:
    """Returns the error that a complete operation failed with; None if it succeeded."""

def release(handle: int, /) -> None: ...

@final
class Result:
    """Owns memory that the engine allocated for a result.

    Speaks DLPack; the buffer protocol in CPU memory; __cuda_array_interface__ on a GPU.
    """

    def __init__(self, handle: int, index: int = 0) -> None: ...
    @property
    def dtype(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def received_splits(self) -> tuple[int, ...]: ...
    @property
    def device(self) -> int: ...
    @property
    def device_index(self) -> int: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def free_on_stream(self, stream: int) -> None:
        """Promises that only work in this CUDA stream still uses the memory when it is freed.

        The memory is freed when this object, and all that was made from it, are gone. The engine
        then waits for this stream only.
        """

    def as_uint8(self) -> Result:
        """Returns the same memory as uint8, a type that every DLPack has; for booleans."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: object = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class DlpackArray:
    """A tensor taken out of a DLPack capsule.

    It is read through the buffer protocol in CPU memory, and by its address on a GPU. PEP 3118 has
    no bfloat16: the buffer of such a tensor shows uint16, and ``dtype`` has the true type.
    """

    def __init__(self, capsule: object) -> None: ...
    @property
    def dtype(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...] | None:
        """The strides in elements; None for a row-major tensor."""

    @property
    def address(self) -> int: ...
    @property
    def readonly(self) -> bool: ...
    @property
    def device_index(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

# Callbacks
def dispatch_callbacks() -> None:
    """Runs callbacks of complete operations until close_callbacks."""

def close_callbacks() -> None: ...

class LateCallback:
    """A callback for submit that is given later, or never; see perseus_core.engine."""

    def set(self, callback: Callable[[int, int, str], object]) -> bool: ...

# Observation and codecs
def counters() -> list[tuple[str, int]]: ...
def settings() -> list[list[str]]: ...
def check_environment(environment: list[bytes]) -> None: ...
def check_build() -> list[tuple[str, str]]: ...
def core_distance(first: int, second: int) -> float: ...
def gpu_support() -> tuple[int, int, int, bool]:
    """Returns the fields of perseus_core.observe.GpuSupport, in their order."""

def add_library_folders(folders: str) -> None: ...
def start_timeline(path: str, mark_cycles: bool = False) -> None: ...
def stop_timeline() -> None: ...
def register_codec(
    name: str,
    encoded_size: int,
    encode: int,
    decode: int,
    error_feedback: bool = False,
    user: int = 0,
) -> int: ...
def find_codec(name: str) -> int: ...
def commit_residuals() -> None: ...
def restore_residuals() -> None: ...
def forget_residuals() -> None: ...

# Launching
@final
class Rendezvous:
    """Serves the exchange of addresses between the `size` ranks of a job, until stop().

    Args:
      secret: the job's, in hexadecimal digits.
      address: what to listen on; "" for every interface.
      port: 0 for any free port.
      hosts: the host of each rank, for error messages.
    """

    def __init__(
        self,
        size: int,
        secret: str,
        address: str = "",
        port: int = 0,
        hosts: Sequence[str] = (),
    ) -> None: ...
    @property
    def port(self) -> int:
        """The port on which it listens."""

    def stop(self) -> None:
        """Stops serving. Ranks that have not met by then fail."""

    def add_rank(self, host: str = "") -> None:
        """Notes that the launcher starts one more rank, whose number is the next one.

        `host` counts only if the hosts of the first ranks were given, too.
        """

    def note_ended(self, rank: int, how: str = "") -> None:
        """Notes that the process of this launched rank has ended.

        Ranks that wait for it are told. `how` is for messages, such as "exited with code 1".
        """

    def has_met(self, world: str, ranks: Sequence[int]) -> bool:
        """Returns whether these launched ranks have met, in this order, in a world of this name.

        Only the engines of a world know its name, with which they begin what they report.
        """

    def __enter__(self) -> Rendezvous: ...
    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
