"""Parts of a pipeline that one process can test: cutting, balancing, backward in two parts."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from perseus.pipeline import split_backward  # noqa: E402
from perseus.pipeline.balance import balanced_starts, layer_seconds  # noqa: E402
from perseus.pipeline.codecs import CODECS, find_codec  # noqa: E402
from perseus.pipeline.errors import lost  # noqa: E402
from perseus.pipeline.mesh import find_mesh  # noqa: E402
from perseus.pipeline.packing import pack, unpack  # noqa: E402
from perseus.pipeline.routes import Routes  # noqa: E402
from perseus.pipeline.split import Children  # noqa: E402
from perseus.pipeline.values import cut, described  # noqa: E402
from perseus_core import AbortedError  # noqa: E402


def slowest(layers, starts):
    ends = [*starts[1:], len(layers)]
    return max(sum(layers[begin:end]) for begin, end in zip(starts, ends, strict=True))


def test_no_cut_has_a_faster_slowest_stage():
    luck = random.Random(0)
    for _ in range(200):
        layers = [luck.choice([0.0, 1.0, luck.random() * 5]) for _ in range(luck.randint(1, 9))]
        stages = luck.randint(1, len(layers))
        starts = balanced_starts([layers], stages)
        assert len(starts) == stages and starts[0] == 0
        assert all(one < other for one, other in itertools.pairwise(starts))
        best = min(
            slowest(layers, [0, *others])
            for others in itertools.combinations(range(1, len(layers)), stages - 1)
        )
        assert slowest(layers, starts) == pytest.approx(best)


def test_the_median_of_what_ranks_have_measured_counts():
    assert balanced_starts([[1, 1, 1, 1], [1, 1, 1, 1], [100, 1, 1, 1]], 2) == [0, 2]


def test_too_few_layers_are_an_error():
    with pytest.raises(ValueError, match="can be cut into 2 layers; there must be at least 3"):
        balanced_starts([[1, 1]], 3)


def test_measuring_leaves_a_module_as_it_was():
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 300)
    )
    model[0].weight.grad = torch.full((3, 3), 7.0)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    seconds = layer_seconds(model, torch.rand(5, 3))
    assert len(seconds) == 3 and min(seconds) > 0
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert (model[0].weight.grad == 7).all() and model[2].weight.grad is None


class Twisted(torch.nn.Module):
    """Uses a weight at two nodes that follow each other, one that meets no input, and one twice."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.other = torch.nn.Linear(4, 4)
        self.alone = torch.nn.Parameter(torch.rand(4))
        self.unused = torch.nn.Parameter(torch.rand(4))

    def forward(self, x, y):
        for _ in range(2):
            x = torch.tanh(self.linear(x))
        x = self.other(x) * self.alone.exp() + y
        return torch.nn.functional.layer_norm(x, (4,)), self.alone * 2, y


