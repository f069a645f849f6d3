"""A mistake that one rank makes alone is an error on every rank, and training goes on."""

from __future__ import annotations

import threading

import pytest
from single_rank_errors import fails_everywhere, faulty_ranks

torch = pytest.importorskip("torch")
import perseus.torch.horovod as hvd  # noqa: E402

# The stall report would say what is wrong only after a minute.
pytestmark = [pytest.mark.usefixtures("horovod"), pytest.mark.timeout(60)]


def own(rank: int | None = None) -> torch.Tensor:
    rank = hvd.rank() if rank is None else rank
    return torch.arange(2.0 * hvd.size()) * (rank + 1)


def arguments(operation: str) -> dict:
    given = {"tensors": [own(), own()]} if operation.startswith("grouped") else {"tensor": own()}
    if "reduce" in operation:
        given["op"] = hvd.Sum
    if operation.startswith("broadcast"):
        given["root_rank"] = 0
    if operation.startswith("alltoall"):
        given["splits"] = [2] * hvd.size()
    return given


def call(operation: str, name: str | None = None, **wrong):
    result = getattr(hvd, operation)(**{**arguments(operation), "name": name, **wrong})
    return hvd.synchronize(result) if "async" in operation else result


def check(operation: str, result) -> None:
    size, rank = hvd.size(), hvd.rank()
    total = sum(own(r) for r in range(size))
    mine = slice(2 * rank, 2 * rank + 2)
    kind = operation.partition("_async")[0].removeprefix("grouped_").rstrip("_")
    expected = {
        "allreduce": total,
        "broadcast": own(0),
        "allgather": torch.cat([own(r) for r in range(size)]),
        "alltoall": torch.cat([own(r)[mine] for r in range(size)]),
        "reducescatter": total[mine],
    }[kind]
    if kind == "alltoall":
        result, received = result
        assert received.tolist() == [2] * size
    for part in result if operation.startswith("grouped") else [result]:
        torch.testing.assert_close(part, expected)


def goes_on(operation: str, name: str | None) -> None:
    """Checks that named and unnamed calls return correct results on all ranks."""
    for each in (name, None, name, None):
        check(operation, call(operation, each))


OPERATIONS = [
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "allgather",
    "allgather_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "alltoall",
    "alltoall_async",
    "reducescatter",
    "reducescatter_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
]
REDUCTIONS = [operation for operation in OPERATIONS if "reduce" in operation]


def mistakes_of(operation: str):
    """Yields wrong arguments, what the faulty rank raises, and what all ranks are told."""

    def tensors(wrong) -> dict:
        if operation.startswith("grouped"):
            return {"tensors": [own(), wrong]}
        return {"tensor": wrong}

    which = r"tensors\[1\]" if operation.startswith("grouped") else "tensor"
    yield tensors(own().to(torch.complex64)), ValueError, "ComplexFloat.* is not supported"
    yield tensors(own().to_sparse()), ValueError, "sparse.* is not supported"
    yield tensors([1.0, 2.0]), TypeError, f"{which} is list; it takes a torch.Tensor"
    yield tensors(None), TypeError, f"{which} is NoneType"
    if operation.startswith("grouped"):
        yield {"tensors": 3}, TypeError, "tensors is int; it takes a list"
    if operation in REDUCTIONS:
        yield {"op": 99}, ValueError, "99"
        yield {"op": "sum"}, TypeError, "op is 'sum'"
        yield {"prescale_factor": "half"}, TypeError, "prescale_factor is 'half'"
        yield {"postscale_factor": [1]}, TypeError, r"postscale_factor is \[1\]"
    if "allreduce" in operation:
        yield {"average": True}, ValueError, "supersedes"
    if "reducescatter" in operation:
        yield tensors(torch.tensor(1.0)), ValueError, "at least one dimension"
    if "broadcast" in operation:
        yield {"root_rank": hvd.size()}, ValueError, "root rank"
        yield {"root_rank": "0"}, TypeError, "root_rank is '0'"
    if "alltoall" in operation:
        yield {"splits": [3] * hvd.size()}, ValueError, "splits add up to"
        yield {"splits": [0] * (hvd.size() + 1)}, ValueError, "splits were given"
        yield {"splits": [-1] * hvd.size()}, ValueError, "0 or more"
        yield {"splits": [2.0] * hvd.size()}, ValueError, "whole number"
        yield {"splits": torch.full((hvd.size(),), 2.0)}, ValueError, "float32; .* whole numbers"
        yield {"splits": torch.ones(1, hvd.size())}, ValueError, "2 dimensions"


