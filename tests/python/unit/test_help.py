"""perseusrun's help, its man page, and what shells complete it with."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest
from conftest import skip_or_fail

import perseus
import perseus_core
from perseus.run.completion import SHELLS, completion_script
from perseus.run.options import EXAMPLES, make_parser
from perseus.run.setting_options import SETTING_OPTIONS

ROOT = Path(__file__).resolve().parents[3]
HOROVODRUN_FLAGS = json.loads((Path(__file__).parent / "horovodrun_flags.json").read_text())


def perseusrun(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perseus.run", *arguments]
    variables = {**os.environ, "COLUMNS": "80", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=variables)


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_is_a_screenful(flag: str) -> None:
    result = perseusrun(flag)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert len(lines) <= 40
    assert all(len(line) <= 80 for line in lines)
    for wanted in ("usage:", "-np N", "-H HOST", "--quiet", "--help all", "--help settings"):
        assert wanted in result.stdout


def test_the_examples_of_the_help_are_accepted() -> None:
    assert EXAMPLES in perseusrun("--help").stdout
    examples = [line.split() for line in EXAMPLES.splitlines() if "perseusrun" in line]
    assert len(examples) >= 3
    for _, *arguments in examples:
        assert make_parser().parse_args(arguments).command == ["train.py"]


def test_the_short_help_does_not_load_the_engine() -> None:
    script = """
import sys
from perseus.run import options
options.short_help()
assert "perseus_core" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_help_on_settings_shows_every_setting_with_its_default() -> None:
    text = perseusrun("--help", "settings").stdout
    for setting in perseus_core.settings():
        assert f"  {setting.name} ({setting.type}, " in text
        assert f"default {setting.default or 'empty'})" in text


def test_the_whole_help_shows_every_flag_of_ours_and_of_horovodrun() -> None:
    shown = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", perseusrun("--help", "all").stdout))
    assert HOROVODRUN_FLAGS.keys() <= shown
    ours = {flag for action in make_parser()._actions for flag in action.option_strings}
    assert ours <= shown
    assert {flag for option in SETTING_OPTIONS for flag in option.flags} <= shown