def make_twisted():
    torch.manual_seed(0)
    module = Twisted().double()
    inputs = [torch.rand(5, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    return module, inputs


@pytest.mark.parametrize("at_nodes", [True, False])
def test_the_two_parts_of_backward_give_what_the_whole_gives(monkeypatch, at_nodes):
    if at_nodes and not split_backward.begins_at_nodes():
        pytest.skip("this PyTorch begins no backward within the graph")
    monkeypatch.setattr(split_backward, "begins_at_nodes", lambda: at_nodes)
    module, inputs = make_twisted()
    outputs = module(*inputs)
    gradients = [torch.rand_like(output) for output in outputs]
    torch.autograd.backward(outputs, gradients)
    expected = {name: one.grad for name, one in module.named_parameters()}

    again, own_inputs = make_twisted()
    outputs = again(*own_inputs)
    split = split_backward.SplitBackward(outputs, gradients, own_inputs)
    for found, whole in zip(split.input_gradients(), inputs, strict=True):
        assert torch.allclose(found, whole.grad, rtol=1e-12, atol=0)
    assert all(one.grad is None for one in again.parameters())
    split.weight_gradients()
    for name, one in again.named_parameters():
        if expected[name] is None:
            assert one.grad is None or not one.grad.any(), name
        else:
            assert torch.allclose(one.grad, expected[name], rtol=1e-12, atol=1e-15), name


@pytest.mark.skipif(
    not split_backward.begins_at_nodes(), reason="this PyTorch begins no backward within the graph"
)
def test_no_part_of_backward_repeats_what_the_other_has_done():
    layers = [torch.nn.Linear(4, 4) for _ in range(3)]
    x = torch.rand(5, 4, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        y = torch.nn.Sequential(*layers)(x)
    split = split_backward.SplitBackward([y.sum()], [None], [x])
    with FlopCounterMode(display=False) as first:
        split.input_gradients()
    with FlopCounterMode(display=False) as second:
        split.weight_gradients()
    flops = [one.get_total_flops() for one in (forward, first, second)]
    assert flops[0] > 0 and flops == [flops[0]] * 3


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (7,), (2, 3, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_codec_keeps_shape_and_dtype(name, shape, dtype):
    value = (torch.rand(shape, dtype=dtype) - 0.5).requires_grad_()
    message = pack((value, 1), CODECS[name])
    found, one = unpack(message)
    assert (found.shape, found.dtype, found.requires_grad, one) == (value.shape, dtype, True, 1)
    bound = {"fp16": 2**-12, "bf16": 2**-9, "int8": 0.5 / 254}[name]
    assert not value.numel() or (found - value).abs().max() <= bound * 1.001


def test_int8_shows_rows_that_are_not_finite_and_keeps_rows_of_zeros():
    table = torch.tensor([[1.0, float("nan")], [float("inf"), 2.0], [0.0, 0.0], [1.0, -2.0]])
    found = unpack(pack(table, CODECS["int8"]))
    assert found[:2].isnan().all()
    assert torch.equal(found[2], table[2]) and (found[3] - table[3]).abs().max() < 0.01


def test_integers_and_halves_travel_as_they_are():
    values = [
        torch.arange(5, dtype=dtype)
        for dtype in (torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.bool)
        if dtype is not torch.bool
    ] + [torch.tensor([True, False])]
    found = unpack(pack(values, CODECS["int8"]))
    assert [one.dtype for one in found] == [one.dtype for one in values]
    assert all(map(torch.equal, found, values))
    assert torch.equal(unpack(pack(values[0], None)), values[0])


def test_codecs_have_names():
    import perseus.torch.horovod as hvd

    assert find_codec(hvd.Compression.fp16) is CODECS["fp16"]
    assert find_codec(hvd.Compression.none) is None
    with pytest.raises(ValueError, match="codec is 'int4'; it must be None or one of fp16, bf16"):
        find_codec("int4")


def test_split_points_are_names_or_numbers_in_order():
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(5)))
    stages = Children(model).cut(["2", 3])
    names = [[name for name, _ in stage.named_children()] for stage in stages]
    assert names == [["0", "1"], ["2"], ["3", "4"]]
    assert stages[2].get_parameter("4.weight") is model[4].weight
    for split, expected in (
        (["x"], "split point 'x' is no child of the module; its children are 0, 1"),
        ([5], "split point 5 is no child"),
        ([3, 2], r"split is \[3, 2\]; it must name the children .* in order"),
        ([0], "so that each stage has one"),
    ):
        with pytest.raises(ValueError, match=expected):
            Children(model).cut(split)


def test_a_mesh_has_each_rank_once():
    assert find_mesh(None, 3).rows == ((0, 1, 2),)
    mesh = find_mesh((2, 3), 6)
    assert mesh.rows == ((0, 1, 2), (3, 4, 5))
    assert mesh.columns() == [[0, 3], [1, 4], [2, 5]] and mesh.place(4) == (1, 1)
    of_torch = SimpleNamespace(
        mesh=torch.tensor([[0, 2], [1, 3]]), mesh_dim_names=("data", "pipeline")
    )
    assert find_mesh(of_torch, 4).rows == ((0, 2), (1, 3))
    with pytest.raises(ValueError, match="it must have each of the 6 once"):
        find_mesh(of_torch, 6)
    of_torch.mesh_dim_names = ("dp", "pp")
    with pytest.raises(ValueError, match=r"dimensions \('dp', 'pp'\); they must be \('data', 'pip"):
        find_mesh(of_torch, 4)
    for wrong, error, expected in (
        ((2, 2), ValueError, r"mesh is \(2, 2\); its product must be the number of ranks, 6"),
        ((-2, -3), ValueError, "its product must be"),
        (6, TypeError, r"mesh is 6; it must be \(data, pipeline\), or a DeviceMesh"),
        ((2.5, 2), TypeError, "mesh is 2.5; it takes a whole number"),
    ):
        with pytest.raises(error, match=expected):
            find_mesh(wrong, 6)


def test_tags_of_two_steps_differ():
    routes = Routes([4, 5, 6], stages=6, microbatches=3, others=4)
    tags = [
        tag
        for step in (7, 8)
        for tag in (
            *(routes.activation(step, border, n) for border in range(6) for n in range(3)),
            *(routes.gradient(step, border, n) for border in range(6) for n in range(3)),
            *(routes.other(step, n) for n in range(4)),
        )
    ]
    assert len(set(tags)) == len(tags) and max(tags) < 2**31
    assert routes.activation(9, 0, 0) == routes.activation(7, 0, 0)
    with pytest.raises(ValueError, match=r"their product must be less than 2\*\*28"):
        Routes([0, 1], stages=2, microbatches=1 << 28)


def test_batches_are_cut_by_their_first_dimension():
    parts = cut("x", (torch.arange(7), {"a": torch.rand(7, 2)}, 5), 3)
    assert [len(part[0]) for part in parts] == [3, 2, 2]
    assert described(parts[0]) == "(int64[3], {a: float32[3, 2]}, 5)"
    for batch, error, expected in (
        (torch.rand(2), ValueError, "x has 2 rows; it must have at least 3, one for each"),
        ((torch.rand(4), torch.rand(5)), ValueError, "must have a first dimension of the same"),
        (torch.tensor(1.0), ValueError, "must have a first dimension"),
        (None, TypeError, "x is None; it must hold a tensor"),
        ({1: torch.rand(3)}, TypeError, "holds dict; it must be made of tensors"),
    ):
        with pytest.raises(error, match=expected):
            cut("x", batch, 3)


def test_the_error_of_a_lost_rank_names_its_stages():
    found = lost(AbortedError("lost rank 1 on a: it has ended"), [[0, 2], [1, 3]])
    assert str(found) == "lost rank 1 on a: it has ended (rank 1 has stages 1, 3 of the pipeline)"
