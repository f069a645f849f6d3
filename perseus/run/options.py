"""The options of perseusrun, and their help.

`--help` shows those that most people need, `--help all` all of them, those of horovodrun too, and
`--help settings` the engine's settings. The man page and the completion of shells come from here.
"""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Sequence
from typing import Literal, NoReturn

from perseus.run.completion import SHELLS
from perseus.run.elastic_flags import add_elastic_flags
from perseus.run.ending import DEFAULT_GRACE_SECONDS
from perseus.run.flag_values import number, port
from perseus.run.setting_options import DEST, add_setting_options

#: Which options have a help text: those that most people need; all that have an effect; all.
Level = Literal["common", "effective", "all"]

#: How argparse begins its message about flags that it does not know.
_UNRECOGNIZED = "unrecognized arguments: "

USAGE = "perseusrun -np N [-H hosts] [options] {script.py|-m module|command} ..."
EXAMPLES = """\
examples:
  perseusrun -np 4 train.py
  perseusrun -np 8 -H host1:4,host2:4 train.py
  perseusrun -np 4 --quiet --only-rank 0 --output-filename logs train.py
"""
MORE_HELP = """\
more:
  perseusrun --help all        every option, those of horovodrun, too
  perseusrun --help settings   the environment variables that ranks read
  man perseusrun, and docs/launching.md
"""


def make_parser(level: Level = "effective") -> argparse.ArgumentParser:
    """Returns the parser. It takes the same arguments at each level, which is that of its help."""
    parser = _Parser(
        prog="perseusrun",
        usage=USAGE,
        description="Starts a command as the N ranks of a job, here or on other hosts.",
        formatter_class=_Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.set_defaults(notes=[], **{DEST: {}})
    _add_common_options(parser)
    _add_more_options(parser, level)
    add_elastic_flags(parser, level)
    add_setting_options(parser, level)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def flags_in(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Returns the flags that these arguments give, which `parser` takes without an error.

    A program's own flags count, too, if it has any.
    """
    flags = parser._option_string_actions
    spellings = ((word, word.partition("=")[0], word[:2]) for word in words)
    given = (next((flag for flag in spelling if flag in flags), None) for spelling in spellings)
    return [flag for flag in given if flag is not None]


def short_help() -> str:
    return f"{make_parser('common').format_help()}\n{EXAMPLES}\n{MORE_HELP}"


def whole_help() -> str:
    return f"{make_parser('all').format_help()}\n{EXAMPLES}"


def settings_help() -> str:
    """Returns the engine's table of settings. Loads the engine."""
    import perseus_core

    lines = [
        "Environment variables that the ranks read. `perseusrun --help all` shows their flags."
    ]
    for setting in perseus_core.settings():
        limits = f"{setting.range}, " if setting.range else ""
        default = setting.default or "empty"
        lines.append(f"  {setting.name} ({setting.type}, {limits}default {default})")
        also = f" Also: {', '.join(setting.aliases)}." if setting.aliases else ""
        indent = " " * 6
        text = setting.help + also
        lines += textwrap.wrap(text, 92, initial_indent=indent, subsequent_indent=indent)
    return "\n".join(lines) + "\n"


_TOPICS = {None: short_help, "all": whole_help, "settings": settings_help}


class _Help(argparse.Action):
    """Prints the help on a topic, and exits."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        print(_TOPICS[str(values) if values else None](), end="", flush=True)
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """For a mistyped flag, names the one that is most like it."""

    def error(self, message: str) -> NoReturn:
        flag = message.removeprefix(_UNRECOGNIZED).split("=")[0].split()[0]
        if message.startswith(_UNRECOGNIZED) and flag.startswith("-"):
            near = difflib.get_close_matches(flag, self._option_string_actions, 1)
            message = f"there is no flag {flag}" + (f"; did you mean {near[0]}?" if near else "")
        super().error(message)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Leaves more room for the names of options."""

    def __init__(self, prog: str, **options: int):
        super().__init__(prog, **{"max_help_position": 32, **options})


def _add_common_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-h",
        "--help",
        action=_Help,
        nargs="?",
        choices=["all", "settings"],
        metavar="TOPIC",
        help="show this, or what TOPIC names: all, settings",
    )
    parser.add_argument("-v", "--version", action="store_true", help="show the version, and exit")
    parser.add_argument(
        "-cb", "--check-build", action="store_true", help="show what was found here, and exit"
    )
    parser.add_argument(
        "--core-distances",
        action="store_true",
        help="measure how far apart this host's processors are, and exit",
    )
    parser.add_argument("-np", "--num-proc", type=_positive, metavar="N", help="ranks to start")
    parser.add_argument(
        "-m",
        "--module",
        action="store_true",
        help="run the Python module that follows",
    )
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument(
        "-H", "--hosts", metavar="HOST:SLOTS,...", help="hosts, and how many ranks each can run"
    )
    hosts.add_argument(
        "-hostfile", "--hostfile", metavar="FILE", help="a file of lines `host slots=N`"
    )
    parser.add_argument(
        "--min-np",
        "--min-num-proc",
        dest="least",
        type=_positive,
        metavar="N",
        help="go on without ranks that fail while N are left",
    )
    parser.add_argument(
        "--drop-in", action="store_true", help="`import horovod` gives Perseus in the ranks"
    )
    parser.add_argument(
        "--output-filename",
        metavar="FOLDER",
        help="also keep rank N's output in FOLDER/rank.N/",
    )
    parser.add_argument(
        "--only-rank",
        type=_whole_number,
        metavar="R",
        help="show the output of rank R alone; files get all",
    )
    parser.add_argument(
        "--no-tag", dest="tags", action="store_false", help="lines do not begin with [rank]<stream>"
    )
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument(
        "--quiet", action="store_true", help="show the ranks' output and errors alone"
    )
    amount.add_argument("--verbose", action="store_true", help="say what is started where")
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=DEFAULT_GRACE_SECONDS,
        metavar="SECONDS",
        help=f"from SIGTERM to SIGKILL ({DEFAULT_GRACE_SECONDS:g} by default)",
    )


