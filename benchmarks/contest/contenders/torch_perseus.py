"""torch.distributed with Perseus as its backend."""

from contest.contenders import torch_gloo


class Contender(torch_gloo.Contender):
    def __init__(self) -> None:
        import perseus.torch  # noqa: F401  registers the backend

        super().__init__("perseus")
