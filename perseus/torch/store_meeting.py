"""How ranks that share only PyTorch's store, and know their numbers, meet.

Rank 0 calls the others by a name that it makes up. Each answers whether it is on rank 0's host and
of its user. Then rank 0 serves the rendezvous and leaves word of its places, at a port that was
free. The store may be one that everybody can read and write to, and may hold keys of earlier
worlds, so its word is where a rank calls, and no more: both sides then prove that they know the
secret. That is made of PERSEUS_SECRET if it is set; rank 0 then proves its word, too, and a rank
takes no other, whether it is of places or an error. Otherwise, if all are on one host, rank 0 tells
it to processes of its user alone (told_secret.py). Else it is in the store.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist

import perseus_core
from perseus.common.addresses import own_addresses
from perseus.torch import told_secret
from perseus.torch.bounded_store import BoundedStore
from perseus_core import process
from perseus_core.errors import HorovodInternalError, TimedOutError, UnreachableError

__all__ = ["Meeting", "World"]

_DEFAULT_START_TIMEOUT = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.1  # in seconds, between two looks into the store
_LEAST_SECRET_BYTES = 16

# Rank 0 of the last meeting keeps this for the others, which may meet after its own init: those of
# a world without rank 0.
_kept_for_others = contextlib.ExitStack()
# A forked child has inherited this of it, without the threads that serve it.
_inherited: list[contextlib.ExitStack] = []

# The names of the calls that have led to a meeting here, which must not lead to another.
_met: set[str] = set()


class World(NamedTuple):
    """A numbering of processes by torch.distributed, and the store that they share."""

    rank: int
    size: int
    store: dist.Store


class Meeting:
    """One meeting of rank 0 and the ranks that are to form a world."""

    def __init__(self, world: World, members: Sequence[int]) -> None:
        self._world = world
        self._is_member = world.rank in members
        # init refuses numbers that no rank has.
        self._others = [rank for rank in range(1, world.size) if rank in members]
        self._call_key = f"perseus/call/{world.size}"
        self._seconds, self._interfaces = _settings()
        self._deadline = time.monotonic() + self._seconds

    def place(self) -> process.Place:
        """Returns this rank's place, once rank 0 serves and can be found."""
        silent = (
            f"{self._self()} has waited {self._seconds:g} s for PyTorch's store, which does not "
            "answer: its process is stopped, or something on the network holds its answers back"
        )
        self._store = BoundedStore(self._world.store, self._deadline, silent)
        try:
            return self._call() if self._world.rank == 0 else self._answer()
        except HorovodInternalError:
            raise
        except RuntimeError as error:
            raise UnreachableError(
                f"{self._self()} cannot meet the others in PyTorch's store: {error}"
            ) from error
        finally:
            self._store.close()

    def end(self) -> None:
        """Call when the world has begun."""
        if self._is_member:
            _kept_for_others.close()

    def _call(self) -> process.Place:
        _kept_for_others.close()
        name = secrets.token_hex(32)
        call = {"name": name, "near": told_secret.place_to_ask()}
        keys = [_answer_key(name, rank) for rank in self._others]

        def is_answered() -> bool:
            if not self._is_there(self._call_key) or self._read(self._call_key) != call:
                self._write(self._call_key, call)  # also if somebody has written another
            return self._is_there(*keys)

        self._wait_until(is_answered, lambda: self._absent(name))
        is_one_host = all(self._read(key) is True for key in keys)
        self._write(self._call_key, {})  # it is over; reading a key that is deleted would wait
        try:
            word, place = self._serve(name, is_one_host)
        except Exception as error:
            self._write(_word_key(name), _proven({"error": str(error)}, name))
            raise
        self._write(_word_key(name), _proven(word, name))
        return place

    def _answer(self) -> process.Place:
        name = ""
        word: Any = None

        def is_said() -> bool:
            nonlocal name, word
            # Rank 0 may have ended, and come back with another call.
            call = self._read(self._call_key) if self._is_there(self._call_key) else None
            called = _text(call, "name")
            if called and called != name and called not in _met:
                name = called
                is_near = _text(call, "near") == told_secret.place_to_ask()
                self._write(_answer_key(name, self._world.rank), is_near)
            if name and self._is_there(_word_key(name)):
                word = self._read(_word_key(name))
            # Another may follow: whoever wrote this one does not know the secret.
            return _is_word(word) and _is_proven(word, name)

        has_own = _secret_of_user() is not None
        try:
            self._wait_until(is_said, lambda: "rank 0, which has not called")
        except TimedOutError:
            if not has_own or not _is_word(word):
                raise
            if _text(word, "secret") != "own":
                raise _differs("this rank", "rank 0") from None
            raise ValueError(
                "PERSEUS_SECRET is another on this rank than on rank 0; it must be the same for "
                "all ranks"
            ) from None
        _met.add(name)
        if "error" in word:
            error = _text(word, "error") or "no reason is given"
            raise UnreachableError(f"on rank 0, where the ranks were to meet: {error}")
        if not has_own and _text(word, "secret") == "own":
            raise _differs("rank 0", "this rank")
        asked = "" if has_own else _text(word, "ask")
        secret = self._told_by(asked) if asked else _secret_of(name)
        return self._place(_text(word, "places"), secret, is_known=not has_own and not asked)

    def _serve(self, name: str, is_one_host: bool) -> tuple[dict[str, str], process.Place]:
        """Serves the rendezvous; returns what the others must know, and this rank's place."""
        has_own = _secret_of_user() is not None
        is_told = is_one_host and not has_own
        secret = secrets.token_hex(32) if is_told else _secret_of(name)
        addresses = ["127.0.0.1"] if is_one_host else own_addresses(self._interfaces)
        # Without names of interfaces, others may come by any of them, as under torchrun.
        listens = ",".join(addresses) if is_one_host or self._interfaces else ""
        server = perseus_core.Rendezvous(self._world.size, secret, listens, _port_of_user())
        _kept_for_others.callback(server.stop)
        if not is_one_host and (chosen := os.environ.get("PERSEUS_MASTER_ADDR")):
            addresses = [f"[{chosen}]" if ":" in chosen else chosen]
        places = ",".join(f"{address}:{server.port}" for address in addresses)
        word = {"places": places, "secret": "own" if has_own else "", "ask": ""}
        if is_told:
            teller = told_secret.SecretTeller(secret)
            _kept_for_others.callback(teller.close)
            word["ask"] = teller.name
        return word, self._place(places, secret, is_known=not has_own and not is_told)

    def _place(self, places: str, secret: str, is_known: bool) -> process.Place:
        return process.Place(self._world.rank, self._world.size, places, secret, is_known)

    def _told_by(self, name: str) -> str:
        try:
            return told_secret.ask(name)
        except OSError as error:
            raise UnreachableError(
                f"rank 0, on the host of {self._self()}, did not tell its secret: {error}"
            ) from None

    # ---- The store, which anybody may have written to.

    def _write(self, key: str, value: Any) -> None:
        self._store.set(key, json.dumps(value))

    def _read(self, key: str) -> Any:
        """Returns None for what was not written by _write."""
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(self._store.get(key))
        return None

    def _is_there(self, *keys: str) -> bool:
        return not keys or self._store.check(list(keys))

    def _wait_until(self, is_so: Callable[[], bool], absent: Callable[[], str]) -> None:
        """`absent` returns for whom it waits."""
        pause = _FIRST_PAUSE
        while not is_so():
            if time.monotonic() >= self._deadline:
                raise TimedOutError(
                    f"{self._self()} has waited {self._seconds:g} s in PyTorch's store for "
                    f"{absent()}; {_advice()}"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _absent(self, name: str) -> str:
        absent = [r for r in self._others if not self._is_there(_answer_key(name, r))]
        return f"rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"

    def _self(self) -> str:
        return f"rank {self._world.rank} of {self._world.size} in torch.distributed"


def _answer_key(name: str, rank: int) -> str:
    return f"perseus/answer/{name}/{rank}"


def _word_key(name: str) -> str:
    return f"perseus/word/{name}"


def _text(value: Any, key: str) -> str:
    """Returns "" if there is no such text that can be printed."""
    text = value.get(key) if isinstance(value, dict) else None
    return text if isinstance(text, str) and text.replace("\n", " ").isprintable() else ""


def _is_word(value: Any) -> bool:
    """Returns whether rank 0 may have written this, or somebody else."""
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _proven(word: dict[str, str], name: str) -> dict[str, str]:
    """Returns rank 0's word with a proof that it knows the user's secret, if there is one here."""
    if (own := _secret_of_user()) is None:
        return word
    said = {key: value for key, value in word.items() if key != "proof"}
    text = json.dumps([name, said], sort_keys=True)
    return said | {"proof": hmac.new(own, text.encode(), hashlib.sha256).hexdigest()}


def _is_proven(word: dict[str, str], name: str) -> bool:
    """Returns whether rank 0 has said it, if the user has a secret here."""
    proof = _proven(word, name).get("proof")
    return proof is None or hmac.compare_digest(proof.encode(), _text(word, "proof").encode())


def _differs(has: str, lacks: str) -> ValueError:
    return ValueError(
        f"{has} has PERSEUS_SECRET in its environment, and {lacks} has not; it must be the same "
        "for all ranks"
    )


def _advice() -> str:
    """Says how the numbers of the launcher may be the reason, if there is one."""
    try:
        rank, size, variable = process.launched_as()
    except ValueError as error:
        return str(error)
    if not variable or size == 1:
        return "each of them must call init_process_group, or init, as this one has"
    of = f" of {size}" if size else ""
    return (
        f"by its launcher ({variable}) this process is rank {rank}{of}. Give init_process_group "
        "the launcher's numbers on all ranks or on none"
    )


def _secret_of_user() -> bytes | None:
    text = os.environ.get("PERSEUS_SECRET")
    if not text:
        return None
    with contextlib.suppress(ValueError):
        if len(secret := bytes.fromhex(text)) >= _LEAST_SECRET_BYTES:
            return secret
    raise ValueError(
        f"PERSEUS_SECRET must have at least {2 * _LEAST_SECRET_BYTES} hexadecimal digits, such as "
        "`openssl rand -hex 32` prints"
    )


def _secret_of(name: str) -> str:
    """Returns the secret of the meeting of that name, which is in the store, in hexadecimal."""
    own = _secret_of_user()
    if own is None:
        return hashlib.sha256(name.encode()).hexdigest()
    return hmac.new(own, name.encode(), hashlib.sha256).hexdigest()


def _port_of_user() -> int:
    text = os.environ.get("PERSEUS_MASTER_PORT") or "0"
    if not text.isdecimal() or int(text) > 65535:
        raise ValueError(f"PERSEUS_MASTER_PORT='{text}' is not a number of 1 to 65535")
    return int(text)


def _settings() -> tuple[float, str]:
    """Returns how long ranks wait for each other, and the interfaces that they use."""
    try:
        table = {setting.name: setting.value for setting in perseus_core.settings()}
    except ValueError:  # init reports malformed settings
        return _DEFAULT_START_TIMEOUT, ""
    return float(table["PERSEUS_START_TIMEOUT"]), table["PERSEUS_INTERFACES"]


def _leave_to_parent() -> None:
    _inherited.append(_kept_for_others.pop_all())


os.register_at_fork(after_in_child=_leave_to_parent)
