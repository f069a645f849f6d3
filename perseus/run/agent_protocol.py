"""The words between a launcher and its agents.

The launcher sends one job (a length, JSON, and the bytes that each rank is to read from its stdin,
if any), and later commands: KILL with a rank; HOLD, and GO_ON, if output comes faster than it is
read; SIGNAL with a signal for all ranks; INPUT with bytes for the stdin of rank 0; TELL with a rank
of an elastic job and a message of the driver's for it; ASK, which the agent answers with HERE;
TERMINATE, or KILL_ALL. The agent sends MAGIC, and then frames: a kind, a rank and a payload. With
DRAIN it asks that the ranks of its host leave an elastic job. If it
has outlived another launcher (without_launcher.py), the first frame is a REPORT.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import struct

MAGIC = b"\nperseus-agent-1\n"
HEADER = struct.Struct("!BII")  # kind, rank, length of the payload
STDOUT, STDERR, RESULT, EXIT, ERROR, NEWS, INPUT_TAKEN, HERE, TO_DRIVER, REPORT, DRAIN = range(11)
TERMINATE, KILL, KILL_ALL, HOLD, GO_ON, SIGNAL, INPUT = b"T", b"K", b"A", b"H", b"G", b"S", b"I"
ASK, TELL = b"?", b"D"
RANK = struct.Struct("!I")  # follows KILL
RANK_AND_COUNT = struct.Struct("!II")  # follows TELL, before as many bytes
NUMBER = struct.Struct("!B")  # of a signal, follows SIGNAL
# Frames whose rank is one of the agent's own; it is 0 in the others.
OF_RANKS = frozenset((STDOUT, STDERR, RESULT, EXIT, ERROR, NEWS, TO_DRIVER))
COUNT = struct.Struct("!I")  # of bytes; follows INPUT, before the bytes; and in INPUT_TAKEN
LARGE_PIECE = 1 << 20  # bytes that are read and sent at a time where there may be gigabytes
MOST_PAYLOAD_BYTES = LARGE_PIECE  # of a frame
RESULT_FD = "PERSEUS_RESULT_FD"
NEWS_FD = "PERSEUS_NEWS_FD"  # where the engine reports on other ranks
NEWS_INODE = "PERSEUS_NEWS_INODE"  # of that socket: the number may be another file's by then
DRIVER_FD = "PERSEUS_DRIVER_FD"  # where a rank of an elastic job speaks with the driver
DRIVER_INODE = "PERSEUS_DRIVER_INODE"
THREADS = "OMP_NUM_THREADS"
#: What is said of a NotAuthenticError, after whose words they were.
NOT_AUTHENTIC = (
    "arrived otherwise than it was sent: somebody in between has changed, left out, repeated or "
    "added something"
)


class NotAuthenticError(Exception):
    """Something arrived that the other end has not sent, or not then."""
