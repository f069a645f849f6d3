"""The processes of this host, as an agent deals with them."""

from __future__ import annotations

import os

from perseus.run import processes


def test_a_signal_that_this_system_lacks_is_not_sent() -> None:
    processes.kill(os.getpid(), 200)  # the launcher's host may number signals in another way
