"""Messages between two ranks: every dtype and shape, in any order, and what is refused."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from references import DTYPES, numpy_dtype, rank_input

import perseus_core as perseus

pytestmark = pytest.mark.usefixtures("core")

SHAPES = [(), (0,), (1,), (17,), (3, 5), (0, 4), (4099,), (300, 700)]


def neighbours() -> tuple[int, int]:
    """Returns the next rank of the ring, and the one before: both are this one if it is alone."""
    rank, size = perseus.rank(), perseus.size()
    return (rank + 1) % size, (rank - 1) % size


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_message_carries_its_shape_and_dtype(dtype: str) -> None:
    to, from_ = neighbours()
    for tag, shape in enumerate(SHAPES):
        sending = perseus.isend(rank_input(perseus.rank(), shape, dtype), to, tag=tag)
        array, source, got = perseus.recv(from_, tag=tag)
        assert (source, got, array.shape, array.dtype) == (from_, tag, shape, numpy_dtype(dtype))
        np.testing.assert_array_equal(array, rank_input(from_, shape, dtype))
        assert sending.wait() is None


def test_any_tag_is_one_of_the_programs_own() -> None:
    """Libraries have tags from 2**30 on, for which a program does not ask by accident."""
    to, from_ = neighbours()
    anything = perseus.irecv()
    for tag in (2**30, 2**31 - 1):
        sending = perseus.isend(np.float32(tag), to, tag=tag)
        array, _, got = perseus.recv(tag=tag)
        assert (float(array), got) == (np.float32(tag), tag)
        sending.wait()
    assert not anything.poll()
    perseus.barrier()  # nobody sends the next before all have looked
    sending = perseus.isend(np.float32(7), to, tag=2**30 - 1)
    array, source, got = anything.wait()
    assert (float(array), source, got) == (7, from_, 2**30 - 1)
    sending.wait()


@pytest.mark.parametrize("elements", [10, 1000, 100_000])
def test_a_message_goes_into_the_array_that_is_given(elements: int) -> None:
    to, from_ = neighbours()
    expected = rank_input(from_, (elements,), "float32")
    wide = np.zeros((2, elements), np.float32)
    for out in (wide[0], wide[:, : elements // 2].T, wide.reshape(-1)[::2].astype(">f4")):
        wide[:] = 0
        sending = perseus.isend(rank_input(perseus.rank(), (elements,), "float32"), to)
        message = perseus.recv(from_, out=out)
        assert message.array is out
        np.testing.assert_array_equal(out.reshape(-1), expected)
        sending.wait()


def test_messages_are_taken_by_tag_in_any_order() -> None:
    to, from_ = neighbours()
    sends = [perseus.isend(np.full(1 + 3000 * (i % 2), i), to, tag=i) for i in range(40)]
    for i in reversed(range(40)):
        assert perseus.recv(from_, tag=i).array[0] == i
    for handle in sends:
        handle.wait()


def test_messages_of_one_tag_are_taken_in_order() -> None:
    to, from_ = neighbours()
    receives = [perseus.irecv(from_, tag=3) for _ in range(40)]
    sends = [perseus.isend(np.full(1 + 3000 * (i % 2), i), to, tag=3) for i in range(80)]
    taken = [handle.wait() for handle in receives]
    taken += [perseus.recv(from_) for _ in range(40)]
    assert [int(message.array[0]) for message in taken] == list(range(80))
    for handle in sends:
        handle.wait()


def test_messages_from_any_rank() -> None:
    rank, size = perseus.rank(), perseus.size()
    sends = [perseus.isend(np.array([rank, i]), to, tag=i) for to in range(size) for i in range(3)]
    came = [perseus.recv() for _ in range(3 * size)]
    for message in came:
        assert message.array.tolist() == [message.source, message.tag]
    for source in range(size):
        assert [m.tag for m in came if m.source == source] == [0, 1, 2]
    for handle in sends:
        handle.wait()
    perseus.barrier()  # nobody takes a message of the next test


def test_threads_exchange_messages_with_tags_of_their_own() -> None:
    to, from_ = neighbours()
    errors = []

    def exchange(tag: int) -> None:
        try:
            for i in range(50):
                sending = perseus.isend(np.full(1 + 100 * i, i), to, tag=tag)
                array = perseus.recv(from_, tag=tag).array
                assert array.shape == (1 + 100 * i,) and (array == i).all()
                sending.wait()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=exchange, args=(tag,)) for tag in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_messages_beside_collectives() -> None:
    to, from_ = neighbours()
    for i in range(20):
        total = perseus.allreduce_async(np.full(50_000, i), perseus.ReduceOp.SUM, name=f"sum{i}")
        sending = perseus.isend(np.full(50_000, i), to, tag=1)
        assert (perseus.recv(from_, tag=1).array == i).all()
        assert (total.wait() == i * perseus.size()).all()
        sending.wait()


def test_messages_of_a_process_set() -> None:
    rank = perseus.rank()
    if perseus.size() > 2:
        process_set = perseus.add_process_set([0, 1])
        if rank < 2:
            perseus.send(np.array(1), 1 - rank, process_set=process_set)
            perseus.send(np.array(2), 1 - rank)
            assert perseus.recv().array == 2
            assert perseus.recv(process_set=process_set).array == 1
            perseus.barrier(process_set=process_set)
        else:
            with pytest.raises(ValueError, match=rf"rank {rank} does not belong to process set"):
                perseus.recv(process_set=process_set)
        perseus.remove_process_set(process_set)
        with pytest.raises(ValueError, match=f"there is no process set {process_set}"):
            perseus.send(np.array(1), 0, process_set=process_set)
    with pytest.raises(ValueError, match="there is no process set 99"):
        perseus.send(np.array(1), 0, process_set=99)


def test_a_callback_gets_the_message() -> None:
    to, from_ = neighbours()
    came: list[perseus.Message] = []
    done = threading.Event()

    def note(handle: perseus.Handle[perseus.Message]) -> None:
        came.append(handle.wait())
        done.set()

    receive = perseus.irecv(from_, tag=9, callback=note)
    perseus.isend(np.arange(5), to, tag=9, callback=lambda handle: handle.wait()).wait()
    assert done.wait(30)
    assert came[0].array.tolist() == [0, 1, 2, 3, 4]
    assert receive.wait() is came[0]


def test_a_message_that_does_not_fit() -> None:
    to, from_ = neighbours()
    for out in (np.zeros(4, np.float32), np.zeros(5)):
        sending = perseus.isend(np.zeros(5, np.float32), to, tag=2)
        with pytest.raises(perseus.MismatchError) as failed:
            perseus.recv(from_, tag=2, out=out)
        for part in (
            f"recv from rank {from_} (tag 2): rank {from_} sent float32[5] with tag 2",
            f"rank {perseus.rank()} asked for {out.dtype.name}[{out.size}]",
            "must have the same data type and number of elements",
        ):
            assert part in str(failed.value)
        if to != perseus.rank():
            sending.wait()  # so small a message is on its way before anybody asks for it
    # The job goes on.
    perseus.send(np.ones(1), to)
    assert perseus.recv(from_).array == 1


def test_a_mistake_of_one_rank_fails_on_the_other() -> None:
    to, from_ = neighbours()
    with pytest.raises(TypeError, match="cannot be sent"):
        perseus.isend(np.array(["text"]), to, tag=3)
    with pytest.raises(perseus.MismatchError) as failed:
        perseus.recv(from_, tag=3)
    for part in (f"recv from rank {from_} (tag 3): rank {from_} could not take part", "dtype"):
        assert part in str(failed.value)
    # So large that it waits for its receive, or meets it.
    sending = perseus.isend(np.zeros(2_000_000), to, tag=4)
    with pytest.raises(ValueError, match="out is read-only"):
        perseus.recv(from_, tag=4, out=np.broadcast_to(np.ones(1), (2_000_000,)))
    with pytest.raises(perseus.MismatchError, match=f"rank {to} could not take part"):
        sending.wait()
    perseus.send(np.ones(1), to)
    assert perseus.recv(from_).array == 1


#: What a codec may lose of a number, and the bytes that it takes for each.
CODECS = {"none": (0.0, 4), "fp16": (2.0**-11, 2), "bf16": (2.0**-8, 2)}


@pytest.mark.parametrize("elements", [0, 1, 1000, 30_000, 600_000])
@pytest.mark.parametrize("codec", CODECS)
def test_codecs_lose_no_more_than_their_type(codec: str, elements: int) -> None:
    to, from_ = neighbours()
    number = perseus.find_codec(codec)
    unit, _ = CODECS[codec] if to != perseus.rank() else (0, 4)  # nothing travels to oneself
    array = rank_input(perseus.rank(), (elements,), "float32")
    sending = perseus.isend(array, to, codec=number)
    if elements != 30_000:  # some are asked for before they come, and some after
        perseus.barrier()
    expected = rank_input(from_, (elements,), "float32").astype("float64")
    message = perseus.recv(from_)
    assert message.array.dtype == np.float32 and message.array.shape == (elements,)
    assert (np.abs(message.array - expected) <= unit * np.abs(expected)).all()
    sending.wait()
    out = np.zeros(elements, np.float32)
    sending = perseus.isend(array, to, codec=number)
    perseus.recv(from_, out=out)
    np.testing.assert_array_equal(out, message.array)
    sending.wait()


def test_counters_count_the_bytes_that_travel() -> None:
    to, from_ = neighbours()
    for codec, (_, size) in CODECS.items():
        for elements in (1000, 100_000):
            before = perseus.counters()["message_bytes_sent"]
            array = np.ones(elements, np.float32)
            sending = perseus.isend(array, to, codec=perseus.find_codec(codec))
            perseus.recv(from_)
            sending.wait()
            sent = perseus.counters()["message_bytes_sent"] - before
            scale = 4 if codec == "fp16" and to != perseus.rank() else 0
            assert sent == elements * (size if to != perseus.rank() else 4) + scale


def test_a_codec_that_does_not_fit() -> None:
    to, from_ = neighbours()
    fp16 = perseus.find_codec("fp16")
    why = r"codec is 'fp16'; it must be 'none' for float64\[3\], since codecs encode float32"
    with pytest.raises(ValueError, match=why):
        perseus.send(np.zeros(3), to, codec=fp16)
    with pytest.raises(perseus.MismatchError, match=f"could not take part: {why}"):
        perseus.recv(from_)
    with pytest.raises(ValueError, match="there is no codec 99"):
        perseus.send(np.zeros(3, np.float32), to, codec=99)
    with pytest.raises(perseus.MismatchError, match="there is no codec 99"):
        perseus.recv(from_)
    with pytest.raises(TypeError, match="codec"):
        perseus.send(np.zeros(3, np.float32), to, codec="fp16")
    with pytest.raises(perseus.MismatchError, match="could not take part: TypeError"):
        perseus.recv(from_)


def test_wrong_arguments() -> None:
    size = perseus.size()
    one = np.ones(1)
    with pytest.raises(ValueError, match=rf"rank {size} does not belong to process set 0"):
        perseus.send(one, size)
    with pytest.raises(ValueError, match=r"rank -1 does not belong"):
        perseus.send(one, -1)
    with pytest.raises(ValueError, match=r"the tag is -1; it must be 0 or more"):
        perseus.send(one, 0, tag=-1)
    with pytest.raises(ValueError, match=r"tag is -1; it must be 0 or more, or None for any"):
        perseus.recv(0, tag=-1)
    with pytest.raises(ValueError, match=r"source is -2; it must be 0 or more, or None for any"):
        perseus.recv(-2)
    with pytest.raises(TypeError, match="dest"):
        perseus.send(one, 0.5)
    with pytest.raises(TypeError, match="callback is int, which is not callable"):
        perseus.isend(one, perseus.rank(), callback=3)
    with pytest.raises(perseus.MismatchError, match="could not take part: TypeError: callback"):
        perseus.recv(perseus.rank())
