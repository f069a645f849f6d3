"""RBMs of perseus.pipeline.layerwise, against float64 references written in NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from perseus.pipeline.layerwise import RBM  # noqa: E402

KINDS = [
    ("binary", "binary"),
    ("gaussian", "binary"),
    ("bipolar", "bipolar"),
    ("gaussian", "bipolar"),
]
PLAIN = {"learning_rate": 1.0, "momentum": 0.0, "weight_decay": 0.0}


def mean(inputs: np.ndarray, units: str) -> np.ndarray:
    if units == "binary":
        return 1 / (1 + np.exp(-inputs))
    return np.tanh(inputs) if units == "bipolar" else inputs


def made(visible: int, hidden: int, units: tuple[str, str], **options: Any) -> RBM:
    """An RBM in float64 with parameters that are far from 0."""
    rbm = RBM(
        visible,
        hidden,
        visible_units=units[0],
        hidden_units=units[1],
        dtype=torch.float64,
        **options,
    )
    random = torch.Generator().manual_seed(5)
    for value in rbm.parameters().values():
        value.copy_(0.4 * torch.randn(value.shape, generator=random, dtype=torch.float64))
    return rbm


def arrays(rbm: RBM) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in rbm.parameters().items()}


class Reference:
    """Contrastive divergence as the papers write it, one row at a time."""

    def __init__(self, rbm: RBM, units: tuple[str, str], cd: int, sampled: bool, seed: int) -> None:
        self.p, self.units, self.cd, self.sampled = arrays(rbm), units, cd, sampled
        self.velocity = {name: np.zeros_like(value) for name, value in self.p.items()}
        # The same stream of numbers as the RBM's, after its initial weights.
        self.generator = torch.Generator().manual_seed(seed)
        torch.randn(*self.p["weight"].shape, generator=self.generator, dtype=torch.float64)

    def drawn(self, means: np.ndarray, units: str) -> np.ndarray:
        out = torch.empty(means.shape, dtype=torch.float64)
        if units == "gaussian":
            return means + out.normal_(generator=self.generator).numpy()
        uniform = out.uniform_(generator=self.generator).numpy()
        if units == "binary":
            return (uniform < means).astype(float)
        return np.where(uniform < (1 + means) / 2, 1.0, -1.0)

    def step(self, v0: np.ndarray, rate: float, momentum: float, decay: float) -> np.ndarray:
        weight, a, b = self.p["weight"], self.p["visible_bias"], self.p["hidden_bias"]
        hidden = mean(v0 @ weight + b, self.units[1])
        means = hidden
        for _ in range(self.cd):
            visible = mean(self.drawn(means, self.units[1]) @ weight.T + a, self.units[0])
            if self.sampled:
                visible = self.drawn(visible, self.units[0])
            means = mean(visible @ weight + b, self.units[1])
        gradients = {
            "weight": sum(
                np.outer(v, h) - np.outer(w, g)
                for v, h, w, g in zip(v0, hidden, visible, means, strict=True)
            )
            / len(v0)
            - decay * weight,
            "visible_bias": (v0 - visible).mean(0),
            "hidden_bias": (hidden - means).mean(0),
        }
        for name, gradient in gradients.items():
            self.velocity[name] = momentum * self.velocity[name] + rate * gradient
            self.p[name] = self.p[name] + self.velocity[name]
        return hidden


@pytest.mark.parametrize("units", KINDS, ids="-".join)
@pytest.mark.parametrize(("cd", "sampled"), [(1, False), (1, True), (3, False), (3, True)])
def test_updates_are_those_of_a_numpy_reference(
    units: tuple[str, str], cd: int, sampled: bool
) -> None:
    options = {"learning_rate": (0.2, 0.05), "momentum": (0.5, 0.9), "weight_decay": 0.01}
    rbm = made(7, 5, units, cd=cd, sample_visible=sampled, seed=3, **options)
    reference = Reference(rbm, units, cd, sampled, seed=3)
    data = np.random.default_rng(0).uniform(0, 1, (6, 4, 7))
    for step, rows in enumerate(data):
        share = step / 5
        rbm.progress(share)
        middle = rbm.train(torch.from_numpy(rows))
        rate = 0.2 + share * (0.05 - 0.2)
        expected = reference.step(rows, rate, 0.5 if share < 0.25 else 0.9, 0.01)
        np.testing.assert_allclose(middle.numpy(), expected, rtol=1e-12)
        for name, value in arrays(rbm).items():
            np.testing.assert_allclose(value, reference.p[name], rtol=1e-10, atol=1e-12)


def states(count: int, units: str) -> np.ndarray:
    values = (0.0, 1.0) if units == "binary" else (-1.0, 1.0)
    return np.array(list(itertools.product(values, repeat=count)))


def exact_model_means(p: dict[str, np.ndarray], units: tuple[str, str]) -> dict[str, np.ndarray]:
    """The expectations of v h, v and h in the model, by enumeration of all its states.

    Of Gaussian visible units, the states of the hidden ones are enumerated: v given h is normal
    around h W^T + a, so the weight of h is exp(b h + |h W^T + a|^2 / 2).
    """
    weight, a, b = p["weight"], p["visible_bias"], p["hidden_bias"]
    h = states(len(b), units[1])
    if units[0] == "gaussian":
        v_given_h = h @ weight.T + a
        weights = np.exp(h @ b + (v_given_h**2).sum(1) / 2)
        weights /= weights.sum()
        return {
            "weight": np.einsum("n,ni,nj->ij", weights, v_given_h, h),
            "visible_bias": weights @ v_given_h,
            "hidden_bias": weights @ h,
        }
    v = states(len(a), units[0])
    joint = np.exp(v @ weight @ h.T + (v @ a)[:, None] + (h @ b)[None])
    joint /= joint.sum()
    return {
        "weight": np.einsum("nm,ni,mj->ij", joint, v, h),
        "visible_bias": joint.sum(1) @ v,
        "hidden_bias": joint.sum(0) @ h,
    }


@pytest.mark.parametrize("units", KINDS, ids="-".join)
def test_many_steps_give_the_exact_gradient_of_the_likelihood(units: tuple[str, str]) -> None:
    rows = 200_000
    rbm = made(4, 3, units, cd=25, sample_visible=True, seed=1, **PLAIN)
    before = arrays(rbm)
    v = np.random.default_rng(1).integers(0, 2, (rows, 4)).astype(float)
    v[:, 1] = v[:, 0]  # something to learn
    if units[0] == "bipolar":
        v = 2 * v - 1
    h = mean(v @ before["weight"] + before["hidden_bias"], units[1])
    of_data = {
        "weight": v.T @ h / rows,
        "visible_bias": v.mean(0),
        "hidden_bias": h.mean(0),
    }
    of_model = exact_model_means(before, units)
    rbm.train(torch.from_numpy(v))
    # Five standard errors of a mean over the rows.
    deviation = {"binary": 0.5, "bipolar": 1.0, "gaussian": 1.5}[units[0]]
    tolerance = 5 * deviation / rows**0.5
    gradients = {name: of_data[name] - of_model[name] for name in before}
    for name, after in arrays(rbm).items():
        np.testing.assert_allclose(after - before[name], gradients[name], atol=tolerance)
    assert np.abs(gradients["weight"]).max() > 3 * tolerance  # so that the test can fail


@pytest.mark.parametrize("units", [("binary", "binary"), ("bipolar", "bipolar")], ids="-".join)
def test_one_step_is_contrastive_divergence_in_the_mean(units: tuple[str, str]) -> None:
    """The expected update of CD-1, by enumeration of the hidden states that may be drawn."""
    rows = 100_000
    rbm = made(4, 3, units, seed=2, **PLAIN)
    p = arrays(rbm)
    v0 = np.array([1.0, 0.0, 1.0, 1.0])
    h0 = mean(v0 @ p["weight"] + p["hidden_bias"], units[1])
    h = states(3, units[1])
    up = h0 if units[1] == "binary" else (1 + h0) / 2
    chance = np.where(h > 0, up, 1 - up).prod(1)
    v1 = mean(h @ p["weight"].T + p["visible_bias"], units[0])
    h1 = mean(v1 @ p["weight"] + p["hidden_bias"], units[1])
    expected = {
        "weight": np.outer(v0, h0) - np.einsum("n,ni,nj->ij", chance, v1, h1),
        "visible_bias": v0 - chance @ v1,
        "hidden_bias": h0 - chance @ h1,
    }
    rbm.train(torch.from_numpy(np.tile(v0, (rows, 1))))
    for name, after in arrays(rbm).items():
        np.testing.assert_allclose(after - p[name], expected[name], atol=5 / rows**0.5)


def test_the_bias_of_a_copy_is_the_originals_until_the_next_update() -> None:
    lower, upper = RBM(6, 5, seed=1), RBM(5, 4, seed=2)
    lower.train(torch.rand(8, 6))
    upper.follow(lower.copied())
    assert torch.equal(upper.visible_bias, lower.hidden_bias)
    upper.train(torch.rand(8, 5))
    assert not torch.equal(upper.visible_bias, lower.hidden_bias)
    upper.follow({})  # a stage that has nothing to copy
    assert not torch.equal(upper.visible_bias, lower.hidden_bias)


def test_the_middle_result_is_from_before_the_update_and_stays() -> None:
    rbm = RBM(6, 5, learning_rate=1.0)
    rows = torch.rand(8, 6)
    expected = rbm.forward(rows)
    result = rbm.train(rows)
    assert torch.equal(result, expected)
    rbm.train(rows)
    assert torch.equal(result, expected)
    assert not torch.equal(rbm.forward(rows), expected)


def test_a_seed_decides_all_that_is_drawn() -> None:
    def trained(seed: int) -> torch.Tensor:
        torch.rand(3)  # PyTorch's own generator has no part in it
        rbm = RBM(6, 5, seed=seed)
        rbm.train(torch.linspace(0, 1, 48).view(8, 6))
        return rbm.weight

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))


def test_a_restored_rbm_goes_on_as_the_original_would() -> None:
    rows = torch.rand(8, 6)
    one, other = RBM(6, 5, seed=1), RBM(6, 5, seed=2)
    one.train(rows)
    state = one.state_dict()
    one.train(rows)
    other.load_state_dict(state)
    other.train(rows)
    assert torch.equal(one.weight, other.weight)
    assert torch.equal(one.visible_bias, other.visible_bias)


@pytest.mark.parametrize("hidden", ["binary", "bipolar"])
def test_the_layer_of_the_network_computes_what_goes_forward(hidden: str) -> None:
    rbm = RBM(6, 5, hidden_units=hidden)
    rows = torch.rand(8, 6)
    rbm.train(rows)
    layer = rbm.module()
    torch.testing.assert_close(layer(rows), rbm.forward(rows))
    rbm.train(rows)
    assert not torch.equal(layer(rows), rbm.forward(rows))  # its parameters are its own


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((0, 5), {}, r"visible is 0; it must be 1 or more"),
        ((6, 2.5), {}, r"hidden is 2.5; it must be a whole number"),
        ((6, 5), {"cd": 0}, r"cd is 0; it must be 1 or more"),
        ((6, 5), {"visible_units": "real"}, r"visible_units is 'real'; it must be one of binary,"),
        ((6, 5), {"hidden_units": "gaussian"}, r"hidden_units is 'gaussian'; it must be one of"),
        ((6, 5), {"learning_rate": -1.0}, r"learning_rate is -1.0; it must be one or two numbers"),
        ((6, 5), {"learning_rate": (1, 2, 3)}, r"learning_rate is \(1, 2, 3\); it must be one or"),
        ((6, 5), {"momentum": 1.0}, r"momentum is 1.0; it must be below 1"),
    ],
)
def test_arguments_that_make_no_sense(
    arguments: tuple[Any, Any], options: dict[str, Any], error: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        RBM(*arguments, **options)
