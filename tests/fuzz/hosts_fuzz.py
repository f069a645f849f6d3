"""-H, hostfiles, and how ranks are laid out: a list of places, or a ValueError."""

import os
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports():
    from perseus.run.hosts import assign, parse_hosts, read_hostfile

HOSTFILE = Path(f"/proc/self/fd/{os.memfd_create('hostfile')}")  # the fuzzer cleans up nothing


def one_input(data: bytes) -> None:
    source = atheris.FuzzedDataProvider(data)
    size, is_file = source.ConsumeIntInRange(-1, 64), source.ConsumeBool()
    rest = source.ConsumeBytes(len(data))
    try:
        if is_file:
            HOSTFILE.write_bytes(rest)
            hosts = read_hostfile(HOSTFILE)
        else:
            hosts = parse_hosts(rest.decode(errors="surrogateescape"))
        slots = assign(hosts, size)
    except ValueError:
        return
    assert [slot.rank for slot in slots] == list(range(size))
    assert sum(host.slots for host in hosts) >= size
    assert len({(slot.host, slot.local_rank) for slot in slots}) == size


atheris.Setup(sys.argv, one_input)
atheris.Fuzz()
