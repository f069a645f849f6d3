"""Scripts that import horovod, run on Perseus."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from perseus.dropin import HOROVOD_VERSION, PROGRAMS, SITE, environment, shadow
from perseus.dropin.modules import MISSING, MODULES

pytest.importorskip("torch")
# Python may take the folder tests/python/tensorflow for TensorFlow; Keras comes with it.
HAS_TENSORFLOW = importlib.util.find_spec("keras") is not None

SCRIPT = """
import sys
import torch
import horovod
import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.mpi_ops import synchronize

hvd.init()
total = synchronize(hvd.allreduce_async(torch.ones(2) * (hvd.rank() + 1), op=hvd.Sum))
# In one piece, whoever writes beside us.
words = horovod.__version__, hvd.size(), total.tolist(), sys.argv[1:], __name__
sys.stdout.write(" ".join(map(str, words)) + "\\n")
"""
OF_ONE = "0.28.1 1 [1.0, 1.0] {} __main__\n"


def run(
    *arguments: str, environment: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **(environment or {})},
        cwd=cwd,
    )


def of_two(arguments: list[str]) -> list[str]:
    return [f"[{r}]<stdout>:0.28.1 2 [3.0, 3.0] {arguments} __main__" for r in range(2)]


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.fixture
def real_horovod(tmp_path: Path) -> Path:
    """Makes a site folder in which Horovod 0.27.0 seems to be installed."""
    site = tmp_path / "site"
    (site / "horovod").mkdir(parents=True)
    (site / "horovod/__init__.py").write_text("__version__ = 'theirs'")
    info = site / "horovod-0.27.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.27.0\n")
    return site


class TestStarting:
    def test_a_script_runs_unchanged(self, script: str) -> None:
        outcome = run("-m", "perseus.dropin", script, "--lr", "0.1")
        assert outcome.stdout == OF_ONE.format(["--lr", "0.1"]), outcome.stderr

    def test_under_the_launcher_and_in_the_programs_that_a_script_starts(self, script: str) -> None:
        starter = (
            f"import subprocess, sys; subprocess.run([sys.executable, {script!r}], check=True)"
        )
        dropin = [sys.executable, "-m", "perseus.dropin"]
        outcome = run("-m", "perseus.run", "-np", "2", *dropin, "-c", starter)
        assert sorted(outcome.stdout.splitlines()) == of_two([]), outcome.stderr

    def test_the_launcher_s_flag(self, script: str) -> None:
        outcome = run("-m", "perseus.run", "--drop-in", "-np", "2", sys.executable, script, "z")
        assert sorted(outcome.stdout.splitlines()) == of_two(["z"]), outcome.stderr

    def test_under_torchrun(self, script: str) -> None:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        outcome = run(*torchrun, "-m", "perseus.dropin", script, "z")
        expected = [line.partition(":")[2] for line in of_two(["z"])]
        assert outcome.stdout.splitlines() == expected, outcome.stderr

    @pytest.mark.parametrize(
        "program",
        [["ABOUT"], ["-m", "about"], ["-m", "package"], ["-c", "exec(open('ABOUT').read())"]],
        ids=["script", "module", "package", "code"],
    )
    @pytest.mark.parametrize("options", [[], ["-u", "-O"], ["-X", "utf8", "-W", "ignore"]], ids=str)
    def test_a_program_sees_what_it_sees_without_it(
        self, program: list[str], options: list[str], tmp_path: Path
    ) -> None:
        about = tmp_path / "about.py"
        about.write_text(
            """