@pytest.mark.parametrize("name", [None, "lone"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_rank_gets_an_error_and_the_job_goes_on(operation, name):
    for wrong, error, reason in mistakes_of(operation):
        for faulty in faulty_ranks():
            fails_everywhere(
                [faulty],
                lambda: call(operation, name, **wrong),  # noqa: B023
                lambda: call(operation, name),
                error,
                reason,
            )
            check(operation, call(operation, name))
    goes_on(operation, name)


@pytest.mark.parametrize("name", [None, "all"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_mistake_of_all_ranks(operation, name):
    for wrong, error, reason in mistakes_of(operation):
        fails_everywhere(
            range(hvd.size()),
            lambda: call(operation, name, **wrong),  # noqa: B023
            lambda: None,
            error,
            reason,
        )
    goes_on(operation, name)


@pytest.mark.parametrize(
    "operation", ["allreduce", "grouped_allreduce", "reducescatter", "grouped_reducescatter"]
)
def test_a_compression_that_fails(operation):
    class Failing(hvd.Compression.none):
        @staticmethod
        def compress(tensor):
            raise RuntimeError("cannot compress this")

    for name in (None, "compressed"):
        fails_everywhere(
            [0],
            lambda: call(operation, name, compression=Failing),  # noqa: B023
            lambda: call(operation, name),  # noqa: B023
            RuntimeError,
            "cannot compress this",
        )
        goes_on(operation, name)


@pytest.mark.parametrize("call", ["allreduce_", "broadcast_", "grouped_allreduce_"])
def test_an_expanded_tensor_cannot_take_a_result(call):
    def run(tensor):
        if call == "broadcast_":
            return hvd.broadcast_(tensor, 0)
        return getattr(hvd, call)([tensor] if call.startswith("grouped") else tensor)

    fails_everywhere(
        faulty_ranks(),
        lambda: run(torch.ones(1).expand(4)),
        lambda: run(torch.ones(4)),
        ValueError,
        "share one place in memory",
    )
    run(torch.ones(4).t())


def test_a_sparse_tensor_that_is_dense():
    def reduce(tensor, op=hvd.Sum):
        return hvd.sparse_allreduce_async(tensor, "sparse", op)().to_dense()

    good = own().to_sparse()
    for bad, op, error, reason in (
        (own(), hvd.Sum, ValueError, "takes a sparse COO tensor"),
        ([1.0], hvd.Sum, TypeError, "tensor is list"),
        (good, hvd.Max, ValueError, "op Average or Sum"),
        (good.to(torch.complex64), hvd.Sum, ValueError, "is not supported"),
    ):
        for faulty in faulty_ranks():
            fails_everywhere(
                [faulty],
                lambda: reduce(bad, op),  # noqa: B023
                lambda: reduce(good),
                error,
                reason,
            )
            check("allreduce", reduce(good))


@pytest.mark.parametrize("name", [None, "object"])
class TestObjects:
    def test_one_that_the_root_cannot_pickle(self, name):
        for root in faulty_ranks():
            fails_everywhere(
                [root],
                lambda: hvd.broadcast_object(threading.Lock(), root, name),  # noqa: B023
                lambda: hvd.broadcast_object(None, root, name),  # noqa: B023
                TypeError,
                "cannot pickle",
            )
            assert hvd.broadcast_object(hvd.rank(), root, name) == root
        goes_on("broadcast", name)

    def test_one_that_another_rank_cannot_pickle_does_not_matter(self, name, two_ranks):
        obj = "root's" if hvd.rank() == 0 else threading.Lock()
        assert hvd.broadcast_object(obj, 0, name) == "root's"

    def test_a_root_outside_the_world(self, name):
        for faulty in faulty_ranks():
            fails_everywhere(
                [faulty],
                lambda: hvd.broadcast_object("own", hvd.size(), name),
                lambda: hvd.broadcast_object("own", 0, name),
                ValueError,
                "root rank",
            )
        assert hvd.broadcast_object(hvd.rank(), 0, name) == 0

    def test_one_of_a_gather_that_cannot_be_pickled(self, name):
        for faulty in faulty_ranks():
            fails_everywhere(
                [faulty],
                lambda: hvd.allgather_object(threading.Lock(), name),
                lambda: hvd.allgather_object("own", name),
                TypeError,
                "cannot pickle",
            )
            assert hvd.allgather_object(hvd.rank(), name) == list(range(hvd.size()))
        goes_on("allgather", name)


def test_a_parameter_that_is_no_tensor():
    good = {f"p{i}": own() for i in range(4)}
    for faulty in faulty_ranks():
        fails_everywhere(
            [faulty],
            lambda: hvd.broadcast_parameters({**good, "p1": "text"}, 0),
            lambda: hvd.broadcast_parameters(good, 0),
            ValueError,
            "invalid params: p1 is str",
        )
        params = {f"p{i}": own() for i in range(4)}
        hvd.broadcast_parameters(params, 0)
        for tensor in params.values():
            check("broadcast", tensor)


class TestOptimizerState:
    @staticmethod
    def adam(count: int = 2, steps: int = 1) -> torch.optim.Optimizer:
        params = [torch.ones(2, requires_grad=True) for _ in range(count)]
        optimizer = torch.optim.Adam(params)
        for _ in range(steps):
            sum(param.sum() for param in params).backward()
            optimizer.step()
        return optimizer

    @pytest.mark.parametrize(
        "wrong, error, reason",
        [
            (
                lambda: torch.optim.LBFGS([torch.ones(1, requires_grad=True)]),
                ValueError,
                "LBFGS",
            ),
            (lambda: None, TypeError, "optimizer is NoneType"),
        ],
    )
    def test_one_that_cannot_be_sent(self, wrong, error, reason):
        for faulty in faulty_ranks():
            fails_everywhere(
                [faulty],
                lambda: hvd.broadcast_optimizer_state(wrong(), 0),
                lambda: hvd.broadcast_optimizer_state(self.adam(), 0),
                error,
                reason,
            )
            hvd.broadcast_optimizer_state(self.adam(), 0)

    def test_one_of_another_model(self, two_ranks):
        faulty = hvd.size() - 1
        fails_everywhere(
            [faulty],
            lambda: hvd.broadcast_optimizer_state(self.adam(count=3), 0),
            lambda: hvd.broadcast_optimizer_state(self.adam(), 0),
            ValueError,
            "rank 0's optimizer has 1 groups of 2 parameters",
        )
        optimizer = self.adam(steps=2 if hvd.rank() == 0 else 0)
        hvd.broadcast_optimizer_state(optimizer, 0)
        assert [state["step"] for state in optimizer.state.values()] == [2.0, 2.0]


class TestDistributedOptimizer:
    @pytest.fixture(autouse=True)
    def two(self, two_ranks):
        pass

    @staticmethod
    def model() -> torch.nn.Module:
        torch.manual_seed(1)
        return torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(3)))

    @pytest.mark.parametrize("groups", [None, 2])
    def test_a_gradient_that_cannot_be_compressed(self, groups):
        """Backward hands over the other gradients; step then fails on all ranks alike."""
        failures = []

        class Failing(hvd.Compression.none):
            @staticmethod
            def compress(tensor):
                if failures:
                    raise RuntimeError(failures.pop())
                return tensor, None

        model = self.model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            named_parameters=model.named_parameters(),
            compression=Failing,
            groups=groups,
        )

        def train(step: int) -> None:
            optimizer.zero_grad()
            model(torch.full((1, 3), float(hvd.rank() + step))).sum().backward()
            optimizer.step()

        for step, faulty in enumerate(faulty_ranks()):
            if hvd.rank() == faulty:
                failures.append("cannot compress this")
            fails_everywhere(
                [faulty],
                lambda: train(step),  # noqa: B023
                lambda: train(step),  # noqa: B023
                RuntimeError,
                "cannot compress this",
            )
            train(step)
        sums = torch.stack([param.detach().sum() for param in model.parameters()])
        gathered = hvd.allgather(sums[None])
        assert (gathered == gathered[0]).all()

    def test_a_sparse_gradient_in_a_group(self):
        faulty = hvd.size() - 1
        torch.manual_seed(2)
        sparse = hvd.rank() == faulty
        table = torch.nn.Embedding(4, 2, sparse=sparse)
        linear = torch.nn.Linear(2, 2)
        params = [*table.parameters(), *linear.parameters()]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(params, lr=0.1),
            named_parameters=[(f"group.{i}", param) for i, param in enumerate(params)],
            groups=[params],
        )

        def train() -> None:
            optimizer.zero_grad()
            linear(table(torch.tensor([1, 2]))).sum().backward()
            optimizer.step()

        fails_everywhere([faulty], train, train, ValueError, "a group with sparse gradients")
        table.sparse = False
        train()

    def test_a_hook_reports_its_failure_at_step_not_in_backward(self):
        class Failing(hvd.Compression.none):
            @staticmethod
            def compress(tensor):
                raise RuntimeError("never")

        model = self.model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            named_parameters=model.named_parameters(),
            compression=Failing,
        )
        model(torch.ones(1, 3)).sum().backward()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="never"):
                optimizer.synchronize()
        optimizer.zero_grad()


