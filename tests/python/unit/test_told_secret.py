"""The secret that rank 0 tells the ranks of its host."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time

import pytest

pytest.importorskip("torch")

from perseus.torch import told_secret


def test_a_process_of_the_same_user_is_told_the_secret_until_the_teller_is_closed() -> None:
    teller = told_secret.SecretTeller("5ec4e7")
    assert [told_secret.ask(teller.name) for _ in range(3)] == ["5ec4e7"] * 3
    teller.close()
    with pytest.raises(ConnectionRefusedError):
        told_secret.ask(teller.name)


def test_a_queue_that_strangers_have_filled_is_waited_for() -> None:
    name = f"perseus-{secrets.token_hex(16)}"
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as strangers:
        listener.bind(f"\0{name}")
        listener.listen(0)
        with pytest.raises(BlockingIOError):
            while True:
                stranger = strangers.enter_context(socket.socket(socket.AF_UNIX))
                stranger.setblocking(False)
                stranger.connect(f"\0{name}")

        def serve() -> None:
            time.sleep(0.3)
            with contextlib.suppress(OSError):  # the end
                while True:
                    caller, _ = listener.accept()
                    with caller, contextlib.suppress(BrokenPipeError):
                        caller.sendall(b"5ec4e7")

        server = threading.Thread(target=serve)
        server.start()
        assert told_secret.ask(name) == "5ec4e7"
        listener.shutdown(socket.SHUT_RDWR)
        server.join()