import pickle, sys, warnings
def function(): return 5
import __main__
assert pickle.loads(pickle.dumps(function)) is __main__.function
spec = __spec__ and __spec__.name
path = [entry for entry in sys.path if not entry.endswith("dropin/site")]
print(__name__, globals().get("__file__"), spec, sys.argv, path, __debug__, sys.flags)
print(sys.warnoptions, sys._xoptions)
"""
        )
        (tmp_path / "package").mkdir()
        (tmp_path / "package/__main__.py").write_text(about.read_text())
        program = [part.replace("ABOUT", str(about)) for part in program]
        arguments = [*program, "--x", "-m", "y z"]
        with_it = run(*options, "-m", "perseus.dropin", *arguments, cwd=tmp_path)
        without = run(*options, *arguments, cwd=tmp_path)
        assert without.returncode == 0, without.stderr
        assert (with_it.stdout, with_it.stderr) == (without.stdout, without.stderr)

    def test_options_may_be_written_together(self, tmp_path: Path) -> None:
        program = tmp_path / "program.py"
        program.write_text("import horovod, sys; print(horovod.__version__, sys.argv[1:])")
        for options in (["-um", "perseus.dropin"], ["-mperseus.dropin"]):
            outcome = run(*options, str(program), "z")
            assert outcome.stdout == "0.28.1 ['z']\n", outcome.stderr

    def test_a_program_s_exit_status_is_the_outcome_s(self) -> None:
        assert run("-m", "perseus.dropin", "-c", "raise SystemExit(7)").returncode == 7

    def test_usage(self) -> None:
        help = run("-m", "perseus.dropin", "--help").stdout
        assert help.startswith("python [OPTION ...] -m perseus.dropin [-m MODULE | SCRIPT")
        for wrong in ([], ["-m"], ["-c"], ["--run"]):
            outcome = run("-m", "perseus.dropin", *wrong)
            assert outcome.returncode == 1
            assert outcome.stderr.startswith("usage:")

    def test_a_python_that_ignores_the_environment_is_refused(self, script: str) -> None:
        outcome = run("-E", "-m", "perseus.dropin", script)
        assert outcome.returncode == 1
        assert "it needs PYTHONPATH, which python -E and -I ignore" in outcome.stderr


class TestWorkers:
    """Processes that a script starts have the drop-in too."""

    def test_data_loaders_and_pools(self, tmp_path: Path) -> None:
        program = tmp_path / "train.py"
        program.write_text(
            """
import multiprocessing, sys, torch
import horovod.torch as hvd

class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        import horovod.torch.mpi_ops
        assert "perseus" in horovod.torch.mpi_ops.__name__
        return i

def double(i):
    import horovod.common.util
    return 2 * i

if __name__ == "__main__":
    hvd.init()
    # A process that is not a fork imports PyTorch, so one has to do.
    for context, workers in (("fork", 2), ("spawn", 1), ("forkserver", 1)):
        loader = torch.utils.data.DataLoader(
            Data(), num_workers=workers, multiprocessing_context=context
        )
        print(context, [int(i) for i in loader])
        with multiprocessing.get_context(context).Pool(workers) as pool:
            print(pool.map(double, range(3)))
"""
        )
        outcome = run("-m", "perseus.dropin", str(program))
        expected = "".join(
            f"{context} [0, 1, 2, 3]\n[0, 2, 4]\n" for context in ("fork", "spawn", "forkserver")
        )
        assert outcome.stdout == expected, outcome.stderr

    def test_horovod_run(self, tmp_path: Path) -> None:
        program = tmp_path / "launch.py"
        program.write_text(
            """
import horovod

def train(factor):
    import torch
    import horovod.torch as hvd
    hvd.init()
    return int(hvd.allreduce(torch.tensor(hvd.rank() + 1), op=hvd.Sum)) * factor

if __name__ == "__main__":
    import horovod.runner
    assert horovod.run is horovod.runner.run
    print(horovod.run(train, args=(10,), num_proc=2, use_gloo=True))
"""
        )
        outcome = run("-m", "perseus.dropin", str(program))
        assert outcome.stdout == "[30, 30]\n", outcome.stderr


class TestModules:
    def test_they_are_ours_and_not_copies(self) -> None:
        lines = ["import importlib, horovod"]
        for theirs, ours in MODULES.items():
            if theirs.startswith(("horovod.tensorflow", "horovod.keras")) and not HAS_TENSORFLOW:
                continue
            if ours.startswith("perseus.mxnet"):  # in tests/python/mxnet_jobs
                continue
            lines.append(f"a = importlib.import_module({theirs!r})")
            lines.append(f"b = importlib.import_module({ours!r})")
            lines.append(f"assert a is b and b.__name__ == b.__spec__.name == {ours!r}, {theirs!r}")
            lines.append("assert hasattr(a, '__path__') == a.__file__.endswith('__init__.py'), a")
        lines.append("import horovod.common.reduce_ops as a, perseus.common.reduce_ops as b")
        lines.append("assert a is b")
        outcome = run("-m", "perseus.dropin", "-c", "\n".join(lines))
        assert outcome.returncode == 0, outcome.stderr

    def test_what_users_take_from_them(self) -> None:
        code = """
