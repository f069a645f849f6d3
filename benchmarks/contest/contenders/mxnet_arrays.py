"""The part that contenders on MXNet share: its arrays; reading one waits for its value."""

from __future__ import annotations

import mxnet as mx


class MXNetContender:
    rank: int
    size: int

    def tensor(self, elements: int) -> mx.nd.NDArray:
        return mx.nd.ones((elements,))

    def fill(self, tensor: mx.nd.NDArray, value: float) -> None:
        tensor[:] = value

    def wait(self, handle: mx.nd.NDArray) -> None:
        handle.wait_to_read()
