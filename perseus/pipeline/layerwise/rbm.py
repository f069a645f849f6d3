"""Restricted Boltzmann machines, trained by contrastive divergence.

The energy of a pair of rows is E(v, h) = -v W h - a v - b h, plus v^2 / 2 for Gaussian v. The
update is that of Hinton, "A practical guide to training restricted Boltzmann machines" (2010), and
of equations 2 to 4 in the paper on pipelines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from perseus.pipeline.layerwise.stage import Stage

__all__ = ["RBM"]

VISIBLE = ("binary", "bipolar", "gaussian")
HIDDEN = ("binary", "bipolar")
#: Share of the updates after which momentum has its second value: 5 of 20 epochs.
SETTLED = 0.25


class RBM(Stage):
    """A restricted Boltzmann machine of visible and hidden units, trained by CD-k.

    Units are "binary" (0 and 1, with a logistic mean), "bipolar" (-1 and 1, with mean tanh), or,
    if visible, "gaussian" (real numbers of variance 1; standardise the input to mean 0 and
    variance 1). Input of binary units may be anything from 0 to 1, of bipolar ones from -1 to 1.

    What goes forward is the mean of the hidden units given the batch, which CD-k has computed for
    its first statistics anyway. The next stage, if it is an RBM, copies the hidden units' bias.

    Args:
      cd: k, the number of steps of Gibbs sampling.
      learning_rate: at the first and the last update; in between it is on the straight line.
      momentum: in the first quarter of the updates, and afterwards.
      weight_decay: the L2 penalty of the weights. Biases have none.
      sample_visible: draws the visible units of a reconstruction instead of taking their mean.
        Hinton's guide takes the mean, which is less noisy; drawn ones are true Gibbs sampling.
      seed: for the initial weights, from N(0, 0.01^2), and for all that is drawn later.

    Raises ValueError and TypeError for arguments that make no sense.
    """

    def __init__(
        self,
        visible: int,
        hidden: int,
        *,
        visible_units: str = "binary",
        hidden_units: str = "binary",
        cd: int = 1,
        learning_rate: tuple[float, float] | float = (0.015, 0.002),
        momentum: tuple[float, float] | float = (0.5, 0.9),
        weight_decay: float = 0.0002,
        sample_visible: bool = False,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        _check_positive("visible", visible)
        _check_positive("hidden", hidden)
        _check_positive("cd", cd)
        _check_choice("visible_units", visible_units, VISIBLE)
        _check_choice("hidden_units", hidden_units, HIDDEN)
        self.visible_units, self.hidden_units = visible_units, hidden_units
        self.cd = cd
        self.learning_rate = _pair("learning_rate", learning_rate)
        self.momentum = _pair("momentum", momentum)
        if max(self.momentum) >= 1:
            raise ValueError(f"momentum is {momentum}; it must be below 1")
        self.weight_decay = _pair("weight_decay", weight_decay)[0]
        self.sample_visible = bool(sample_visible)
        self.seed = seed
        self.device = torch.device(device)
        self.input_shape, self.output_shape = (visible,), (hidden,)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._share = 0.0
        self.weight = 0.01 * torch.randn(
            visible, hidden, generator=self._generator, dtype=dtype, device=self.device
        )
        self.visible_bias = self.weight.new_zeros(visible)
        self.hidden_bias = self.weight.new_zeros(hidden)
        self._velocity = {
            name: torch.zeros_like(value) for name, value in self.parameters().items()
        }

    def parameters(self) -> Mapping[str, torch.Tensor]:
        """weight [visible, hidden], visible_bias [visible], hidden_bias [hidden]."""
        return {
            "weight": self.weight,
            "visible_bias": self.visible_bias,
            "hidden_bias": self.hidden_bias,
        }

    def progress(self, share: float) -> None:
        self._share = share

    def train(self, batch: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        """One update by CD-k. Returns the hidden means given the batch: the middle result."""
        with torch.no_grad():
            hidden = self.hidden_mean(batch)
            reconstruction = self.reconstruct(hidden)
            self._update(batch, hidden, reconstruction, self.hidden_mean(reconstruction))
        return hidden

    def reconstruct(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the visible units [rows, visible] after k steps from the hidden means."""
        visible = self._visible(self._drawn(hidden, self.hidden_units))
        for _ in range(self.cd - 1):
            visible = self._visible(self._drawn(self.hidden_mean(visible), self.hidden_units))
        return visible

    def hidden_mean(self, visible: torch.Tensor) -> torch.Tensor:
        """Returns the mean of the hidden units [rows, hidden] given visible ones: equation 1."""
        return _mean(torch.addmm(self.hidden_bias, visible, self.weight), self.hidden_units)

    def visible_mean(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the mean of the visible units [rows, visible] given hidden ones."""
        return _mean(torch.addmm(self.visible_bias, hidden, self.weight.T), self.visible_units)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.hidden_mean(batch)

    def _visible(self, hidden: torch.Tensor) -> torch.Tensor:
        mean = self.visible_mean(hidden)
        return self._drawn(mean, self.visible_units) if self.sample_visible else mean

    def _drawn(self, mean: torch.Tensor, units: str) -> torch.Tensor:
        if units == "gaussian":
            noise = torch.empty_like(mean).normal_(generator=self._generator)
            return noise.add_(mean)
        uniform = torch.empty_like(mean).uniform_(generator=self._generator)
        if units == "binary":
            return uniform.lt_(mean)
        return uniform.mul_(2).sub_(1).lt_(mean).mul_(2).sub_(1)

    def _update(
        self, v0: torch.Tensor, h0: torch.Tensor, vk: torch.Tensor, hk: torch.Tensor
    ) -> None:
        """Equations 2 to 4, as means over the rows, with momentum and weight decay."""
        first, last = self.learning_rate
        rate = first + (last - first) * self._share
        momentum = self.momentum[self._share >= SETTLED]
        step = rate / len(v0)
        velocity = self._velocity
        velocity["weight"].mul_(momentum).add_(self.weight, alpha=-rate * self.weight_decay)
        velocity["weight"].addmm_(v0.T, h0, alpha=step).addmm_(vk.T, hk, alpha=-step)
        velocity["visible_bias"].mul_(momentum).add_((v0 - vk).sum(0), alpha=step)
        velocity["hidden_bias"].mul_(momentum).add_((h0 - hk).sum(0), alpha=step)
        for name, parameter in self.parameters().items():
            parameter.add_(velocity[name])

    def copied(self) -> Mapping[str, torch.Tensor]:
        """The bias of the hidden layer, whose copy is the next stage's visible layer."""
        return {"bias": self.hidden_bias}

    def follow(self, copied: Mapping[str, torch.Tensor]) -> None:
        """Sets the bias of the copy to that of the original. Own updates end here."""
        if "bias" in copied:
            self.visible_bias.copy_(copied["bias"])

    def misfit(self, previous: Stage) -> str | None:
        why = super().misfit(previous)
        if why or not isinstance(previous, RBM):
            return why
        if self.visible_units not in ("gaussian", previous.hidden_units):
            return (
                f"its visible units are {self.visible_units}, and the hidden ones that they copy "
                f"are {previous.hidden_units}"
            )
        return None

    def module(self) -> torch.nn.Module:
        """A linear layer with the weights and the hidden bias, and sigmoid or tanh."""
        visible, hidden = self.weight.shape
        linear = torch.nn.Linear(visible, hidden, dtype=self.weight.dtype, device=self.device)
        with torch.no_grad():
            linear.weight.copy_(self.weight.T)
            linear.bias.copy_(self.hidden_bias)
        is_binary = self.hidden_units == "binary"
        return torch.nn.Sequential(linear, torch.nn.Sigmoid() if is_binary else torch.nn.Tanh())

    def state_dict(self) -> dict[str, Any]:
        return {
            "parameters": {name: value.clone() for name, value in self.parameters().items()},
            "velocity": {name: value.clone() for name, value in self._velocity.items()},
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in self.parameters().items():
            value.copy_(state["parameters"][name])
            self._velocity[name].copy_(state["velocity"][name])
        self._generator.set_state(state["generator"])

    def describe(self) -> str:
        visible, hidden = self.weight.shape
        drawn = ", sampled" if self.sample_visible else ""
        return (
            f"RBM of {visible} {self.visible_units} and {hidden} {self.hidden_units} units, "
            f"{self.weight.dtype}, CD-{self.cd}{drawn}, learning rate {self.learning_rate}, "
            f"momentum {self.momentum}, weight decay {self.weight_decay}, seed {self.seed}"
        )


def _mean(inputs: torch.Tensor, units: str) -> torch.Tensor:
    if units == "binary":
        return inputs.sigmoid_()
    return inputs.tanh_() if units == "bipolar" else inputs


def _check_positive(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; it must be a whole number")
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be 1 or more")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")


def _pair(name: str, value: tuple[float, float] | float) -> tuple[float, float]:
    pair = (value, value) if isinstance(value, (int, float)) else tuple(value)
    if len(pair) != 2 or not all(0 <= one < float("inf") for one in pair):
        raise ValueError(f"{name} is {value}; it must be one or two numbers of at least 0")
    return float(pair[0]), float(pair[1])
