"""Divides a host's processors among its ranks, where nothing else has.

A framework computes with as many threads as the host has processors. Ranks that share a host then
take each other's processors away, and a step takes up to three times as long. perseusrun and
torchrun set OMP_NUM_THREADS before a rank starts. Under other launchers it is too late for that,
but PyTorch and TensorFlow can be told. MXNet cannot: it reads the variable when it is loaded.
"""

from __future__ import annotations

import os
import sys

import perseus_core
from perseus_core import processors
from perseus_core.process import processor_share

VARIABLE = "OMP_NUM_THREADS"
_TENSORFLOW_VARIABLE = "TF_NUM_INTRAOP_THREADS"


def share_processors() -> None:
    """Gives the frameworks that are loaded this rank's share of threads, if the user has not.

    Call after init. Rank 0 says so in one line.
    """
    ranks = perseus_core.local_size()
    if ranks == 1:
        return
    threads = processor_share()
    if (limit := processors.quota()) is not None:  # the ranks of a container share it
        threads = max(1, min(threads, int(limit / ranks)))
    told = []
    if VARIABLE not in os.environ and _share_torch(threads):
        told.append("PyTorch")
    if _share_tensorflow(threads):
        told.append("TensorFlow")
    if told and VARIABLE not in os.environ and perseus_core.rank() == 0:
        print(
            f"perseus: {VARIABLE} is not set, so {' and '.join(told)} uses {threads} processors in "
            f"each of the {ranks} ranks on this host; set it to choose another number",
            file=sys.stderr,
            flush=True,
        )


def _share_torch(threads: int) -> bool:
    """Returns whether PyTorch had its default number of threads, and has now been given fewer."""
    if "torch" not in sys.modules:
        return False
    import torch

    allowed = processors.usable()
    # By default a thread for each processor, or for each core of two processors. Any other number
    # is the user's.
    if torch.get_num_threads() not in (allowed, allowed // 2) or torch.get_num_threads() <= threads:
        return False
    torch.set_num_threads(threads)
    return True


def _share_tensorflow(threads: int) -> bool:
    """The same for TensorFlow, which does not look at OMP_NUM_THREADS. Its threads cannot be
    changed any more once it has computed anything."""
    if "tensorflow" not in sys.modules or os.environ.get(_TENSORFLOW_VARIABLE):
        return False
    import tensorflow as tf

    threading = tf.config.threading
    if threading.get_intra_op_parallelism_threads() != 0 or threads >= processors.usable():
        return False
    os.environ[_TENSORFLOW_VARIABLE] = str(threads)  # for sessions, which have their own threads
    try:
        threading.set_intra_op_parallelism_threads(threads)
    except RuntimeError:  # TensorFlow has begun
        return False
    return True