import horovod, horovod.torch as hvd
from horovod.torch.mpi_ops import allreduce_async_, is_homogeneous, Sum, _basics
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.functions import broadcast_parameters
from horovod.torch.compression import Compression
from horovod.torch.sync_batch_norm import SyncBatchNorm
from horovod.torch.elastic import run, TorchState, ElasticSampler
from horovod.torch.elastic.state import StateHandler
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.common.basics import HorovodBasics
from horovod.common.elastic import ObjectState, State, run_fn
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import check_extension, extension_available, gloo_built, split_list
from horovod.runner.launch import run_commandline
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.common.util import codec, env, network, safe_shell_exec, secret, timeout
from horovod.runner.common.util.settings import Settings
from horovod.runner.util.threads import in_thread, on_event
from horovod.runner.util import network
from horovod.runner import _HorovodArgs
from horovod.runner.launch import _run, gloo_built, mpi_built
from horovod.common.util import _cache
hvd.init()
assert hvd.mpi_ops._basics is _basics and _basics.rank() == 0 and is_homogeneous()
assert HorovodBasics(__import__("perseus").__file__, "mpi_lib").size() == 1
check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", "train.py", "mpi_lib_v2")
assert hvd.HorovodInternalError is HorovodInternalError
assert hvd.elastic.run is run
"""
        outcome = run("-m", "perseus.dropin", "-c", code)
        assert outcome.returncode == 0, outcome.stderr

    @pytest.mark.skipif(not HAS_TENSORFLOW, reason="there is no TensorFlow")
    def test_what_users_take_from_those_of_tensorflow(self) -> None:
        code = """
import horovod.tensorflow as hvd
from horovod.common.util import is_version_greater_equal_than
from horovod.runner.common.util.env import get_env_rank_and_size
from horovod.tensorflow.mpi_ops import _basics
from horovod.tensorflow.util import _executing_eagerly
from horovod.tensorflow.data.compute_worker import main
hvd.init()
assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: [0]}
"""
        outcome = run("-m", "perseus.dropin", "-c", code)
        assert outcome.returncode == 0, outcome.stderr

    # tests/python/mxnet_jobs tests the modules within horovod.mxnet, where there is MXNet.
    @pytest.mark.parametrize("framework", ["torch", "tensorflow", ""])
    def test_what_is_not_there_yet_says_why(self, framework: str) -> None:
        if framework == "tensorflow" and not HAS_TENSORFLOW:
            pytest.skip("there is no TensorFlow")
        expected = {}
        for name in [*MISSING, "horovod.spark.torch"]:
            package = name.split(".")[1]
            if (package if package in ("torch", "tensorflow", "mxnet") else "") == framework:
                missing = name if name in MISSING else "horovod.spark"
                expected[name] = f"{missing} {missing}: {MISSING[missing]}"
        code = f"""
import importlib, importlib.util
for name in {list(expected)}:
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(error.name, error)
    if name != "horovod.spark.torch":
        assert importlib.util.find_spec(name) is None, name
"""
        outcome = run("-m", "perseus.dropin", "-c", code)
        assert outcome.stdout.splitlines() == list(expected.values()), outcome.stderr

    @pytest.mark.parametrize(
        "statement",
        [
            "from horovod import spark",
            "from horovod.runner import mpi_run",
            "from horovod.torch import mpi_lib_v2",
            "import horovod.runner.http.http_client",
        ],
    )
    def test_every_form_of_import_says_why(self, statement: str) -> None:
        outcome = run("-m", "perseus.dropin", "-c", statement)
        *_, line = outcome.stderr.splitlines()
        assert line.startswith("ModuleNotFoundError: ")
        assert line.partition(": ")[2].partition(": ")[2] in MISSING.values()

    def test_find_spec_finds_what_is_there_and_imports_no_framework(self) -> None:
        code = """
import sys
from importlib.util import find_spec
import horovod
for name in ("horovod.torch", "horovod.tensorflow", "horovod.mxnet", "horovod.runner.launch"):
    spec = find_spec(name)
    assert spec.name == name and spec.origin.endswith(".py"), spec
