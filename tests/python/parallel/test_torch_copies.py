"""Objects that users copy and pickle: optimizers, compressions, process sets, states,
exceptions."""

from __future__ import annotations

import copy
import io
import pickle

import cloudpickle
import pytest

torch = pytest.importorskip("torch")
from twin_training import Parts, Run, everyone, inputs, momentum_sgd, same  # noqa: E402

import perseus.torch.horovod as hvd  # noqa: E402
from perseus.common.exceptions import (  # noqa: E402
    HorovodVersionMismatchError,
    HostsUpdatedInterrupt,
)
from perseus.torch.horovod import elastic  # noqa: E402

pytestmark = pytest.mark.usefixtures("horovod")


def saved_and_loaded(value, **options):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


def whole(value):
    """Copies through torch.save with all classes, as old checkpoints do."""
    return saved_and_loaded(value, weights_only=False)


def trained(steps: int = 2) -> Run:
    run = Run(Parts())
    run.train(steps, lambda m, step, r: m(inputs(step, r), [0, 1, 2]))
    return run


class TestOptimizerState:
    def test_a_state_dict_through_a_checkpoint(self):
        """It has only tensors and plain values, so torch.load takes it with weights_only."""
        run = trained()
        state = saved_and_loaded(run.optimizer.state_dict(), weights_only=True)
        model = copy.deepcopy(run.model)
        optimizer = hvd.DistributedOptimizer(
            momentum_sgd(model.parameters()), model.named_parameters(prefix="loaded")
        )
        optimizer.load_state_dict(state)
        for step in range(2):
            optimizer.zero_grad()
            model(inputs(step + 5, hvd.rank()), [0, 1, 2]).backward()
            optimizer.step()
        run.train(2, lambda m, step, r: m(inputs(step + 5, r), [0, 1, 2]))
        same(model, run.model)

    def test_it_is_that_of_a_plain_optimizer(self):
        run = trained()
        ours, theirs = run.optimizer.state_dict(), run.alone.state_dict()
        assert ours.keys() == theirs.keys()
        assert ours["param_groups"] == theirs["param_groups"]
        assert ours["state"].keys() == theirs["state"].keys()

    @pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps, cloudpickle.dumps])
    def test_while_gradients_move(self, copied):
        run = Run(Parts())
        run.model(inputs(0, hvd.rank()), [0, 1, 2]).backward()
        copied(run.optimizer.state_dict())
        run.optimizer.step()


class TestModels:
    """Their parameters carry hooks of the optimizer, which copies must not share."""

    @pytest.mark.parametrize(
        "copied",
        [
            copy.deepcopy,
            lambda model: pickle.loads(pickle.dumps(model)),
            lambda model: cloudpickle.loads(cloudpickle.dumps(model)),
            whole,
        ],
        ids=["deepcopy", "pickle", "cloudpickle", "torch.save"],
    )
    def test_a_copy_trains_by_itself(self, copied):
        run = trained()
        other = copied(run.model)
        same(other, run.model)
        # Nothing is reduced, and twice is not too often.
        for _ in range(2):
            other(inputs(0, hvd.rank()), [0, 1, 2]).backward()
        alone = copy.deepcopy(run.reference)
        for _ in range(2):
            alone(inputs(0, hvd.rank()), [0, 1, 2]).backward()
        for ours, theirs in zip(other.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
        run.train(2, lambda m, step, r: m(inputs(step, r), [2, 1, 0]))

    def test_a_moving_average_of_the_weights(self):
        run = trained()
        average = torch.optim.swa_utils.AveragedModel(run.model)
        run.train(2, lambda m, step, r: m(inputs(step, r), [0, 1]))
        average.update_parameters(run.model)
        sums = torch.stack([p.detach().sum() for p in average.parameters()])
        assert (hvd.allgather(sums[None]) == sums).all()


@pytest.mark.parametrize("kind", [hvd.Compression.none, hvd.Compression.fp16])
@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda value: pickle.loads(pickle.dumps(value)),
        lambda value: cloudpickle.loads(cloudpickle.dumps(value)),
    ],
    ids=["copy", "deepcopy", "pickle", "cloudpickle"],
)
def test_a_compression_stays_the_class_that_it_is(kind, copied):
    assert copied(kind) is kind
    assert copied(hvd.Compression) is hvd.Compression
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum, compression=copied(kind))[0] == hvd.size()


