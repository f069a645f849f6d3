"""LayerWise on several ranks: the same result, bit for bit, as in one process."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import perseus.torch.horovod as hvd  # noqa: E402
from perseus.pipeline.layerwise import (  # noqa: E402
    RBM,
    Autoencoder,
    LayerWise,
    LocalLoss,
    StageError,
)


@pytest.fixture(scope="module", autouse=True)
def horovod():
    hvd.init(process_sets="dynamic")


SIZES = [(12, 10), (10, 8), (8, 6), (6, 5)]


def rows(count=6, width=12):
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(8, width, generator=generator) for _ in range(count)]


def labelled():
    return [(batch, (batch.sum(1) > 6).long()) for batch in rows()]


def rbms():
    return [RBM(*sizes, seed=number) for number, sizes in enumerate(SIZES)]


def mixed():
    """Stages of all kinds, whose results have several shapes."""
    torch.manual_seed(0)

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    convolution = nn.Sequential(nn.Unflatten(1, (1, 12)), nn.Conv1d(1, 3, 3), nn.Dropout(0.1))
    head = nn.Sequential(nn.Flatten(), nn.Linear(30, 2))
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(30, 8), nn.Dropout(0.2), nn.Sigmoid())
    decoder = nn.Sequential(nn.Linear(8, 30), nn.Unflatten(1, (3, 10)))
    return [
        LocalLoss(convolution, head, nn.functional.cross_entropy, sgd, seed=1),
        Autoencoder(encoder, decoder, sgd, noise=0.1, seed=2, output_shape=(8,)),
        RBM(8, 6, seed=3),
        RBM(6, 5, seed=4),
    ]


@pytest.fixture(scope="module")
def own_set():
    """A process set of this rank only, on which a whole pipeline runs in one process."""
    if hvd.size() == 1:
        return hvd.global_process_set
    return [hvd.add_process_set([rank]) for rank in range(hvd.size())][hvd.rank()]


@pytest.fixture
def trained_alone(own_set):
    def train(stages, data, epochs=3, **options):
        LayerWise(stages, process_set=own_set, **options).train(data, epochs)
        return stages

    return train


def assert_same(one, other):
    for first, second in zip(one, other, strict=True):
        found, expected = first.parameters(), second.parameters()
        assert found.keys() == expected.keys()
        for name in found:
            assert torch.equal(found[name], expected[name]), name


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunk": 4},
        {"chunk": 2, "delay": 0.3},
        {"chunk": 5, "delay": 1.0},
        {"room": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize(("make", "data"), [(rbms, rows), (mixed, labelled)])
def test_the_result_is_that_of_one_process(trained_alone, make, data, options):
    expected = trained_alone(make(), data(), **options)
    found = make()
    pipeline = LayerWise(found, **options)
    times = pipeline.train(data() if hvd.rank() == 0 else None, 3)
    pipeline.collect()
    assert_same(found, expected)
    assert [one.rank for one in times] == pipeline.owners
    assert all(one.busy > 0 for one in times)


def test_blocks_of_stages_may_be_given(trained_alone):
    owners = [*range(hvd.size()), *[hvd.size() - 1] * (4 - hvd.size())]
    found = rbms()
    pipeline = LayerWise(found, chunk=2, owners=owners)
    assert pipeline.owners == owners
    pipeline.train(rows(), 2)
    pipeline.collect()
    assert_same(found, trained_alone(rbms(), rows(), 2, chunk=2))


def test_one_rank_may_collect(trained_alone):
    expected, initial = trained_alone(rbms(), rows(), chunk=2), rbms()
    root = hvd.size() - 1
    found = rbms()
    pipeline = LayerWise(found, chunk=2)
    pipeline.train(rows(), 3)
    pipeline.collect(root=root)
    for number, owner in enumerate(pipeline.owners):
        has_it = hvd.rank() in (root, owner)
        wanted = expected[number] if has_it else initial[number]
        assert_same([found[number]], [wanted])


def test_training_goes_on_from_a_chunk(trained_alone):
    expected = trained_alone(rbms(), rows(), chunk=2, delay=0.2)
    states = []
    LayerWise(rbms(), chunk=2, delay=0.2).train(
        rows(), 3, save=lambda *one: states.append(one), save_every=4
    )
    found = rbms()
    pipeline = LayerWise(found, chunk=2, delay=0.2)
    for stage, state in states:
        if state["chunk"] == 8:
            pipeline.load(stage, state)
    pipeline.train(rows(), 3)
    pipeline.collect()
    assert_same(found, expected)


class Counting(RBM):
    """Holds its first update back until told to go on, and counts those that it has done."""

    def __init__(self, *sizes, hold=None, seed):
        super().__init__(*sizes, seed=seed)
        self.hold, self.updates = hold, 0

    def train(self, batch, target=None):
        if self.hold is not None:
            self.hold.wait()
        self.updates += 1
        return super().train(batch)


@pytest.mark.parametrize("room", [1, 3])
def test_no_more_chunks_are_under_way_than_there_is_room_for(room):
    """While the last rank stands still, the first one goes on until the links are full."""
    if hvd.size() == 1:
        return
    places = list(range(hvd.size()))
    goes_on = threading.Event()
    last = hvd.rank() == hvd.size() - 1
    stages = [Counting(12, 12, seed=place, hold=goes_on if last else None) for place in places]
    result = []
    training = threading.Thread(
        target=lambda: result.append(LayerWise(stages, room=room).train(rows(40)))
    )
    training.start()
    # A rank that waits has begun one chunk, which it cannot send on, beyond those it has sent.
    between = hvd.size() - 1 - hvd.rank()
    most = room * between + between + 1
    own = stages[hvd.rank()]
    if not last:
        while own.updates < most:
            training.join(0.01)
        training.join(0.3)
        assert own.updates == most
        for after in range(hvd.rank() + 1, hvd.size()):
            hvd.send(torch.zeros(1), after, tag=5)
    for before in range(hvd.rank()):
        hvd.recv(source=before, tag=5)
    goes_on.set()
    training.join()
    assert own.updates == 40
    assert len(result[0]) == hvd.size()
    assert result[0][0].waiting_for_output > 0.2


def test_the_whole_network_is_fine_tuned_on_shares_of_the_data():
    """Data parallelism from the collected parameters, compared to one process on all rows."""
    found = rbms()
    pipeline = LayerWise(found, chunk=2)
    pipeline.train(rows(), 2)
    pipeline.collect()
    batches = [(torch.rand(12, 12), torch.randint(0, 2, (12,))) for _ in range(3)]

    def network():
        torch.manual_seed(3)
        return pipeline.network(nn.Linear(5, 2)).double()

    ours, whole = network(), network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(ours.parameters(), lr=0.5), named_parameters=ours.named_parameters()
    )
    alone = torch.optim.SGD(whole.parameters(), lr=0.5)
    for batch, target in batches:
        batch = batch.double()
        share = slice(hvd.rank(), None, hvd.size())
        optimizer.zero_grad()
        nn.functional.cross_entropy(ours(batch[share]), target[share]).backward()
        optimizer.step()
        alone.zero_grad()
        nn.functional.cross_entropy(whole(batch), target).backward()
        alone.step()
    for one, other in zip(ours.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


class Broken(RBM):
    def train(self, batch, target=None):
        raise ZeroDivisionError("on purpose")


@pytest.mark.parametrize("broken", range(4))
def test_a_stage_that_raises_is_named_on_every_rank_and_the_job_goes_on(trained_alone, broken):
    def stages():
        kinds = [Broken if number == broken else RBM for number in range(4)]
        return [kind(*sizes) for kind, sizes in zip(kinds, SIZES, strict=True)]

    pipeline = LayerWise(stages(), room=1)
    why = rf"stage {broken} \(Broken\) on rank \d failed at chunk 0: ZeroDivisionError: on purpose"
    with pytest.raises(StageError, match=why) as caught:
        pipeline.train(rows(20))
    assert caught.value.stage == broken
    owner = pipeline.owners[broken]
    assert caught.value.rank == owner
    assert isinstance(caught.value.__cause__, ZeroDivisionError) == (hvd.rank() == owner)
    # Nothing of it is left on the links.
    found = rbms()
    again = LayerWise(found, chunk=2)
    again.train(rows(), 3)
    again.collect()
    assert_same(found, trained_alone(rbms(), rows(), chunk=2))


def test_ranks_that_differ_are_told_so():
    if hvd.size() == 1:
        return
    me = hvd.rank()
    different = [RBM(12, 10, seed=0), RBM(10, 8, seed=me), RBM(8, 8), RBM(8, 8)]
    cases = [
        (
            different,
            {},
            rows(),
            r"stage 1 is RBM of 10 .* seed 0 on rank 0 and .* seed 1 on rank 1",
        ),
        ([*rbms(), RBM(5, 5)][: 4 + me], {}, rows(), "the number of stages is 4 on rank 0 and 5"),
        (rbms(), {"chunk": 1 + me}, rows(), "chunk is 1 on rank 0 and 2 on rank 1; it must be the"),
        (rbms(), {"room": 1 + me}, rows(), "room is 1 on rank 0 and 2 on rank 1; it must be the"),
        (rbms(), {}, None, "rank 0 cannot train: TypeError: batches is NoneType; it must have"),
    ]
    for stages, options, data, error in cases:
        with pytest.raises(ValueError, match=error):
            LayerWise(stages, **options).train(data)
    epochs = 0 if me == hvd.size() - 1 else 1
    with pytest.raises(ValueError, match=f"rank {hvd.size() - 1} cannot train: .*epochs is 0"):
        LayerWise(rbms()).train(rows(), epochs)


class Undescribed(RBM):
    def describe(self):
        if hvd.rank() == hvd.size() - 1:
            raise KeyError("on purpose")
        return super().describe()


def test_a_stage_that_cannot_be_described_is_an_error_on_every_rank():
    if hvd.size() == 1:
        return
    with pytest.raises(ValueError, match=f"rank {hvd.size() - 1} cannot train: KeyError: 'on pur"):
        LayerWise([*rbms()[:3], Undescribed(6, 5)]).train(rows())


def test_each_rank_needs_a_stage():
    if hvd.size() == 1:
        return
    with pytest.raises(ValueError, match=rf"1 stages are for {hvd.size()} ranks; there must be"):
        LayerWise(rbms()[:1])
    with pytest.raises(ValueError, match=r"root is 9; it must be one of the ranks \[0, "):
        LayerWise(rbms()).collect(root=9)