assert find_spec("horovod.runner.launch").submodule_search_locations is None
assert find_spec("horovod.nothing") is None and find_spec("horovod.runner.nothing") is None
assert not {"torch", "tensorflow", "mxnet"} & sys.modules.keys()
"""
        outcome = run("-m", "perseus.dropin", "-c", code)
        assert outcome.returncode == 0, outcome.stderr

    def test_what_never_was_is_missing_as_any_module_is(self) -> None:
        code = "import importlib.util as u; print(u.find_spec('horovod.no')); import horovod.no"
        outcome = run("-m", "perseus.dropin", "-c", code)
        assert outcome.stdout == "None\n"
        assert "No module named 'horovod.no'" in outcome.stderr

    def test_without_it_there_is_no_horovod(self) -> None:
        outcome = run("-c", "import perseus.dropin, horovod")
        assert "No module named 'horovod'" in outcome.stderr


class TestDistribution:
    """While the drop-in is active, a distribution named horovod seems to be installed."""

    CODE = "from importlib.metadata import version; print(version('horovod'))"

    def test_its_version_names_perseus(self) -> None:
        outcome = run("-m", "perseus.dropin", "-c", self.CODE)
        assert outcome.stdout == f"{HOROVOD_VERSION}+perseus\n", outcome.stderr

    def test_it_names_its_package_and_command(self) -> None:
        code = """
