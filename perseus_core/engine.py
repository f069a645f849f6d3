"""The engine's operations on memory that is given by address, for adapters.

An adapter turns its framework's tensors into addresses, shapes and numbers, submits them and waits.
This module has what an adapter may use for that. Submission under a name is in
`perseus_core.submission`, calls that fail before they are submitted in `perseus_core.refusals`,
ranks and process sets in `perseus_core` itself. The names here are the bound functions of the
extension module and no wrappers: a Python function around each would cost every operation.

Any thread may call all of these. None of them waits, except `wait`, and `wait_on_stream` until the
operation has been launched. Numbers of kinds, dtypes and reductions are those of
`perseus_core.constants`.

Start an operation:

  register(process_set: int, kind: int, name: str) -> int
      Gives the id of a name, the same for every call. May be called before init; ids are valid
      until the process ends. ValueError for an unknown kind, or a name that is empty or longer than
      4096 bytes of UTF-8.

  submit(id, keep, tensors, *, reduce_op=1, root=0, prescale=1.0, postscale=1.0, splits=None,
         priority=0, codec=0, callback=None, place=None, offered=None) -> int
      Starts the operation on one tensor, or on several as one, and gives its handle.
        keep: an object that owns all memory that the operation reads and writes. The engine holds
          it until the operation is complete and its handle released.
        tensors: one `Operand` each, row-major and contiguous.
        root: a rank of the world. splits: rows for each rank of the set.
        priority: higher goes first. codec: from perseus_core.find_codec; 0 for the one in the
          settings.
        callback: called as callback(handle, status, message) on the thread that
          perseus_core.callbacks.start starts; the message is empty on success. Or a LateCallback.
        place: where all the tensors are; None for CPU memory.
        offered: for an allgather or an alltoall: the address and bytes of memory for each result.
          It is used if the result has exactly that size; result_address tells.

  submit_allreduce(id, keep, input, output, shape, dtype, reduce_op, prescale=1.0, postscale=1.0,
                   priority=0, codec=0, callback=None, device=0, device_index=0, stream=0) -> int
      submit for an allreduce of one tensor, with positional arguments only, which is faster. The
      last three are the parts of a `Place`; give all of them or none.

  run_allreduce(id, keep, input, output, shape, dtype, reduce_op, prescale=1.0, postscale=1.0,
                priority=0, codec=0) -> int
      submit_allreduce for a caller that is about to wait: gives 0 if the operation is complete
      already, as a small one may be whose ranks all call this at once. See perseus_run in C.

      All raise ValueError for a wrong argument and for a name that is in flight already, and
      NotInitializedError before init. The other ranks have been told by then.

Exchange messages with one other rank; see perseus_core.messages:

  send(process_set, peer, tag, keep, address, shape, dtype, priority, callback, codec=0, device=0,
       device_index=0, stream=0) -> int
  recv(process_set, peer, tag, keep, address, shape, dtype, priority, callback, codec=0, device=0,
       device_index=0, stream=0) -> int
      Start to send a tensor, or to receive into its memory; a receive whose shape is None takes
      whatever comes, as a Result. ANY_RANK and ANY_TAG are for receives; the latter takes tags
      below FIRST_TAG_OF_LIBRARIES. A codec other than 0, which is none, is for sends. The last
      three are the parts of a `Place`; give all of them or none. ValueError for a wrong argument.
  refuse_message(is_send, process_set, peer, tag, reason) -> None
      Has the other end of a message fail, since this rank's call was refused.
  message_of(handle) -> tuple[int, int]
      Returns source and tag of what a receive that is complete has got.

Follow an operation by its handle, which is never used again for another:

  poll(handle) -> int
      0: under way. 1: complete. -1: unknown here, as in a forked child.
  wait(handle, time_out_ms=-1) -> bool
      Waits until the operation is complete, without bound if the time is negative. False if the
      time ended first. Raises what the operation failed with, see `perseus_core.errors`, and
      ValueError for a handle that was never given out. Other Python threads run meanwhile, and
      handlers of signals; what these raise ends the wait.
  error(handle) -> Exception | None
      Returns the error of a complete operation; None if it succeeded.
  result_address(handle, index=0) -> int
      Returns where a complete operation has its result; 0 if the result has no bytes.
  Result(handle, index=0)
      Takes over the memory that the engine allocated for result `index` of a complete operation.
      ValueError if there is none, or it has been taken.
  wait_on_stream(handle, stream) -> None
      Makes a CUDA stream, by its address, wait for the results in place of the host. Raises if the
      operation has failed. The object that is kept may then be freed in the order of that stream.
  kept(handle) -> Any
      Returns the object that submit was given to keep; None once nothing is kept any more.
  drop_kept(handle) -> None
      Drops what is kept, before the operation is complete.
  release(handle) -> None
      Gives the handle back; every handle needs it once. An operation under way goes on.

  LateCallback()
      A callback for one operation, which wakes no thread as long as there is none.
        set(callback) -> bool: has it called as above, once the operation is complete. False, and
          never called, if it is complete already. ValueError if there is one.

Memory:

  prefer_huge_pages(address: int, bytes: int) -> None
      Says that fresh memory is about to be written as a whole, so that the kernel may back it with
      huge pages. Has no effect on small memory.
"""

from typing import TypeAlias

from perseus_core._engine import (
    ANY_RANK,
    ANY_TAG,
    FIRST_TAG_OF_LIBRARIES,
    NO_STREAM,
    LateCallback,
    Result,
    drop_kept,
    error,
    kept,
    message_of,
    poll,
    prefer_huge_pages,
    recv,
    refuse_message,
    register,
    release,
    result_address,
    run_allreduce,
    send,
    submit,
    submit_allreduce,
    wait,
    wait_on_stream,
)

__all__ = [
    "ANY_RANK",
    "ANY_TAG",
    "FIRST_TAG_OF_LIBRARIES",
    "NO_STREAM",
    "LateCallback",
    "Operand",
    "Place",
    "Result",
    "drop_kept",
    "error",
    "kept",
    "message_of",
    "poll",
    "prefer_huge_pages",
    "recv",
    "refuse_message",
    "register",
    "release",
    "result_address",
    "run_allreduce",
    "send",
    "submit",
    "submit_allreduce",
    "wait",
    "wait_on_stream",
]

#: One tensor of an operation: the input's address; the result's, which may be the same, or 0 to let
#: the engine allocate it; the shape, in elements; the number of the dtype.
Operand: TypeAlias = tuple[int, int, tuple[int, ...], int]

#: Where the tensors of an operation are: the device's number (0 CPU, 1 CUDA), its index, and the
#: stream whose work so far the operation waits for, or NO_STREAM.
Place: TypeAlias = tuple[int, int, int]
