"""What the programs of elastic jobs in tests begin with."""

from __future__ import annotations

#: A program goes on after this: with core.init(), a state, and a training function.
ELASTIC = """
import os, sys, time
import numpy as np
import perseus_core as core
from perseus.common.elastic import ObjectState, run_fn
from perseus.common.objects import broadcast_object
from perseus.common.process_sets import global_process_set

def broadcast(value):
    return broadcast_object(value, 0, "state", global_process_set)

def reset():
    core.shutdown()
    core.init()
"""