def test_a_process_set_that_travels_has_the_same_ranks():
    process_set = hvd.ProcessSet([0])
    for other in (
        copy.deepcopy(process_set),
        pickle.loads(pickle.dumps(process_set)),
        hvd.broadcast_object(process_set, 0),
    ):
        assert other.ranks == [0]
        assert other.process_set_id is None


def test_functions_by_their_names():
    for name in ("allreduce", "allgather_object", "DistributedOptimizer", "join", "poll"):
        function = getattr(hvd, name)
        assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize(
    "error, attributes",
    [
        (hvd.HorovodInternalError("text"), {}),
        (HostsUpdatedInterrupt(True), {"skip_sync": True}),
        (
            HorovodVersionMismatchError("torch", "1", "2"),
            {"name": "torch", "version": "1", "installed_version": "2"},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda value: pickle.loads(pickle.dumps(value)),
        lambda value: cloudpickle.loads(cloudpickle.dumps(value)),
    ],
    ids=["copy", "deepcopy", "pickle", "cloudpickle"],
)
def test_exceptions(error, attributes, copied):
    """A pool of workers sends exceptions to the process that waits."""
    other = copied(error)
    assert type(other) is type(error)
    assert str(other) == str(error)
    assert {name: getattr(other, name) for name in attributes} == attributes


def test_an_error_of_the_engine_travels():
    if hvd.size() < 2:
        pytest.skip("needs ranks that can differ")
    with pytest.raises(hvd.HorovodInternalError) as raised:
        hvd.allreduce(torch.ones(2 + (hvd.rank() == 0)))
    other = pickle.loads(pickle.dumps(raised.value))
    assert type(other) is type(raised.value) and str(other) == str(raised.value)


def test_the_plain_values_of_an_elastic_state():
    """cloudpickle takes them from rank 0 to the others: also schedulers, as they are."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    state = elastic.TorchState(
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 3 + hvd.rank()),
        epoch=hvd.rank(),
        best={"loss": float(hvd.rank())},
    )
    state.sync()
    assert (state.epoch, state.best) == (0, {"loss": 0.0})
    assert state.scheduler.step_size == 3


def test_a_sampler_of_an_elastic_state():
    sampler = elastic.ElasticSampler(list(range(12)), seed=3)
    sampler.record_batch(0, 1)
    for other in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        other.reset()
        assert list(other) == list(copy.deepcopy(other))
        assert other.state_dict() == sampler.state_dict()


def test_a_sync_batch_norm():
    layer = hvd.SyncBatchNorm(3)
    layer(torch.arange(6.0 * (hvd.rank() + 1)).reshape(-1, 3))
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), whole(layer)):
        assert type(other) is hvd.SyncBatchNorm
        torch.testing.assert_close(other.running_mean, layer.running_mean)
        x = torch.ones(2, 3) * torch.tensor([[hvd.rank() + 1.0]])
        rows = torch.cat([torch.ones(2, 3) * (r + 1.0) for r in everyone()])
        plain = torch.nn.BatchNorm1d(3)
        torch.testing.assert_close(other(x), plain(rows).chunk(hvd.size())[hvd.rank()])


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o)), whole],
    ids=["deepcopy", "pickle", "torch.save"],
)
def test_an_optimizer_as_a_whole(copied):
    """The copy is an optimizer of its own parameters: it steps, and reduces nothing."""
    run = trained()
    other = copied(run.optimizer)
    assert isinstance(other, torch.optim.SGD)
    before = [param.detach().clone() for group in other.param_groups for param in group["params"]]
    expected = [param.detach() for param in run.model.parameters()]
    for ours, theirs in zip(before, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    other.zero_grad()
    for group in other.param_groups:
        for param in group["params"]:
            param.grad = torch.ones_like(param)
    other.step()
    for group in other.param_groups:
        assert all(not torch.equal(p, b) for p, b in zip(group["params"], before, strict=True))
    run.train(2, lambda m, step, r: m(inputs(step, r), [2, 1, 0]))