def _add_more_options(parser: argparse.ArgumentParser, level: Level) -> None:
    def help_of(text: str) -> str:
        return argparse.SUPPRESS if level == "common" else text

    launchers = parser.add_mutually_exclusive_group()
    launchers.add_argument(
        "--mpi",
        action="store_true",
        help=help_of("start the ranks with mpirun (Open MPI or MPICH)"),
    )
    launchers.add_argument(
        "--gloo",
        action="store_true",
        help=help_of("start the ranks without mpirun (the default)"),
    )
    parser.add_argument(
        "--mpi-args", default="", metavar="ARGS", help=help_of("more arguments for mpirun")
    )
    parser.add_argument(
        "--binding-args",
        default="",
        metavar="ARGS",
        help=help_of("mpirun's arguments for binding ranks"),
    )
    parser.add_argument(
        "--tcp",
        action="store_true",
        help=help_of("with --mpi: MPI uses TCP only; NCCL_IB_DISABLE=1"),
    )
    parser.add_argument(
        "--start-timeout",
        type=_positive,
        metavar="S",
        help=help_of("seconds until all ranks must have started and met (PERSEUS_START_TIMEOUT)"),
    )
    parser.add_argument("-p", "--ssh-port", type=port, metavar="PORT", help=help_of("port of sshd"))
    parser.add_argument(
        "-i", "--ssh-identity-file", metavar="FILE", help=help_of("private key for ssh")
    )
    parser.add_argument(
        "-prefix-timestamp",
        "--prefix-timestamp",
        "--prefix-output-with-timestamp",
        dest="timestamps",
        action="store_true",
        help=help_of("lines begin with the time"),
    )
    parser.add_argument(
        "--config-file",
        metavar="FILE",
        help=help_of("settings in YAML, as Horovod has them (needs PyYAML)"),
    )
    parser.add_argument(
        "--drain",
        metavar="HOST",
        help=help_of("have the ranks on this host leave an elastic job that runs here, and exit"),
    )
    parser.add_argument(
        "--job",
        type=_positive,
        metavar="PID",
        help=help_of("with --drain: the job, by the process id of its first perseusrun"),
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const=0,
        type=_positive,
        metavar="JOB",
        help=help_of(
            "take over an elastic job whose perseusrun was killed; without JOB, list such jobs"
        ),
    )
    parser.add_argument(
        "--end",
        type=_positive,
        metavar="JOB",
        help=help_of("end an elastic job whose perseusrun was killed"),
    )
    parser.add_argument(
        "--print-completion",
        choices=SHELLS,
        help=help_of("print what lets this shell complete perseusrun's arguments, and exit"),
    )


def _positive(text: str) -> int:
    value = _whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None


def _seconds(text: str) -> float:
    return float(number(0, 86400)(text))
