"""The gradients of well-known models, in forward order, and the compute cost of each layer.

The tables follow the published architectures: ResNet-50 (He et al. 2015, with the stride in the 3x3
convolution, as in torchvision), VGG-16 (Simonyan and Zisserman 2014, configuration D), GoogLeNet
(Szegedy et al. 2014, as in torchvision: batch normalisation, 3x3 for 5x5, no auxiliary heads), BERT
(Devlin et al. 2018, uncased, with pooler), all with 1,000 classes and images of 224 x 224, or
sequences of 128 tokens.

A layer's gradients are complete at one moment, so a convolution and its normalisation are one
layer. Its cost is the number of multiplications and additions in its matrix products for one
example; backward needs twice as many as forward. Embeddings, normalisations and activations cost
nothing here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

IMAGE = 224
CLASSES = 1000
TOKENS = 128
VOCABULARY = 30_522
POSITIONS = 512


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layer:
    """`flop`: floating-point operations of the forward pass, for one example."""

    name: str
    tensors: tuple[Tensor, ...]
    flop: float

    @property
    def elements(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)


@dataclass(frozen=True)
class Model:
    """`batch`: examples on each rank in a step, in the compute profile."""

    name: str
    layers: tuple[Layer, ...]
    batch: int

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for layer in self.layers for tensor in layer.tensors]

    @property
    def elements(self) -> int:
        return sum(layer.elements for layer in self.layers)

    @property
    def flop(self) -> float:
        return sum(layer.flop for layer in self.layers)


def with_bias(name: str, outputs: int, *inputs: int) -> tuple[Tensor, ...]:
    return (Tensor(f"{name}.weight", (outputs, *inputs)), Tensor(f"{name}.bias", (outputs,)))


def linear(name: str, inputs: int, outputs: int, times: int = 1) -> Layer:
    """`times`: how often one example passes through it, such as once for each token."""
    return Layer(name, with_bias(name, outputs, inputs), 2.0 * inputs * outputs * times)


def convolution(name: str, inputs: int, outputs: int, kernel: int, side: int) -> Layer:
    """`side` is the side of the result."""
    flop = 2.0 * inputs * outputs * kernel**2 * side**2
    return Layer(name, with_bias(name, outputs, inputs, kernel, kernel), flop)


def normalised_convolution(
    names: tuple[str, str], inputs: int, outputs: int, kernel: int, side: int
) -> Layer:
    """A convolution without bias, and batch normalisation."""
    weight = Tensor(f"{names[0]}.weight", (outputs, inputs, kernel, kernel))
    flop = 2.0 * weight.elements * side**2
    return Layer(names[0], (weight, *with_bias(names[1], outputs)), flop)


def vgg_16() -> Iterator[Layer]:
    channels, side, index = 3, IMAGE, 0
    for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            yield convolution(f"features.{index}", channels, width, 3, side)
            channels = width
            index += 2  # an activation between
        side //= 2
        index += 1
    for i, inputs, outputs in (0, 512 * 7 * 7, 4096), (3, 4096, 4096), (6, 4096, CLASSES):
        yield linear(f"classifier.{i}", inputs, outputs)


def resnet_50() -> Iterator[Layer]:
    side = IMAGE // 2
    yield normalised_convolution(("conv1", "bn1"), 3, 64, 7, side)
    side //= 2  # pooling
    channels = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(blocks):
            before = side
            if block == 0 and stage > 1:
                side //= 2
            name = f"layer{stage}.{block}"
            sizes = (
                (channels, width, 1, before),
                (width, width, 3, side),
                (width, 4 * width, 1, side),
            )
            for i, size in enumerate(sizes, 1):
                yield normalised_convolution((f"{name}.conv{i}", f"{name}.bn{i}"), *size)
            if block == 0:
                names = (f"{name}.downsample.0", f"{name}.downsample.1")
                yield normalised_convolution(names, channels, 4 * width, 1, side)
            channels = 4 * width
    yield linear("fc", channels, CLASSES)


#: Inception modules: name, side, then the widths of the branches: 1x1; 3x3 after a reduction; the
#: second 3x3 after a reduction; 1x1 after pooling.
INCEPTIONS = (
    ("3a", 28, 64, (96, 128), (16, 32), 32),
    ("3b", 28, 128, (128, 192), (32, 96), 64),
    ("4a", 14, 192, (96, 208), (16, 48), 64),
    ("4b", 14, 160, (112, 224), (24, 64), 64),
    ("4c", 14, 128, (128, 256), (24, 64), 64),
    ("4d", 14, 112, (144, 288), (32, 64), 64),
    ("4e", 14, 256, (160, 320), (32, 128), 128),
    ("5a", 7, 256, (160, 320), (32, 128), 128),
    ("5b", 7, 384, (192, 384), (48, 128), 128),
)


def googlenet() -> Iterator[Layer]:
    def block(name: str, inputs: int, outputs: int, kernel: int, side: int) -> Layer:
        return normalised_convolution((f"{name}.conv", f"{name}.bn"), inputs, outputs, kernel, side)

    yield block("conv1", 3, 64, 7, 112)
    yield block("conv2", 64, 64, 1, 56)
    yield block("conv3", 64, 192, 3, 56)
    channels = 192
    for name, side, single, second, third, pooled in INCEPTIONS:
        module = f"inception{name}"
        yield block(f"{module}.branch1", channels, single, 1, side)
        for branch, (reduced, width) in (2, second), (3, third):
            yield block(f"{module}.branch{branch}.0", channels, reduced, 1, side)
            yield block(f"{module}.branch{branch}.1", reduced, width, 3, side)
        yield block(f"{module}.branch4.1", channels, pooled, 1, side)
        channels = single + second[1] + third[1] + pooled
    yield linear("fc", channels, CLASSES)


def bert(hidden: int, blocks: int) -> Iterator[Layer]:
    def norm(name: str) -> tuple[Tensor, ...]:
        return with_bias(f"{name}.LayerNorm", hidden)

    tables = ("word", VOCABULARY), ("position", POSITIONS), ("token_type", 2)
    embeddings = tuple(
        Tensor(f"embeddings.{name}_embeddings.weight", (rows, hidden)) for name, rows in tables
    )
    yield Layer("embeddings", (*embeddings, *norm("embeddings")), 0.0)
    for i in range(blocks):
        name = f"encoder.layer.{i}"
        for part in ("query", "key", "value"):
            yield linear(f"{name}.attention.self.{part}", hidden, hidden, TOKENS)
        out = linear(f"{name}.attention.output.dense", hidden, hidden, TOKENS)
        scores = 2 * 2.0 * TOKENS**2 * hidden  # queries by keys, weights by values
        attention_norm = norm(f"{name}.attention.output")
        yield Layer(out.name, (*out.tensors, *attention_norm), out.flop + scores)
        yield linear(f"{name}.intermediate.dense", hidden, 4 * hidden, TOKENS)
        out = linear(f"{name}.output.dense", 4 * hidden, hidden, TOKENS)
        yield Layer(out.name, (*out.tensors, *norm(f"{name}.output")), out.flop)
    yield linear("pooler.dense", hidden, hidden)


def ctr(tensors: int = 4000, least: int = 16, most: int = 16_384) -> Iterator[Layer]:
    """Resembles a model of click-through rates: small tensors, one for each of very many features.

    The logarithms of the sizes are uniform between those of `least` and `most` elements, from a
    generator with a fixed seed; half of the tensors have fewer than 512 elements. Each element is
    used once in an example.
    """
    draw = random.Random(4000)
    for i in range(tensors):
        elements = round(math.exp(draw.uniform(math.log(least), math.log(most))))
        yield Layer(f"feature.{i}", (Tensor(f"feature.{i}.weight", (elements,)),), 2.0 * elements)


#: Name: how its layers are made, and examples in a step on each rank.
_BUILDERS: dict[str, tuple[Callable[[], Iterator[Layer]], int]] = {
    "resnet50": (resnet_50, 64),
    "vgg16": (vgg_16, 64),
    "googlenet": (googlenet, 128),
    "bert-base": (lambda: bert(768, 12), 64),
    "bert-large": (lambda: bert(1024, 24), 64),
    "ctr": (ctr, 4096),
}
NAMES = tuple(_BUILDERS)


@cache
def model(name: str) -> Model:
    builder, batch = _BUILDERS[name]
    return Model(name, tuple(builder()), batch)


@dataclass(frozen=True)
class Accelerator:
    """Computes the layers at a rate that is the same for every layer."""

    name: str
    tflop_per_second: float


#: An NVIDIA V100 in float32: two thirds of its peak of 15.7. Trains ResNet-50 at 400 images/s.
V100 = Accelerator("V100, float32, 10 TFLOP/s sustained", 10.0)


def forward_seconds(
    of: Model, accelerator: Accelerator = V100, slowdown: float = 1.0
) -> list[float]:
    """Seconds of each layer's forward pass; backward takes twice as long.

    `slowdown` stretches time: on links of 1 Gbit/s, 10 corresponds to the real accelerator on links
    of 10 Gbit/s.
    """
    rate = accelerator.tflop_per_second * 1e12
    return [layer.flop * of.batch * slowdown / rate for layer in of.layers]