@pytest.mark.parametrize(
    "arguments", ["--help", "--help all", "--version", "--check-build", "--print-completion bash"]
)
def test_a_reader_that_has_gone_is_no_error(arguments: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    # Buffered, as users have it: what is short is only written at the end.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    try:
        result = subprocess.run(
            [sys.executable, "-m", "perseus.run", *arguments.split()],
            stdout=writing,
            stderr=subprocess.PIPE,
            env=environment,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (128 + signal.SIGPIPE, b"")


def test_a_topic_that_does_not_exist_is_refused() -> None:
    result = perseusrun("--help", "everything")
    assert result.returncode == 2
    assert "invalid choice: 'everything'" in result.stderr


def test_the_page_on_launching_has_every_option_of_the_short_help() -> None:
    page = (ROOT / "docs/launching.md").read_text()
    short_help = perseusrun("--help").stdout
    options = re.findall(r"^  (-.*?)(?:  |$)", short_help, re.M)
    names = [re.findall(r"(?<![\w-])--?[A-Za-z][a-z-]*", option) for option in options]
    assert ["--grace"] in names
    there = set(re.findall(r"(?<![\w-])--?[A-Za-z][a-z-]*", page))
    assert [each for each in names if not there & set(each)] == [["-v", "--version"]]


def test_the_man_page_and_the_scripts_for_shells_are_current() -> None:
    script = [sys.executable, str(ROOT / "scripts/make_shell_files.py"), "--check"]
    result = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_man_shows_the_page_without_complaint() -> None:
    if not shutil.which("man"):
        skip_or_fail("there is no man")
    page = str(ROOT / "docs/man/perseusrun.1")
    # Debian's images without documentation replace man by a message.
    result = subprocess.run(
        ["man", "--warnings", "-l", page],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "MANWIDTH": "80", "LC_ALL": "C"},
    )
    if "minimized" in result.stdout:
        skip_or_fail("this system has no manual")
    assert (result.returncode, result.stderr) == (0, "")
    for wanted in ("perseusrun - start", "--only-rank R", "--help all", "NO_COLOR", "EXAMPLES"):
        assert wanted in result.stdout.replace("\b", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_for_a_shell_is_printed(shell: str) -> None:
    result = perseusrun("--print-completion", shell)
    assert result.returncode == 0
    assert result.stdout == completion_script(shell)


def test_a_shell_without_a_script_is_refused() -> None:
    result = perseusrun("--print-completion", "cmd")
    assert result.returncode == 2
    assert "invalid choice: 'cmd'" in result.stderr


#: A command line that ends where Tab is pressed, and what is then suggested.
COMPLETIONS = {
    "perseusrun --only": {"--only-rank"},
    "perseusrun -n": {"-np"},
    "perseusrun --quiet --print-completion f": {"fish"},
    "perseusrun -np 2 --config-file sett": {"settings.yaml"},
    "perseusrun -np 2 ./trai": {"./train.py"},
    "perseusrun -np 2 python trai": {"train.py"},
    "perseusrun -np 2 -- python trai": {"train.py"},
    # The options behind the command are not perseusrun's.
    "perseusrun -np 2 ./train.py --only": set(),
}


def completed_by_bash(line: str, folder: Path) -> set[str]:
    script = """
eval "$(cat "$1")"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_shtab_perseusrun && printf '%s\\n' "${COMPREPLY[@]}"
"""
    path = str(ROOT / "perseus/run/completion_scripts/perseusrun.bash")
    return set(_run(["bash", "-c", script, "bash", path, *line.split(" ")], folder).split())


def completed_by_fish(line: str, folder: Path) -> set[str]:
    path = str(ROOT / "perseus/run/completion_scripts/perseusrun.fish")
    suggested = _run(["fish", "-c", "source $argv[1]; complete -C $argv[2]", path, line], folder)
    return {line.partition("\t")[0] for line in suggested.splitlines()}


def completed_by_zsh(line: str, folder: Path) -> set[str]:
    """Presses Tab on a terminal and has zsh print the line that it then has."""
    path = ROOT / "perseus/run/completion_scripts/perseusrun.zsh"
    # The widget puts the line into a file in place of running it.
    (folder / ".zshrc").write_text(f"""
autoload -Uz compinit && compinit -u -D
eval "$(cat {path})"
show() {{ print -r -- "$BUFFER" > shown.new; mv shown.new shown; exit }}
zle -N show
bindkey '^X' show
print ready
""")
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execvpe("zsh", ["zsh", "-i"], {**os.environ, "ZDOTDIR": str(folder), "TERM": "xterm"})
    try:
        output = b""
        while b"ready" not in output:
            output += os.read(terminal, 4096)
        os.write(terminal, f"{line}\t\x18".encode())
        deadline = time.monotonic() + 30
        while not (folder / "shown").exists():
            assert time.monotonic() < deadline
            os.read(terminal, 4096)
    except OSError:
        pass  # zsh has ended
    finally:
        os.close(terminal)
        os.waitpid(process, 0)
    shown = (folder / "shown").read_text().rstrip()
    return set() if shown == line else {shown.split(" ")[-1]}


def _run(command: list[str], folder: Path) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder)
    assert result.stderr == ""
    return result.stdout


@pytest.mark.parametrize("line", COMPLETIONS)
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes(shell: str, line: str, tmp_path: Path) -> None:
    if not shutil.which(shell):
        skip_or_fail(f"there is no {shell}")
    program = tmp_path / "train.py"
    program.touch()
    program.chmod(0o755)
    (tmp_path / "settings.yaml").touch()
    complete = {"bash": completed_by_bash, "zsh": completed_by_zsh, "fish": completed_by_fish}
    assert complete[shell](line, tmp_path) == COMPLETIONS[line]


def test_the_version_is_known_where_nothing_is_installed(tmp_path: Path) -> None:
    """Only folders in PYTHONPATH: this tree, and what Perseus needs."""
    for name in ("cloudpickle", "numpy", "numpy.libs"):
        if (found := Path(numpy.__file__).parents[1] / name).exists():
            (tmp_path / name).symlink_to(found)
    result = subprocess.run(
        [sys.executable, "-S", "-m", "perseus.run", "--version"],
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout == f"perseus {perseus.__version__}\n", result.stderr
