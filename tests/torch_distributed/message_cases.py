"""Cases of messages between two ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from case import Case


def ring(place: Any, send: Any, receive: Any) -> Any:
    """Sends round a ring, one after the other."""
    received = place.blank(3)
    if place.place == 0:
        send(place.x(3), place.next)
        receive(received, place.previous)
    else:
        receive(received, place.previous)
        send(place.x(3), place.next)
    return received


def from_anyone(place: Any, later: bool = False) -> Any:
    """Returns the senders, in their order, and what they have sent."""
    if place.place != 0:
        for i in range(2):
            dist.send(place.x(4) + 10 * i, place.members[0])
        return None
    found = []
    for _ in range(2 * (place.size - 1)):
        tensor = place.blank(4)
        if later:
            work = dist.irecv(tensor)
            work.wait()
            sender = work._source_rank()
        else:
            sender = dist.recv(tensor)
        found.append([sender, tensor.tolist()])
    return sorted(found)


def objects(place: Any) -> Any:
    if place.place == 1:
        return dist.send_object_list(["of", place.rank], place.members[0])
    if place.place == 0:
        received = [None, None]
        sender = dist.recv_object_list(received, place.members[1])
        return sender, received
    return None


# fmt: off
CASES = [
    Case("send", "round a ring", lambda p: ring(p, dist.send, dist.recv)),
    Case("recv", "gives the sender", lambda p: dist.send(p.x(2), p.next) if p.rank == p.members[0] else dist.recv(p.blank(2), p.previous) if p.rank == p.members[1] else None),
    Case("isend", "round a ring", lambda p: (o := p.blank(3), [dist.isend(p.x(3), p.next), dist.irecv(o, p.previous)])),
    Case("irecv", "by ranks in the group", lambda p: (o := p.blank(3), [dist.isend(p.x(3), group_dst=p.next), dist.irecv(o, group_src=p.previous)])),
    Case("isend", "tags tell messages apart", lambda p: (o := [p.blank(2), p.blank(2)], [dist.isend(p.x(2), p.next, tag=7), dist.isend(p.x(2) + 10, p.next, tag=8), dist.irecv(o[1], p.previous, tag=8), dist.irecv(o[0], p.previous, tag=7)])),
    Case("isend", "in their order", lambda p: (o := [p.blank(2) for _ in range(5)], [dist.isend(p.x(2) + i, p.next) for i in range(5)], [dist.irecv(each, p.previous) for each in o])),
    Case("isend", "of complex64", lambda p: (o := p.blank(3, dtype=torch.complex64), [dist.isend(p.x(3, dtype=torch.complex64), p.next), dist.irecv(o, p.previous)])),
    Case("isend", "nothing", lambda p: (o := p.blank(0), [dist.isend(p.x(0), p.next), dist.irecv(o, p.previous)])),
    Case("send", "to itself", lambda p: dist.send(p.x(2), p.rank)),
    Case("recv", "from whoever sends", lambda p: from_anyone(p)),
    Case("irecv", "from whoever sends", lambda p: from_anyone(p, later=True)),
    Case("batch_isend_irecv", "round a ring", lambda p: (o := p.blank(3), dist.batch_isend_irecv([dist.P2POp(dist.isend, p.x(3), p.next), dist.P2POp(dist.irecv, o, p.previous)]))),
    Case("batch_isend_irecv", "between all", lambda p: (o := p.blanks(2), dist.batch_isend_irecv([dist.P2POp(op, o[i] if op is dist.irecv else p.x(2), i, tag=1) for i in p.members if i != p.rank for op in (dist.irecv, dist.isend)]))),
    Case("batch_isend_irecv", "nothing", lambda p: dist.batch_isend_irecv([])),
    Case("send_object_list", "two", objects),
    Case("recv_object_list", "two", objects),
]
# fmt: on
