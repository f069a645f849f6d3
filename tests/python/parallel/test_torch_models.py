"""Models and training loops of many kinds: N ranks train as one process does on all their data."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402
from twin_training import Parts, Run, everyone, inputs, momentum_sgd, same  # noqa: E402

import perseus.torch.horovod as hvd  # noqa: E402

pytestmark = pytest.mark.usefixtures("horovod")


@pytest.mark.parametrize("groups", [None, 2])
class TestParameters:
    def test_never_used(self, groups):
        Run(Parts(), groups=groups).train(3, lambda m, step, r: m(inputs(step, r), [0, 2]))

    def test_used_in_some_steps(self, groups):
        Run(Parts(), groups=groups).train(
            4, lambda m, step, r: m(inputs(step, r), [0, 1] if step % 2 else [2])
        )

    def test_used_on_some_ranks(self, groups):
        Run(Parts(), groups=groups).train(
            4, lambda m, step, r: m(inputs(step, r), [0, (step + r) % 3])
        )

    def test_used_several_times(self, groups):
        Run(Parts(), groups=groups).train(
            3, lambda m, step, r: m(inputs(step, r), [0, 1, 0, 2, 0, 0])
        )

    def test_used_in_another_order_on_each_rank(self, groups):
        Run(Parts(), groups=groups).train(
            4, lambda m, step, r: m(inputs(step, r), [(step + r + i) % 3 for i in range(3)])
        )

    def test_tied(self, groups):
        class Tied(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(2)
                self.first = torch.nn.Linear(4, 4, bias=False)
                self.last = torch.nn.Linear(4, 4)
                self.last.weight = self.first.weight

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.last(torch.tanh(self.first(x))).square().mean()

        run = Run(Tied(), groups=groups)
        run.train(3, lambda m, step, r: m(inputs(step, r)))
        assert run.model.last.weight is run.model.first.weight

    def test_frozen_from_the_start(self, groups):
        model = Parts()
        model.layers[1].requires_grad_(False)
        before = model.layers[1].weight.clone().double()
        run = Run(model, groups=groups)
        run.train(3, lambda m, step, r: m(inputs(step, r), [0, 1, 2]))
        assert torch.equal(run.model.layers[1].weight, before)

    def test_scalars_and_empty_ones(self, groups):
        class Odd(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = torch.nn.Parameter(torch.tensor(2.0))
                self.nothing = torch.nn.Parameter(torch.zeros(0, 4))
                self.bias = torch.nn.Parameter(torch.zeros(1, 4))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                rows = torch.cat((x * self.scale + self.bias, self.nothing))
                return rows.square().mean()

        Run(Odd(), groups=groups).train(3, lambda m, step, r: m(inputs(step, r)))


def test_gradients_are_zeros_where_there_were_none(two_ranks):
    run = Run(Parts())
    run.train(1, lambda m, step, r: m(inputs(step, r), [0]))
    assert torch.equal(run.model.layers[1].weight.grad, torch.zeros(4, 4).double())


def test_several_optimizers_over_one_model():
    model = Parts().double()
    reference = copy.deepcopy(model)

    def split(of: Parts, wrap: bool):
        for i, kind in enumerate((torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop)):
            optimizer = kind(of.layers[i].parameters(), lr=0.01)
            named = [(f"{i}.{name}", p) for name, p in of.layers[i].named_parameters()]
            yield hvd.DistributedOptimizer(optimizer, named) if wrap else optimizer

    ours, alone = list(split(model, True)), list(split(reference, False))
    for step in range(3):
        for optimizer in (*ours, *alone):
            optimizer.zero_grad()
        model(inputs(step, hvd.rank()), range(3)).backward()
        for r in everyone():
            (reference(inputs(step, r), range(3)) / hvd.size()).backward()
        for optimizer in (*ours, *alone):
            optimizer.step()
    same(model, reference)


def test_several_optimizers_over_the_same_parameters():
    """Only one of them may take part in a step: hooks of both run for each gradient."""
    model = Parts(1).double()
    first = hvd.DistributedOptimizer(momentum_sgd(model.parameters()), model.named_parameters())
    del first  # its hooks go with it
    second = hvd.DistributedOptimizer(momentum_sgd(model.parameters()), model.named_parameters())
    model(inputs(0, hvd.rank()), [0]).backward()
    second.step()
    sums = hvd.allgather(model.layers[0].weight.detach().sum().reshape(1))
    assert (sums == sums[0]).all()


def test_two_models_that_train_each_other():
    """As generators and discriminators do; each is frozen while the other has its turn."""

    def make():
        torch.manual_seed(3)
        return torch.nn.Linear(4, 4).double(), torch.nn.Linear(4, 1).double()

    def turn(generator, judge, optimizers, step, ranks) -> None:
        on_generator, on_judge = optimizers
        on_judge.zero_grad()
        for r in ranks:
            real, fake = inputs(step, r), generator(inputs(step + 50, r)).detach()
            (F.softplus(judge(fake) - judge(real)).mean() / len(ranks)).backward()
        on_judge.step()
        judge.requires_grad_(False)
        on_generator.zero_grad()
        for r in ranks:
            (F.softplus(-judge(generator(inputs(step + 70, r)))).mean() / len(ranks)).backward()
        on_generator.step()
        judge.requires_grad_(True)

    ours, references = make(), make()
    distributed = [
        hvd.DistributedOptimizer(
            momentum_sgd(model.parameters()), model.named_parameters(prefix=str(i))
        )
        for i, model in enumerate(ours)
    ]
    plain = [momentum_sgd(model.parameters()) for model in references]
    for step in range(4):
        turn(*ours, distributed, step, [hvd.rank()])
        turn(*references, plain, step, everyone())
    for model, reference in zip(ours, references, strict=True):
        same(model, reference)


def test_two_models_with_the_same_names_take_turns():
    first, second = Run(Parts()), Run(Parts())
    for step in range(2):
        first.train(1, lambda m, _, r: m(inputs(step, r), [0, 1, 2]))  # noqa: B023
        second.train(1, lambda m, _, r: m(inputs(step + 9, r), [2, 1]))  # noqa: B023


class TestLoops:
    @pytest.mark.parametrize("passes", [1, 2, 3])
    def test_accumulation(self, passes):
        run = Run(Parts(), backward_passes_per_step=passes)
        for step in range(2):
            run.optimizer.zero_grad()
            run.alone.zero_grad()
            for p in range(passes):
                run.model(inputs(passes * step + p, hvd.rank()), [0, 1, 2]).backward()
                for r in everyone():
                    (run.reference(inputs(passes * step + p, r), [0, 1, 2]) / hvd.size()).backward()
            run.optimizer.step()
            run.alone.step()
        same(run.model, run.reference)

    def test_an_epoch_that_ends_amid_accumulation(self):
        run = Run(Parts(), backward_passes_per_step=3)
        for passes in (3, 2, 3, 1):
            run.optimizer.zero_grad()
            run.alone.zero_grad()
            for p in range(passes):
                run.model(inputs(p, hvd.rank()), [0, 1, 2]).backward()
                for r in everyone():
                    (run.reference(inputs(p, r), [0, 1, 2]) / hvd.size()).backward()
            run.optimizer.step()
            run.alone.step()
        same(run.model, run.reference)

    @pytest.mark.parametrize("norm", [0.01, 1e6])
    def test_clipping(self, norm):
        run = Run(Parts())
        for step in range(3):
            run.optimizer.zero_grad()
            run.model(inputs(step, hvd.rank()), [0, 1, 2]).backward()
            run.optimizer.synchronize()
            ours = torch.nn.utils.clip_grad_norm_(run.model.parameters(), norm)
            with run.optimizer.skip_synchronize():
                run.optimizer.step()
            run.alone.zero_grad()
            for r in everyone():
                (run.reference(inputs(step, r), [0, 1, 2]) / hvd.size()).backward()
            theirs = torch.nn.utils.clip_grad_norm_(run.reference.parameters(), norm)
            torch.testing.assert_close(ours, theirs)
            run.alone.step()
        same(run.model, run.reference)

    def test_skip_synchronize_ends_with_its_block(self, two_ranks):
        model = torch.nn.Linear(1, 1, bias=False).double()
        torch.nn.init.zeros_(model.weight)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()
        )
        with pytest.raises(KeyError), optimizer.skip_synchronize():
            raise KeyError
        model(torch.full((1, 1), hvd.rank() + 1.0).double()).sum().backward()
        optimizer.step()
        assert model.weight.item() == -(hvd.size() + 1) / 2

    def test_a_closure_of_lbfgs(self):
        """The closure is called as often as on the other ranks if the loss is that of all."""

        def make(params):
            return torch.optim.LBFGS(params, lr=0.2, max_iter=4, history_size=3)

        run = Run(Parts(1), make)

        def ours():
            run.optimizer.zero_grad()
            loss = run.model(inputs(0, hvd.rank()), [0])
            loss.backward()
            return hvd.allreduce(loss.detach(), name="loss")

        def theirs():
            run.alone.zero_grad()
            loss = sum(run.reference(inputs(0, r), [0]) for r in everyone()) / hvd.size()
            loss.backward()
            return loss

        for _ in range(2):
            torch.testing.assert_close(run.optimizer.step(ours), run.alone.step(theirs).detach())
        torch.testing.assert_close(
            run.model.layers[0].weight, run.reference.layers[0].weight, rtol=1e-7, atol=1e-9
        )

    @pytest.mark.parametrize(
        "make_scheduler",
        [
            lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5),
            lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 1 / (epoch + 1)),
            lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5),
            lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=8),
            lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
        ],
        ids=["step", "lambda", "cosine", "one cycle", "cyclic"],
    )
    def test_schedulers(self, make_scheduler):
        run = Run(Parts())
        ours, theirs = make_scheduler(run.optimizer), make_scheduler(run.alone)
        for step in range(4):
            run.train(1, lambda m, _, r: m(inputs(step, r), [0, 1, 2]))  # noqa: B023
            ours.step()
            theirs.step()
            assert ours.get_last_lr() == theirs.get_last_lr()
        state = copy.deepcopy(ours.state_dict())
        ours.load_state_dict(state)

    def test_reduce_on_plateau(self):
        run = Run(Parts())
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(run.optimizer, patience=0)
        before = run.optimizer.param_groups[0]["lr"]
        for _ in range(3):
            scheduler.step(1.0)
        assert run.optimizer.param_groups[0]["lr"] < before

    def test_a_group_that_is_added_later(self, two_ranks):
        """Its gradients are reduced, too; with Horovod they stay local."""
        first, later = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([first], lr=1.0), [("first", first)], op=hvd.Sum
        )
        optimizer.add_param_group({"params": [later]})
        (first.sum() + later.sum()).backward()
        optimizer.step()
        assert first.tolist() == [-hvd.size()] * 2
        assert later.tolist() == [-hvd.size()] * 2

    def test_state_dict_goes_to_and_from_a_plain_optimizer(self):
        run = Run(Parts(), lambda params: torch.optim.Adam(params, lr=0.01))
        run.train(2, lambda m, step, r: m(inputs(step, r), [0, 1, 2]))
        saved = copy.deepcopy(run.optimizer.state_dict())
        run.alone.load_state_dict(saved)
        run.optimizer.load_state_dict(copy.deepcopy(run.alone.state_dict()))
        run.train(2, lambda m, step, r: m(inputs(step + 5, r), [0, 1, 2]))


class TestZeroGrad:
    @pytest.fixture
    def run(self, two_ranks) -> Run:
        return Run(Parts())

    @staticmethod
    def backward(run: Run) -> None:
        run.model(inputs(0, hvd.rank()), [0, 1, 2]).backward()

    def test_between_backward_and_step(self, run):
        self.backward(run)
        for options in ({}, {"set_to_none": True}, {"set_to_none": False}):
            with pytest.raises(AssertionError, match=r"optimizer\.zero_grad\(\) was called"):
                run.optimizer.zero_grad(**options)
        run.optimizer.step()

    def test_between_synchronize_and_step(self, run):
        self.backward(run)
        run.optimizer.synchronize()
        run.optimizer.zero_grad()
        with run.optimizer.skip_synchronize():
            run.optimizer.step()
        same(run.model, run.reference)

    @pytest.mark.parametrize("set_to_none", [True, False])
    def test_after_step(self, run, set_to_none):
        self.backward(run)
        run.optimizer.step()
        run.optimizer.zero_grad(set_to_none=set_to_none)
        for param in run.model.parameters():
            assert (param.grad is None) == set_to_none
            assert set_to_none or not param.grad.any()

    def test_amid_accumulation(self, two_ranks):
        run = Run(Parts(), backward_passes_per_step=2)
        self.backward(run)
        run.optimizer.zero_grad()  # nothing moves yet
        self.backward(run)
        run.optimizer.step()


@contextlib.contextmanager
def deterministic_scaler() -> Iterator[torch.amp.GradScaler]:
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("this PyTorch has no GradScaler for the CPU")
    yield torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)


class TestGradScaler:
    @staticmethod
    def step(run: Run, scaler, loss, clip: float | None = None) -> None:
        run.optimizer.zero_grad()
        scaler.scale(loss).backward()
        run.optimizer.synchronize()
        scaler.unscale_(run.optimizer)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), clip)
        with run.optimizer.skip_synchronize():
            scaler.step(run.optimizer)
        scaler.update()

    @pytest.mark.parametrize("clip", [None, 0.01])
    def test_trains_as_without(self, clip):
        run = Run(Parts())
        with deterministic_scaler() as scaler:
            for step in range(4):
                loss = run.model(inputs(step, hvd.rank()), [0, 1, 2])
                self.step(run, scaler, loss, clip)
                run.alone.zero_grad()
                for r in everyone():
                    (run.reference(inputs(step, r), [0, 1, 2]) / hvd.size()).backward()
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(run.reference.parameters(), clip)
                run.alone.step()
            assert scaler.get_scale() == 4096.0
        same(run.model, run.reference)

    @pytest.mark.parametrize("bad", [float("inf"), float("nan")])
    def test_an_overflow_on_one_rank_is_one_on_all(self, bad):
        run = Run(Parts())
        with deterministic_scaler() as scaler:
            loss = run.model(inputs(0, hvd.rank()), [0, 1, 2])
            if hvd.rank() == hvd.size() - 1:
                loss = loss * bad
            self.step(run, scaler, loss)
            same(run.model, run.reference)  # no step was taken
            assert scaler.get_scale() == 512.0
            self.step(run, scaler, run.model(inputs(1, hvd.rank()), [0, 1, 2]))
        for r in everyone():
            (run.reference(inputs(1, r), [0, 1, 2]) / hvd.size()).backward()
        run.alone.step()
        same(run.model, run.reference)

    def test_autocast(self):
        """The ranks agree, whatever the types of what flows between the layers."""
        model = Parts().float()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        with deterministic_scaler() as scaler:
            for step in range(2):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = model(inputs(step, hvd.rank()).float(), [0, 1, 2])
                scaler.scale(loss).backward()
                optimizer.synchronize()
                scaler.unscale_(optimizer)
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
                scaler.update()
        sums = hvd.allgather(torch.stack([p.detach().sum() for p in model.parameters()])[None])
        assert (sums == sums[0]).all()


SPARSE_OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.5),
    "sparse adam": lambda params: torch.optim.SparseAdam(list(params), lr=0.1),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
}


class TestSparse:
    """Embedding(sparse=True): gathered as it is, or reduced as if it were dense."""

    class Tables(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(4)
            self.words = torch.nn.Embedding(8, 3, sparse=True)
            self.bags = torch.nn.EmbeddingBag(5, 3, mode="sum", sparse=True)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            bags = self.bags(words.reshape(1, -1) % 5)
            return self.words(words).square().sum() + 3 * bags.square().sum()

    @staticmethod
    def words(step: int, rank: int) -> torch.Tensor:
        """Other numbers of rows on each rank, repeated ones, rows that only one rank has."""
        generator = torch.Generator().manual_seed(10 * step + rank)
        return torch.randint(0, 8, (2 + rank,), generator=generator)

    @pytest.mark.parametrize("sparse_as_dense", [False, True])
    @pytest.mark.parametrize("name", SPARSE_OPTIMIZERS)
    def test_trains_as_one_process(self, name, sparse_as_dense):
        run = Run(self.Tables(), SPARSE_OPTIMIZERS[name], sparse_as_dense=sparse_as_dense)
        for step in range(3):
            run.optimizer.zero_grad()
            run.model(self.words(step, hvd.rank())).backward()
            run.optimizer.step()
            run.alone.zero_grad()
            for r in everyone():
                (run.reference(self.words(step, r)) / hvd.size()).backward()
            run.alone.step()
            for ours, theirs in zip(
                run.model.parameters(), run.reference.parameters(), strict=True
            ):
                assert ours.grad.is_sparse
                torch.testing.assert_close(ours.grad.to_dense(), theirs.grad.to_dense())
        same(run.model, run.reference)

    @pytest.mark.parametrize("sparse_as_dense", [False, True])
    def test_sum_and_accumulation(self, sparse_as_dense):
        run = Run(
            self.Tables(),
            SPARSE_OPTIMIZERS["sgd"],
            sparse_as_dense=sparse_as_dense,
            op=hvd.Sum,
            backward_passes_per_step=2,
        )
        for p in range(2):
            run.model(self.words(p, hvd.rank())).backward()
            for r in everyone():
                run.reference(self.words(p, r)).backward()
        run.optimizer.step()
        run.alone.step()
        same(run.model, run.reference)

    def test_beside_dense_parameters_and_groups(self):
        class Mixed(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(5)
                self.table = torch.nn.Embedding(8, 4, sparse=True)
                self.layer = torch.nn.Linear(4, 2)

            def forward(self, words: torch.Tensor) -> torch.Tensor:
                return self.layer(self.table(words)).square().mean()

        for options in ({}, {"groups": 1, "sparse_as_dense": True}):
            run = Run(Mixed(), SPARSE_OPTIMIZERS["sgd"], **options)
            run.train(3, lambda m, step, r: m(self.words(step, r)))

    def test_a_rank_without_a_gradient_as_dense(self):
        run = Run(self.Tables(), SPARSE_OPTIMIZERS["sgd"], sparse_as_dense=True)
        if hvd.rank() == 0:
            run.model(self.words(0, 0)).backward()
        (run.reference(self.words(0, 0)) / hvd.size()).backward()
        run.optimizer.step()
        run.alone.step()
        same(run.model, run.reference)