from importlib.metadata import distribution, packages_distributions
assert packages_distributions()["horovod"] == ["horovod"]
(command,) = distribution("horovod").entry_points
import horovod.runner.launch
assert command.name == "horovodrun" and command.load() is horovod.runner.launch.run_commandline
"""
        outcome = run("-m", "perseus.dropin", "-c", code)
        assert outcome.returncode == 0, outcome.stderr

    def test_there_is_none_without_it(self) -> None:
        outcome = run("-c", f"import perseus.dropin; {self.CODE}")
        assert "PackageNotFoundError" in outcome.stderr


class TestHorovodrun:
    RANKS = (
        "-np",
        "2",
        sys.executable,
        "-c",
        "import horovod.torch as h; h.init(); print(h.size())",
    )
    OF_TWO = ("[0]<stdout>:2", "[1]<stdout>:2")

    @pytest.mark.parametrize(
        "command",
        [
            ["--run", "horovodrun"],
            ["-m", "horovod.runner.launch"],
            ["--run", "sh", "-c", 'horovodrun "$@"', "sh"],
        ],
        ids=["command", "module", "shell"],
    )
    def test_it_starts_ranks_with_the_drop_in(self, command: list[str]) -> None:
        outcome = run("-m", "perseus.dropin", *command, *self.RANKS)
        assert tuple(sorted(outcome.stdout.splitlines())) == self.OF_TWO, outcome.stderr

    def test_programs_find_it(self) -> None:
        code = f"import subprocess; subprocess.run({['horovodrun', *self.RANKS]!r}, check=True)"
        outcome = run("-m", "perseus.dropin", "-c", code)
        assert tuple(sorted(outcome.stdout.splitlines())) == self.OF_TWO, outcome.stderr

    def test_ranks_find_it(self) -> None:
        where = ["sh", "-c", "command -v horovodrun"]
        outcome = run("-m", "perseus.run", "--drop-in", "-np", "1", *where)
        assert outcome.stdout == f"[0]<stdout>:{PROGRAMS}/horovodrun\n", outcome.stderr

    def test_its_version_is_horovod_s(self) -> None:
        outcome = run("-m", "perseus.dropin", "--run", "horovodrun", "--version")
        assert outcome.stdout == f"{HOROVOD_VERSION}\n", outcome.stderr

    def test_its_exit_status_is_the_job_s(self) -> None:
        outcome = run(
            "-m", "perseus.dropin", "--run", "horovodrun", "-np", "1", "sh", "-c", "exit 7"
        )
        assert outcome.returncode == 7

    def test_a_command_that_is_not_there_is_an_error(self) -> None:
        outcome = run("-m", "perseus.dropin", "--run", "no-such-command")
        assert outcome.returncode == 1
        assert "no-such-command cannot be run: No such file or directory" in outcome.stderr


class TestBesideTheRealHorovod:
    """Tests that the choice is explicit and reported once."""

    CODE = "import horovod; print(horovod.__version__)"

    def test_without_the_drop_in_it_is_theirs(self, real_horovod: Path) -> None:
        environment = {"PYTHONPATH": str(real_horovod)}
        assert run("-c", self.CODE, environment=environment).stdout == "theirs\n"
        outcome = run("-m", "perseus.run", "-np", "1", sys.executable, "-c", self.CODE,
                      environment=environment)  # fmt: skip
        assert outcome.stdout == "[0]<stdout>:theirs\n"

    def test_with_it_a_line_says_so_and_how_to_have_the_other(self, real_horovod: Path) -> None:
        environment = {"PYTHONPATH": str(real_horovod)}
        outcome = run("-m", "perseus.dropin", "-c", self.CODE, environment=environment)
        assert outcome.stdout == "0.28.1\n"
        assert outcome.stderr == (
            "perseus: 'import horovod' gives Perseus, as the drop-in has it, and not Horovod "
            f"0.27.0 in {real_horovod}/horovod; to use that one, start the program without "
            "--drop-in or perseus.dropin\n"
        )

    def test_a_folder_of_sources_is_one_too(self, real_horovod: Path) -> None:
        (real_horovod / "horovod-0.27.0.dist-info/METADATA").unlink()
        (real_horovod / "horovod-0.27.0.dist-info").rmdir()
        environment = {"PYTHONPATH": str(real_horovod)}
        outcome = run("-m", "perseus.dropin", "-c", self.CODE, environment=environment)
        assert f"and not Horovod in {real_horovod}/horovod;" in outcome.stderr

    @pytest.mark.parametrize("of_launcher", [True, False], ids=["flag", "module"])
    def test_a_job_says_it_once(self, of_launcher: bool, real_horovod: Path) -> None:
        code = f"import subprocess, sys; {self.CODE}; subprocess.run(sys.argv[1:], check=True)"
        again = [sys.executable, "-c", self.CODE]
        if of_launcher:
            job = ["--drop-in", "-np", "2", sys.executable, "-c", code, *again]
        else:
            job = ["-np", "2", sys.executable, "-m", "perseus.dropin", "-c", code, *again]
        outcome = run("-m", "perseus.run", *job, environment={"PYTHONPATH": str(real_horovod)})
        lines = sorted(outcome.stdout.splitlines())
        assert lines == 2 * ["[0]<stdout>:0.28.1"] + 2 * ["[1]<stdout>:0.28.1"], outcome.stderr
        (line,) = outcome.stderr.splitlines()
        tag = "perseusrun: " if of_launcher else "[0]<stderr>:perseus: "
        assert line.startswith(f"{tag}'import horovod' gives Perseus, as the drop-in has it")

    def test_one_that_python_finds_first_is_refused(self, real_horovod: Path) -> None:
        script = real_horovod / "train.py"
        script.write_text(self.CODE)
        theirs = f"{real_horovod}/horovod/__init__.py comes before the drop-in"
        outcome = run("-m", "perseus.dropin", str(script))
        assert (outcome.returncode, outcome.stdout) == (1, "")
        assert theirs in outcome.stderr
        outcome = run("-m", "perseus.run", "--drop-in", "-np", "1", sys.executable, str(script))
        assert (outcome.returncode, outcome.stdout) == (2, "")
        assert theirs in outcome.stderr

    def test_which_folder_is_looked_into_first(
        self, real_horovod: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        beside, elsewhere = str(real_horovod / "a.py"), str(tmp_path / "a.py")
        monkeypatch.chdir(real_horovod)
        assert shadow(["-u", "-X", "utf8", beside])
        assert not shadow([elsewhere, beside])
        assert shadow(["-m", "train"])
        assert shadow(["-u", "-c", "code"])
        monkeypatch.chdir(tmp_path)
        assert not shadow(["-m", "train"])
        assert not shadow(["--version"])


def test_the_folders_come_first_and_once() -> None:
    before = {"PATH": f"a{os.pathsep}{PROGRAMS}", "PYTHONPATH": f"a{os.pathsep}{SITE}{os.pathsep}b"}
    after = environment(before)
    assert after["PATH"] == os.pathsep.join([PROGRAMS, "a"])
    assert after["PYTHONPATH"] == os.pathsep.join([SITE, "a", "b"])
    assert environment({})["PYTHONPATH"] == SITE
    assert environment({})["PATH"] == os.pathsep.join([PROGRAMS, os.defpath])