class TestProcessSets:
    @pytest.fixture
    def ends(self, monkeypatch):
        """The first and the last rank."""
        if hvd.size() < 3:
            pytest.skip("needs a rank outside")
        hvd.barrier()
        hvd.shutdown()
        monkeypatch.setenv("PERSEUS_DYNAMIC_PROCESS_SETS", "1")
        hvd.init()
        yield hvd.add_process_set([0, hvd.size() - 1])
        hvd.barrier()
        hvd.shutdown()

    def test_only_members_fail(self, ends):
        if ends.included():
            for name in (None, "ends"):
                fails_everywhere(
                    [0],
                    lambda: call("allgather", name, tensor=None, process_set=ends),  # noqa: B023
                    lambda: call("allgather", name, process_set=ends),  # noqa: B023
                    TypeError,
                    "tensor is NoneType",
                )
                gathered = call("allgather", name, process_set=ends)
                assert gathered.tolist() == torch.cat([own(0), own(hvd.size() - 1)]).tolist()
                fails_everywhere(
                    [hvd.size() - 1],
                    lambda: hvd.allgather_object(threading.Lock(), name, ends),  # noqa: B023
                    lambda: hvd.allgather_object(1, name, ends),  # noqa: B023
                    TypeError,
                    "cannot pickle",
                )
        goes_on("allgather", "ends")

    def test_a_set_that_is_none_concerns_this_rank_alone(self, ends):
        if hvd.rank() == 0:
            for wrong in (3, None, "ends", [0, 1]):
                with pytest.raises(TypeError, match=f"process_set is {type(wrong).__name__}"):
                    call("allreduce", process_set=wrong)
            with pytest.raises(ValueError, match="not registered"):
                call("allreduce", process_set=hvd.ProcessSet([0]))
        goes_on("allreduce", "none")


def test_without_the_engine_the_error_stays_what_it_is():
    hvd.barrier()
    hvd.shutdown()
    for _ in range(2):
        with pytest.raises(TypeError, match="tensor is int"):
            hvd.allreduce(3)
        with pytest.raises(hvd.HorovodInternalError):
            hvd.allreduce(torch.ones(2))
    hvd.init()
    goes_on("allreduce", "engine")
