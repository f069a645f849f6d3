"""Stages that learn from a loss of their own by back-propagation within the stage.

LocalLoss is a part of a network with an auxiliary head, as in decoupled greedy learning
(Belilovsky, Eickenberg and Oyallon, ICML 2020). An Autoencoder's head is its decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from perseus.pipeline.layerwise.stage import Shape, Stage

__all__ = ["Autoencoder", "LocalLoss"]

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
MakeOptimizer = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]


class LocalLoss(Stage):
    """Any module, trained by a loss on what an auxiliary head makes of its result.

    What goes forward is the module's result, detached, as the loss has seen it. The head stays
    behind: it is not part of the network that is fine-tuned.

    Random numbers that the module or the head draw from PyTorch's generator for the CPU, such as
    dropout's, come from a stream of the stage's own.

    Args:
      module: [rows, ...] to [rows, ...].
      head: takes the module's result; loss(head(result), target) must be a scalar.
      optimizer: makes the optimizer of the parameters of module and head.
      seed: of the stage's random numbers.
      input_shape, output_shape: of one row, if the shapes of neighbours shall be compared.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        head: torch.nn.Module,
        loss: Loss,
        optimizer: MakeOptimizer,
        *,
        seed: int = 0,
        input_shape: Shape | None = None,
        output_shape: Shape | None = None,
    ) -> None:
        self._module, self.head, self._loss = module, head, loss
        self.optimizer = optimizer([*module.parameters(), *head.parameters()])
        self.input_shape, self.output_shape = input_shape, output_shape
        self.device = next((p.device for p in module.parameters()), torch.device("cpu"))
        self.seed = seed
        self._random = torch.Generator().manual_seed(seed).get_state()

    def train(self, batch: torch.Tensor, target: torch.Tensor | None) -> torch.Tensor:
        if target is None:
            raise ValueError("target is None; the data must be pairs of a batch and its target")
        return self._step(batch, batch, target.to(self.device))

    def _step(
        self, batch: torch.Tensor, inputs: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        self._module.train()
        self.head.train()
        with self._own_random_numbers():
            self.optimizer.zero_grad()
            result = self._module(inputs)
            self._loss(self.head(result), target).backward()
            self.optimizer.step()
        return result.detach()

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        others = torch.get_rng_state()
        torch.set_rng_state(self._random)
        try:
            yield
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(others)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self._module.eval()
        with torch.no_grad():
            result: torch.Tensor = self._module(batch)
            return result

    def parameters(self) -> Mapping[str, torch.Tensor]:
        """The module's parameters and buffers, without those of the head."""
        state: dict[str, torch.Tensor] = self._module.state_dict()
        return state

    def module(self) -> torch.nn.Module:
        """The module itself."""
        return self._module

    def state_dict(self) -> dict[str, Any]:
        state = {
            "module": self._module.state_dict(),
            "head": self.head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        return {**_cloned(state), "random": self._random.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._module.load_state_dict(state["module"])
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._random = state["random"].clone()

    def describe(self) -> str:
        kinds = f"{type(self).__name__} of {_line(self._module)} and {_line(self.head)}"
        return f"{kinds}, {_line(self.optimizer)}, seed {self.seed}"


class Autoencoder(LocalLoss):
    """An encoder, trained to let a decoder restore its input.

    What goes forward is the code.

    Args:
      encoder, decoder: [rows, ...] to [rows, ...]; the decoder restores the encoder's input.
      loss: of the decoder's result and the input.
      noise: the standard deviation of Gaussian noise that is added to the encoder's input in
        training, for a denoising autoencoder. The code that goes forward is then that of the noisy
        input.
    """

    def __init__(
        self,
        encoder: torch.nn.Module,
        decoder: torch.nn.Module,
        optimizer: MakeOptimizer,
        *,
        loss: Loss = torch.nn.functional.mse_loss,
        noise: float = 0.0,
        seed: int = 0,
        input_shape: Shape | None = None,
        output_shape: Shape | None = None,
    ) -> None:
        if not 0 <= noise < float("inf"):
            raise ValueError(f"noise is {noise}; it must be a number of at least 0")
        shapes = {"input_shape": input_shape, "output_shape": output_shape}
        super().__init__(encoder, decoder, loss, optimizer, seed=seed, **shapes)
        self.noise = noise

    def train(self, batch: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        inputs = batch
        if self.noise:
            with self._own_random_numbers():
                inputs = batch + self.noise * torch.randn(batch.shape, dtype=batch.dtype).to(batch)
        return self._step(batch, inputs, batch)

    def describe(self) -> str:
        return f"{super().describe()}, noise {self.noise}"


def _line(part: object) -> str:
    return " ".join(repr(part).split())


def _cloned(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {key: _cloned(value) for key, value in state.items()}
    return [_cloned(value) for value in state] if isinstance(state, list) else state
