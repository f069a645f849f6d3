"""Wrong arguments of elastic training get an error that names them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import perseus.run
from perseus.common.elastic import ObjectState, run_fn
from perseus.common.elastic_sampler import ElasticSampler
from perseus.common.handled_state import SAMPLERS, HandledState


def rank() -> int:
    return 0


def test_a_training_function_needs_a_state() -> None:
    def train(state: Any) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match=r"first argument of train is 5; it must be the State"):
        run_fn(train, rank)(5)


@pytest.mark.parametrize("name", ["commit", "sync", "_commits", "_saved_state"])
def test_a_value_cannot_have_the_name_of_what_a_state_has(name: str) -> None:
    with pytest.raises(ValueError, match=f"called '{name}'; it must have another name"):
        ObjectState(lambda value: value, rank, **{name: 3})
    with pytest.raises(ValueError, match=f"called '{name}'; it must have another name"):
        HandledState(lambda value: value, SAMPLERS, {name: 3})


def test_a_sampler_cannot_have_the_name_of_a_method() -> None:
    with pytest.raises(ValueError, match="called 'commit'"):
        HandledState(lambda value: value, SAMPLERS, {"commit": ElasticSampler(range(3))})


def test_an_attribute_that_a_program_sets_itself_may_be_a_value() -> None:
    class Own(ObjectState):
        epoch = 0

        def __init__(self) -> None:
            self.batch = 1
            super().__init__(lambda value: value, rank, epoch=2, batch=3)

    assert (Own().epoch, Own().batch) == (2, 3)


def test_a_value_that_cannot_be_pickled_is_named() -> None:
    def broadcast(values: Any) -> Any:
        raise TypeError("cannot pickle '_thread.lock' object")

    state = ObjectState(broadcast, rank, epoch=1, lock=threading.Lock())
    with pytest.raises(TypeError, match=r"the state's lock is <.*>; it must be something that can"):
        state.sync()
    with pytest.raises(TypeError, match=r"^cannot pickle"):  # for another reason
        ObjectState(broadcast, rank, epoch=1).sync()


@pytest.mark.parametrize("foreign", [{}, {"epoch": 1}, {"state": {}, "param_groups": []}, 3])
def test_a_sampler_loads_no_other_state_dict(foreign: Any) -> None:
    with pytest.raises(ValueError, match="it must have epoch and processed_num"):
        ElasticSampler(range(3)).load_state_dict(foreign)
    with pytest.raises(TypeError, match="the epoch of state_dict is 'a'"):
        ElasticSampler(range(3)).load_state_dict({"epoch": "a", "processed_num": 0})


def test_a_sampler_takes_whole_numbers() -> None:
    sampler = ElasticSampler(range(3))
    with pytest.raises(TypeError, match="epoch is 'a'; it takes a whole number"):
        sampler.set_epoch("a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_idx is -1; it must be 0 or more"):
        sampler.record_batch(-1, 2)
    with pytest.raises(ValueError, match="batch_size is -2; it must be 0 or more"):
        sampler.record_batch(0, -2)
    with pytest.raises(TypeError, match="batch_size is None; it takes a whole number"):
        sampler.record_batch(0, None)  # type: ignore[arg-type]
    assert (sampler.epoch, sampler.processed_num) == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"min_num_proc": "1"}, "min_num_proc is '1'; it must be a whole number"),
        ({"max_num_proc": 2.5}, "max_num_proc is 2.5; it must be a whole number"),
        ({"max_num_proc": 2, "slots": "1"}, "slots is '1'; it must be a whole number"),
        ({"max_num_proc": 2, "elastic_timeout": "9"}, "elastic_timeout is '9'; it must be a whole"),
        ({"max_num_proc": 2, "reset_limit": []}, r"reset_limit is \[\]; it must be a whole number"),
        ({"max_num_proc": 2, "cooldown_range": 3}, "cooldown_range is 3; it must be two numbers"),
        ({"max_num_proc": 2, "cooldown_range": (1,)}, r"cooldown_range is \(1,\); it must be two"),
        ({"max_num_proc": 2, "cooldown_range": "19"}, "cooldown_range is '19'; it must be two"),
        ({"host_discovery_script": 3}, "host_discovery_script is 3; it must be a str"),
        ({"num_proc": "2"}, "num_proc is '2'; it must be a whole number"),
    ],
)
def test_run_names_arguments_of_wrong_types(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(TypeError, match=error):
        perseus.run.run(rank, **arguments)
