"""The launcher reads frames from an agent's host whole and in order, or not at all."""

import os
import sys

import atheris

with atheris.instrument_imports():
    from perseus.run import agent_protocol as protocol
    from perseus.run.host_connection import AgentConnection


def one_input(data: bytes) -> None:
    source = atheris.FuzzedDataProvider(data)
    cut, has_magic = source.ConsumeIntInRange(0, 200), source.ConsumeBool()
    said = (protocol.MAGIC if has_magic else b"") + source.ConsumeBytes(len(data))
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    stdin, stdout = os.fdopen(from_write, "wb", 0), os.fdopen(to_read, "rb", 0)
    connection = AgentConnection("host", [0, 1], stdin, stdout, {"command": []})
    frames = []
    for piece in (said[:cut], said[cut:]):
        os.write(to_write, piece)
        frames += connection.read()
    os.close(to_write)
    list(connection.read())
    assert connection.ended
    _, magic, rest = said.partition(protocol.MAGIC)
    assert connection.ready == bool(magic)
    whole = b"".join(
        protocol.HEADER.pack(frame.kind, frame.rank, len(frame.payload)) + frame.payload
        for frame in frames
    )
    assert rest.startswith(whole)
    connection.close(0)
    os.close(from_read)


atheris.Setup(sys.argv, one_input)
atheris.Fuzz()
