"""Life of the process in the job: ranks, init and shutdown again and again, process sets."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import perseus_core as perseus
from perseus_core import HorovodInternalError, MismatchError, ReduceOp


def test_before_init_and_after_shutdown_calls_fail_as_in_horovod():
    for _ in range(2):
        assert not perseus.is_initialized()
        for query in (perseus.rank, perseus.size, perseus.local_rank, perseus.cross_size):
            with pytest.raises(ValueError, match=r"has not been initialized; use hvd\.init\(\)"):
                query()
        with pytest.raises(HorovodInternalError):
            perseus.allreduce(np.ones(2))
        with pytest.raises(HorovodInternalError):
            perseus.barrier()
        perseus.shutdown()  # harmless
        perseus.init()
        perseus.barrier()
        perseus.shutdown()


def test_ranks_are_a_permutation(core):
    ranks = perseus.allgather(np.array([[perseus.rank(), perseus.local_rank()]]))
    assert ranks[:, 0].tolist() == list(range(perseus.size()))
    assert 0 <= perseus.local_rank() < perseus.local_size() <= perseus.size()
    assert 0 <= perseus.cross_rank() < perseus.cross_size() <= perseus.size()
    assert isinstance(perseus.is_homogeneous(), bool)


def test_init_twice_is_init_once(core):
    rank = perseus.rank()
    perseus.init()
    assert perseus.rank() == rank


def test_shutdown_fails_what_is_in_flight(two_ranks):
    handle = None
    if perseus.rank() == 0:
        handle = perseus.allreduce_async(np.ones(2), name="never")
    perseus.barrier()
    perseus.shutdown()
    if handle is not None:
        with pytest.raises(HorovodInternalError):
            handle.wait()
    perseus.init()
    perseus.barrier()


def test_a_hundred_lives():
    perseus.shutdown()
    for life in range(100):
        perseus.init()
        result = perseus.allreduce(np.full(4, life), ReduceOp.SUM, name="life")
        np.testing.assert_array_equal(result, np.full(4, life * perseus.size()))
        perseus.shutdown()


class TestProcessSets:
    @pytest.fixture(autouse=True)
    def two(self, two_ranks):
        pass

    def test_members_reduce_among_themselves(self):
        size, rank = perseus.size(), perseus.rank()
        sets = {perseus.add_process_set(ranks): ranks for ranks in ([0], list(range(1, size)))}
        for number, ranks in sets.items():
            assert perseus.process_set_ranks(number) == ranks
            assert perseus.process_set_size(number) == len(ranks)
            assert perseus.process_sets()[number] == ranks
            if rank in ranks:
                assert perseus.process_set_rank(number) == ranks.index(rank)
                result = perseus.allreduce(
                    np.array([float(rank)]), ReduceOp.SUM, process_set=number
                )
                assert result[0] == sum(ranks)
                gathered = perseus.allgather(np.array([rank]), process_set=number)
                assert gathered.tolist() == ranks
            else:
                assert perseus.process_set_rank(number) == -1
                with pytest.raises(ValueError, match="does not belong"):
                    perseus.allreduce(np.ones(1), process_set=number)
        for number in sets:
            perseus.remove_process_set(number)
        assert list(perseus.process_sets()) == [perseus.WORLD]

    def test_one_name_may_be_in_flight_on_two_sets(self):
        # A set of two ranks here and the world.
        number = perseus.add_process_set([0, 1] if perseus.size() > 2 else [1])
        members = perseus.process_set_ranks(number)
        world = perseus.allreduce_async(np.ones(3), ReduceOp.SUM, name="both")
        if perseus.rank() in members:
            own = perseus.allreduce_async(np.ones(3), ReduceOp.SUM, name="both", process_set=number)
            np.testing.assert_array_equal(own.wait(), np.full(3, len(members)))
        np.testing.assert_array_equal(world.wait(), np.full(3, perseus.size()))
        perseus.remove_process_set(number)

    def test_overlapping_sets_at_once(self):
        size, rank = perseus.size(), perseus.rank()
        sets = [
            perseus.add_process_set([i, (i + 1) % size]) for i in range(size if size > 2 else 0)
        ]
        handles = [
            (number, perseus.allreduce_async(np.full(1000, rank), ReduceOp.SUM, process_set=number))
            for number in sets
            if perseus.process_set_rank(number) >= 0
        ]
        for number, handle in handles:
            expected = sum(perseus.process_set_ranks(number))
            np.testing.assert_array_equal(handle.wait(), np.full(1000, expected))
        for number in sets:
            perseus.remove_process_set(number)

    def test_one_with_something_under_way_is_not_removed(self):
        size, rank = perseus.size(), perseus.rank()
        number = perseus.add_process_set([0, size - 1] if size > 2 else [1])
        first, *others = perseus.process_set_ranks(number)
        if rank == first:
            handle = perseus.allreduce_async(np.ones(3), ReduceOp.SUM, process_set=number, name="x")
            if others:
                with pytest.raises(ValueError, match=r"'allreduce.x' is still under way"):
                    perseus.remove_process_set(number)
        elif others:
            with pytest.raises(MismatchError, match=r"'allreduce.x' is still under way"):
                perseus.remove_process_set(number)
        if rank in others:
            handle = perseus.allreduce_async(np.ones(3), ReduceOp.SUM, process_set=number, name="x")
        if rank == first or rank in others:
            np.testing.assert_array_equal(handle.wait(), np.full(3, 1 + len(others)))
        perseus.remove_process_set(number)

    def test_the_same_ranks_twice_are_refused(self):
        with pytest.raises(ValueError):
            perseus.add_process_set(range(perseus.size()))

    def test_a_rank_outside_the_world_is_refused(self):
        with pytest.raises(ValueError):
            perseus.add_process_set([0, perseus.size()])


class TestJoin:
    def test_uneven_steps(self, core):
        size, rank = perseus.size(), perseus.rank()
        for step in range(rank + 1):  # rank r has r + 1 steps
            result = perseus.allreduce(np.ones(5), ReduceOp.SUM, name=f"uneven.{step}")
            np.testing.assert_array_equal(result, np.full(5, size - step))
        assert perseus.join() in range(size)

    def test_unnamed_calls_are_in_step_again_after_it(self, core):
        size, rank = perseus.size(), perseus.rank()
        for _ in range(2):
            for step in range(rank + 1):
                result = perseus.allreduce(np.ones(5), ReduceOp.SUM)
                np.testing.assert_array_equal(result, np.full(5, size - step))
            perseus.join()
            result = perseus.allreduce(np.ones(5), ReduceOp.SUM)
            np.testing.assert_array_equal(result, np.full(5, size))

    def test_the_last_rank_is_the_same_everywhere(self, core):
        last = perseus.join()
        assert perseus.allgather(np.array([last])).tolist() == [last] * perseus.size()

    def test_a_joined_rank_has_no_rows_in_a_gather(self, two_ranks):
        if perseus.rank() > 0:
            gathered = perseus.allgather(np.array([perseus.rank()]), name="with.joined")
            assert gathered.tolist() == list(range(1, perseus.size()))
        perseus.join()

    def test_a_joined_root_fails_the_broadcast(self, two_ranks):
        if perseus.rank() > 0:
            with pytest.raises(HorovodInternalError, match="joined"):
                perseus.broadcast(np.ones(2), 0, name="with.joined")
        perseus.join()

    def test_minimum_and_product_pass_over_a_joined_rank(self, two_ranks):
        if perseus.rank() > 0:
            ones = np.ones(3)
            np.testing.assert_array_equal(perseus.allreduce(5 * ones, ReduceOp.MIN, name="min"), 5)
            product = perseus.allreduce(2 * ones, ReduceOp.PRODUCT, name="product")
            np.testing.assert_array_equal(product, 2.0 ** (perseus.size() - 1))
        perseus.join()

    def test_a_joined_rank_takes_part_in_its_process_sets(self, core):
        if perseus.size() < 3:
            pytest.skip("two ranks of two are the world")
        pair = perseus.add_process_set([0, 1])
        if perseus.rank() == 1:
            result = perseus.allreduce(np.ones(3), ReduceOp.SUM, process_set=pair)
            np.testing.assert_array_equal(result, 1)
        perseus.join()
        perseus.remove_process_set(pair)


class TestObservation:
    def test_counters_grow_with_operations(self, core):
        before = perseus.counters()
        perseus.allreduce(np.ones(10))
        after = perseus.counters()
        assert list(before) == list(after)
        assert sum(after.values()) > sum(before.values())

    def test_settings_tell_the_values_in_force(self, core):
        table = {setting.name: setting for setting in perseus.settings()}
        streams = table["PERSEUS_ALLREDUCE_STREAMS"]
        assert streams.type == "int"
        assert streams.range == "1 .. 64"
        assert "HOROVOD_NUM_NCCL_STREAMS" in streams.aliases
        assert 1 <= int(streams.value) <= 64

    def test_a_timeline_is_written_between_start_and_stop(self, core, tmp_path):
        path = tmp_path / "timeline.json"
        perseus.start_timeline(path)
        perseus.allreduce(np.ones(10), name="in.timeline")
        perseus.stop_timeline()
        perseus.barrier()
        if perseus.rank() == 0:
            assert "in.timeline" in json.dumps(json.loads(path.read_text()))

    def test_what_was_found_is_told(self):
        assert perseus.check_build()


def test_a_malformed_setting_is_named_with_its_range():
    perseus.shutdown()
    os.environ["PERSEUS_ALLREDUCE_STREAMS"] = "65"
    try:
        with pytest.raises(ValueError, match=r"PERSEUS_ALLREDUCE_STREAMS.*64"):
            perseus.init()
    finally:
        del os.environ["PERSEUS_ALLREDUCE_STREAMS"]
    perseus.init()
    perseus.barrier()
