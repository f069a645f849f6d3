"""perseus_core and perseus.common in one process, most of it without the engine running."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import subprocess
import sys
import threading
import types

import numpy as np
import pytest

import perseus_core as perseus
from perseus.common import basics, exceptions, reduce_ops
from perseus.common.process_sets import ProcessSet
from perseus_core import _engine, arrays, callbacks, errors, names, refusals, submission


@pytest.fixture
def world_of_one():
    perseus.init()
    yield
    perseus.shutdown()


class TestErrors:
    @pytest.mark.parametrize(
        "status, expected",
        [
            (1, ValueError),
            (2, errors.NotInitializedError),
            (3, errors.AbortedError),
            (4, errors.MismatchError),
            (5, ValueError),
            (6, errors.TimedOutError),
            (7, errors.UnreachableError),
            (8, errors.HorovodInternalError),
            (10, errors.HorovodInternalError),
        ],
    )
    def test_each_status_has_its_class(self, status, expected):
        error = errors.from_status(status, "what happened")
        assert type(error) is expected
        assert str(error) == "what happened"

    def test_a_failed_collective_is_caught_as_in_horovod(self):
        assert exceptions.HorovodInternalError is errors.HorovodInternalError
        for cls in (errors.AbortedError, errors.MismatchError, errors.NotInitializedError):
            assert issubclass(cls, exceptions.HorovodInternalError)
            assert issubclass(cls, RuntimeError)

    def test_the_engine_raises_them(self):
        with pytest.raises(ValueError, match="name must hold 1 to 4096 bytes"):
            _engine.register(0, 0, "")
        with pytest.raises(errors.NotInitializedError):
            _engine.submit_allreduce(_engine.register(0, 0, "x"), None, 0, 0, (0,), 7, 1)

    @pytest.mark.parametrize(
        "call, error, message",
        [
            (lambda: _engine.register(0, 0), TypeError, "takes 3 to 3 arguments, not 2"),
            (lambda: _engine.register(0, 0, b"x"), TypeError, "must be a str"),
            (lambda: _engine.register(2**40, 0, "x"), TypeError, "32 bits"),
            (lambda: _engine.register(0, 0, "\udc80"), UnicodeEncodeError, "surrogates"),
            (lambda: _engine.submit_allreduce(1, None, 0, 0, [1], 7, 1), TypeError, "a tuple"),
            (lambda: _engine.submit_allreduce(1, None, 0, 0, ("1",), 7, 1), TypeError, "int"),
            (
                lambda: _engine.submit_allreduce(1, None, 0, 0, (1,) * 65, 7, 1),
                ValueError,
                "64 dim",
            ),
            (
                lambda: _engine.submit_allreduce(1, None, 0, 0, (), 7, 1, "2"),
                TypeError,
                "real number",
            ),
            (lambda: _engine.array_address([1.0]), TypeError, "ndarray"),
            (lambda: _engine.wait("1"), TypeError, "int"),
            (lambda: _engine.wait(2**62), ValueError, "never given out"),
            (lambda: _engine.finish(2**62), ValueError, "never given out"),
        ],
    )
    def test_the_calls_of_every_step_check_what_they_are_given(self, call, error, message):
        with pytest.raises(error, match=message):
            call()

    def test_interrupt_and_version_mismatch_carry_their_attributes(self):
        assert exceptions.HostsUpdatedInterrupt(True).skip_sync is True
        error = exceptions.HorovodVersionMismatchError("torch", "2.0", "1.0")
        assert isinstance(error, ImportError)
        assert (error.name, error.version, error.installed_version) == ("torch", "2.0", "1.0")


class TestArrays:
    def test_an_address_is_numpys(self):
        for array in (np.ones((2, 3)), np.ones(4)[1:], np.ones(()), np.broadcast_to(1.0, 3)):
            assert _engine.array_address(array) == array.__array_interface__["data"][0]

    def test_plain_arrays_are_not_copied(self):
        array = np.arange(6.0).reshape(2, 3)
        assert arrays.as_input(array) is array

    def test_scalars_keep_no_dimension(self):
        assert arrays.as_input(np.float32(3)).shape == ()
        assert arrays.as_input(3).shape == ()

    @pytest.mark.parametrize(
        "array", [np.arange(6)[::2], np.ones((2, 3)).T, np.arange(3, dtype=">i4")]
    )
    def test_others_are_copied_into_order(self, array):
        copy = arrays.as_input(array)
        assert arrays.is_plain(copy)
        np.testing.assert_array_equal(copy, array)

    def test_a_misaligned_array_is_copied(self):
        buffer = bytearray(17)
        array = np.frombuffer(buffer, np.float32, count=4, offset=1)
        assert arrays.as_input(array).flags.aligned

    @pytest.mark.parametrize("dtype", ["object", "complex64", "uint64", "datetime64[s]", "U3"])
    def test_types_that_cannot_be_sent_are_named(self, dtype):
        with pytest.raises(TypeError, match=np.dtype(dtype).name.split("[")[0]):
            arrays.as_array(np.zeros(2, dtype))

    def test_dlpack_shares_memory_and_lives_as_long_as_it_is_used(self):
        source = np.arange(12, dtype=np.int16).reshape(3, 4)
        taken = np.asarray(_engine.DlpackArray(source.T.__dlpack__()))
        assert taken.dtype == np.int16 and taken.shape == (4, 3)
        assert np.shares_memory(taken, source)
        del source
        gc.collect()
        np.testing.assert_array_equal(taken, np.arange(12).reshape(3, 4).T)

    def test_a_capsule_is_taken_once(self):
        capsule = np.ones(2).__dlpack__()
        _engine.DlpackArray(capsule)
        with pytest.raises(ValueError):
            _engine.DlpackArray(capsule)

    def test_dlpack_of_an_unknown_type_is_refused(self):
        with pytest.raises(TypeError, match="cannot be sent"):
            _engine.DlpackArray(np.ones(2, np.complex128).__dlpack__())


@pytest.mark.usefixtures("world_of_one")
class TestResults:
    @staticmethod
    def gathered(array: np.ndarray) -> _engine.Result:
        number = _engine.register(0, perseus.OperationKind.ALLGATHER, f"result.{array.dtype}")
        tensor = (array.ctypes.data, 0, array.shape, arrays.dtype_number(array.dtype))
        handle = _engine.submit(number, array, [tensor])
        _engine.wait(handle)
        result = _engine.Result(handle)
        with pytest.raises(ValueError, match="taken already"):
            _engine.Result(handle)
        _engine.release(handle)
        return result

    @pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "float16", "float32", "int64"])
    def test_the_buffer_protocol_and_dlpack_show_the_same_memory(self, dtype):
        source = np.arange(6).reshape(2, 3).astype(dtype)
        result = self.gathered(source)
        assert result.shape == (2, 3)
        through_buffer = np.asarray(result)
        through_dlpack = np.from_dlpack(result)
        assert result.__dlpack_device__() == (1, 0)
        np.testing.assert_array_equal(through_buffer, source)
        np.testing.assert_array_equal(through_dlpack, source)
        assert np.shares_memory(through_buffer, through_dlpack)

    @pytest.mark.parametrize("max_version", [None, (1, 0)])
    def test_a_capsule_that_nobody_took_gives_its_memory_back(self, max_version):
        result = self.gathered(np.ones(1000))
        capsule = result.__dlpack__(max_version=max_version)
        del result, capsule
        gc.collect()

    def test_a_tensor_outlives_the_result(self):
        tensor = np.from_dlpack(self.gathered(np.ones(1000)))
        gc.collect()
        assert tensor.sum() == 1000

    def test_a_wait_that_was_interrupted_as_it_began_can_begin_anew(self):
        def interrupt(frame, event, called):
            if event == "c_return" and called.__name__ == "acquire":
                sys.setprofile(None)
                raise KeyboardInterrupt

        handle = perseus.allreduce_async(np.ones(3), name="interrupted")
        sys.setprofile(interrupt)
        with pytest.raises(KeyboardInterrupt):
            handle.wait()
        assert (handle.wait(5) == 1).all()


class FakeEngine(types.SimpleNamespace):
    """Stands in for the engine in a submission; `names` and `refused` record the calls."""

    def __init__(self):
        super().__init__(names=[], refused=[], running=True)

    def register(self, process_set, kind, name):
        self.names.append((process_set, name))
        return len(self.names)

    def poll(self, handle):
        return 1

    def is_initialized(self):
        return self.running

    def refuse(self, id, reason):
        self.refused.append((self.names[id - 1][1], reason))


@pytest.fixture
def engine(monkeypatch):
    engine = FakeEngine()
    for module in (names, refusals, submission):
        monkeypatch.setattr(module, "_engine", engine)
    names.restart()
    return engine


ALLREDUCE = perseus.OperationKind.ALLREDUCE


def submit(prefix="allreduce", name=None, process_set=0, send=lambda id, keep: 7):
    return submission.submit(ALLREDUCE, prefix, name, process_set, None, send)


class TestNames:
    def test_a_given_name_gets_the_prefix(self, engine):
        assert submit(name="x") == 7
        assert engine.names == [(0, "allreduce.x")]

    def test_unnamed_ones_are_counted_by_prefix_and_set(self, engine):
        submit()
        submit("broadcast")
        submit(process_set=2)
        submit()
        assert [name for _, name in engine.names] == [
            "allreduce.noname.0",
            "broadcast.noname.0",
            "allreduce.noname.0",
            "allreduce.noname.1",
        ]

    def test_the_numbers_go_round_and_start_anew(self, engine):
        for _ in range(names.ROUND + 1):
            submit()
        assert engine.names[-1] == (0, "allreduce.noname.0")
        submit()
        names.restart()
        submit()
        assert engine.names[-1] == (0, "allreduce.noname.0")

    def test_when_all_have_joined_counting_starts_anew_but_waits_for_what_is_in_flight(
        self, engine
    ):
        submit(send=lambda id, keep: 7)
        names.all_have_joined()
        waited = []
        engine.poll = lambda handle: 0
        engine.wait = waited.append
        submit()
        assert engine.names[-1] == (0, "allreduce.noname.0")
        assert waited == [7]

    def test_a_new_set_is_counted_anew(self, engine):
        submit()
        submit(process_set=5)
        names.restart_set(5)
        submit()
        submit(process_set=5)
        assert engine.names[-2:] == [(0, "allreduce.noname.1"), (5, "allreduce.noname.0")]


def raising(error):
    def send(id, keep):
        raise error

    return send


class TestRefusals:
    """Tests that the other ranks are told of a call that fails in Python."""

    @staticmethod
    def fail(error, name=None, prefix="allreduce"):
        with pytest.raises(type(error)) as raised:
            with refusals.refusing(ALLREDUCE, prefix, name, 0):
                raise error
        assert raised.value is error

    def test_a_failed_submission_is_told_under_its_name(self, engine):
        with pytest.raises(TypeError):
            submit(name="x", send=raising(TypeError("wrong")))
        assert engine.refused == [("allreduce.x", "TypeError: wrong")]

    def test_what_fails_before_is_told_as_well(self, engine):
        self.fail(ValueError("wrong"), "x")
        assert engine.refused == [("allreduce.x", "ValueError: wrong")]

    def test_an_unnamed_call_that_fails_takes_its_number(self, engine):
        submit()
        self.fail(ValueError())
        with pytest.raises(TypeError):
            submit(send=raising(TypeError()))
        submit()
        assert [name for name, _ in engine.refused] == ["allreduce.noname.1", "allreduce.noname.2"]
        assert engine.names[-1] == (0, "allreduce.noname.3")

    def test_what_succeeds_takes_no_number(self, engine):
        with refusals.refusing(ALLREDUCE, "allreduce", None, 0):
            pass
        submit()
        assert engine.names == [(0, "allreduce.noname.0")]

    def test_an_error_is_told_once(self, engine):
        with pytest.raises(ValueError):
            with refusals.refusing(ALLREDUCE, "outer", None, 0):
                submit("inner", send=raising(ValueError("wrong")))
        assert [name for name, _ in engine.refused] == ["inner.noname.0"]

    def test_an_error_of_any_class_is_told(self, engine):
        @dataclasses.dataclass(frozen=True)
        class Frozen(Exception):
            code: int

            def __getattr__(self, name):
                return name

        class Mute(Exception):
            def __str__(self):
                raise RuntimeError

        self.fail(Frozen(3), "x")
        self.fail(Mute(), "y")
        assert [reason for _, reason in engine.refused] == ["Frozen: 3", "Mute"]

    def test_what_the_engine_raised_it_knows(self, engine):
        for status in range(1, 12):
            error = errors.from_status(status, "what happened")
            self.fail(error)
            with pytest.raises(type(error)):
                submit(name="x", send=raising(error))
        assert engine.refused == []

    def test_an_interrupt_is_left_alone(self, engine):
        with pytest.raises(KeyboardInterrupt):
            with refusals.refusing(ALLREDUCE, "allreduce", None, 0):
                raise KeyboardInterrupt
        with pytest.raises(KeyboardInterrupt):
            submit(send=raising(KeyboardInterrupt()))
        assert engine.refused == []

    def test_without_the_engine_nothing_is_told(self, engine):
        engine.running = False
        self.fail(ValueError("wrong"))
        with pytest.raises(TypeError):
            with refusals.refusing_all(ALLREDUCE, "allreduce", ["x"], 0):
                raise TypeError
        assert engine.names == engine.refused == []

    def test_a_refusal_that_fails_does_not_hide_the_error(self, engine, monkeypatch):
        monkeypatch.setattr(FakeEngine, "refuse", lambda *_: raising(errors.AbortedError())(0))
        self.fail(ValueError("wrong"))
        with pytest.raises(TypeError, match="wrong"):
            submit(name="x", send=raising(TypeError("wrong")))

    @pytest.mark.parametrize("name", [3, "nul\0", "surrogate\udc80"])
    def test_a_name_that_is_wrong_as_well_does_not_hide_it(self, engine, name):
        self.fail(ValueError("wrong"), name)
        assert engine.refused == []

    def test_the_reason_is_one_line_of_text(self, engine):
        self.fail(ValueError("first \udc80\0 line\nsecond line"))
        self.fail(ValueError("long " * 1000))
        self.fail(KeyError())
        first, long, none = (reason for _, reason in engine.refused)
        assert first == "ValueError: first \\udc80\\0 line"
        assert len(long) == 300 and long.endswith("...")
        assert none == "KeyError"

    def test_a_call_of_several_names_is_told_under_each(self, engine):
        with pytest.raises(ValueError):
            with refusals.refusing_all(ALLREDUCE, "allgather", ["a", "b"], 0):
                raise ValueError("wrong")
        assert [name for name, _ in engine.refused] == ["allgather.a", "allgather.b"]


class TestArguments:
    """Tests that an error is one line that names the argument."""

    @pytest.fixture(autouse=True)
    def running(self, world_of_one):
        pass

    @pytest.mark.parametrize(
        "name, error, message",
        [
            (3, TypeError, "name is 3; it takes a str"),
            (b"x", TypeError, "name is b'x'; it takes a str"),
            ("nul\0", ValueError, "null character"),
            ("half \ud800 of one", ValueError, "character 5 is a lone surrogate"),
            ("x" * 5000, ValueError, "1 to 4096 bytes"),
        ],
    )
    def test_names(self, name, error, message):
        with pytest.raises(error, match=message) as raised:
            perseus.allreduce(np.ones(2), name=name)
        assert "\n" not in str(raised.value)

    def test_a_name_of_any_script_is_fine(self):
        assert perseus.allreduce(np.ones(2), name="Größe 层 😀").tolist() == [1, 1]

    @pytest.mark.parametrize("process_set", ["world", 0.0, None, [0]])
    def test_process_sets(self, process_set):
        for call in (
            lambda: perseus.allreduce(np.ones(2), process_set=process_set),
            lambda: perseus.barrier(process_set=process_set),
            lambda: perseus.process_set_rank(process_set),
            lambda: perseus.process_set_size(process_set),
            lambda: perseus.process_set_ranks(process_set),
            lambda: perseus.remove_process_set(process_set),
        ):
            with pytest.raises(TypeError, match=r"process_set is .*; it takes a whole number"):
                call()

    @pytest.mark.parametrize("name, error", [(3, TypeError), ("a\0", ValueError)])
    def test_codecs(self, name, error):
        with pytest.raises(error, match="name is"):
            perseus.find_codec(name)
        with pytest.raises(error, match="name is"):
            perseus.register_codec(name, 0, 0, 0)

    def test_a_codec_that_is_not_there(self):
        with pytest.raises(ValueError, match="int4"):
            perseus.find_codec("int4")

    def test_handles(self):
        for use in (perseus.wait, perseus.poll):
            for wrong in (99, None, np.ones(2)):
                with pytest.raises(TypeError, match=f"needed, not {type(wrong).__name__}"):
                    use(wrong)

    def test_a_long_value_is_told_by_its_type(self):
        with pytest.raises(TypeError, match="op is of type ndarray"):
            perseus.allreduce(np.ones(2), op=np.ones((30, 30)))


class TestCallbacks:
    def test_one_that_raises_is_reported_and_does_not_stop_the_next(
        self, world_of_one, monkeypatch
    ):
        reported, seen, called = [], [], threading.Event()
        monkeypatch.setattr(sys, "unraisablehook", lambda error: reported.append(error.exc_type))

        def bad(handle):
            raise KeyError

        def good(handle):
            seen.append(handle)
            called.set()

        perseus.allreduce_async(np.ones(2), callback=bad).wait()
        handle = perseus.allreduce_async(np.ones(2), callback=good)
        assert called.wait(30)
        assert seen == [handle]
        assert reported == [KeyError]

    def test_the_thread_may_stop_and_start_again(self, world_of_one):
        for _ in range(3):
            called = threading.Event()
            perseus.allreduce_async(np.ones(2), callback=lambda handle: called.set())  # noqa: B023
            assert called.wait(30)
            callbacks.stop()

    def test_a_program_with_callbacks_ends(self):
        program = (
            "import numpy, perseus_core as p; p.init()\n"
            "p.allreduce_async(numpy.ones(2), callback=lambda handle: print('called'))\n"
        )
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
        )
        assert (ended.returncode, ended.stdout) == (0, "called\n"), ended.stderr


class TestProcessSet:
    def test_one_that_is_not_registered_knows_its_ranks_alone(self):
        process_set = ProcessSet([3, 1])
        assert str(process_set) == "ProcessSet(process_set_id=None, ranks=[1, 3], mpi_comm=None)"
        assert process_set.size() is None
        assert process_set.rank() is None
        assert process_set.included() is None

    @pytest.mark.parametrize("ranks", [3, ["0"], [0.5]])
    def test_it_takes_whole_numbers(self, ranks):
        with pytest.raises(ValueError):
            ProcessSet(ranks)


class TestInit:
    @pytest.mark.parametrize(
        "arguments", [{"comm": 3}, {"process_sets": "static"}, {"process_sets": [[0, 1]]}]
    )
    def test_what_it_does_not_take(self, arguments):
        with pytest.raises(ValueError):
            basics.Basics().init(**arguments)
        assert not perseus.is_initialized()

    def test_another_world_is_not_made_while_there_is_one(self, world_of_one, recwarn):
        perseus.init()
        perseus.init([0])
        assert [str(warning.message) for warning in recwarn] == []
        with pytest.warns(UserWarning, match=r"ranks=\[0, 1\]; this is ignored.* of \[0\]"):
            perseus.init([0, 1])
        assert perseus.size() == 1

    def test_a_bare_process_is_a_world_of_one(self, world_of_one):
        assert (perseus.rank(), perseus.size(), perseus.local_size()) == (0, 1, 1)
        assert perseus.cross_size() == 1
        assert perseus.is_homogeneous()

    def test_mpi_is_not_enabled_where_it_did_not_launch(self, world_of_one):
        assert not basics.Basics().mpi_enabled() and basics.Basics().gloo_enabled()
        with pytest.raises(ValueError, match="MPI is not enabled"):
            basics.Basics().mpi_threads_supported()


def test_the_op_that_average_stands_for():
    assert reduce_ops.resolve_op(None, None) == reduce_ops.Average
    assert reduce_ops.resolve_op(reduce_ops.Max, None) == reduce_ops.Max
    for average, op in ((True, reduce_ops.Average), (False, reduce_ops.Sum)):
        with pytest.warns(DeprecationWarning):
            assert reduce_ops.resolve_op(None, average) == op
    with pytest.raises(ValueError):
        reduce_ops.resolve_op(reduce_ops.Sum, True)
    with pytest.raises(ValueError, match=r"op is 6, which is not a reduction; .*Product \(5\)"):
        reduce_ops.resolve_op(6, None)


def test_a_rendezvous_gives_its_port_and_stops():
    with perseus.Rendezvous(2, "00ff" * 8, "127.0.0.1") as rendezvous:
        assert 0 < rendezvous.port < 65536
    rendezvous.stop()
    with pytest.raises(errors.UnreachableError):
        perseus.Rendezvous(2, "00ff" * 8, "203.0.113.1", 1)
    with pytest.raises(ValueError, match="the host of each rank, or none"):
        perseus.Rendezvous(2, "00ff" * 8, "127.0.0.1", hosts=["one"])


def test_a_codec_of_c_functions_is_found_by_its_name():
    encoded_size = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
    code = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
    )
    number = perseus.register_codec(
        "nothing", encoded_size(lambda user, n: n), code(lambda *_: None), code(lambda *_: None)
    )
    assert perseus.find_codec("nothing") == number
    with pytest.raises(ValueError):
        perseus.find_codec("unheard of")


def test_no_framework_is_imported():
    program = (
        "import sys, perseus_core\n"
        "print([m for m in ('torch', 'tensorflow', 'mxnet', 'jax') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stdout == "[]\n", ended.stderr
