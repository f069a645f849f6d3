"""make_shell_files.py [--check]: writes perseusrun's man page, and what shells complete it with.

They are made from perseusrun's parser. Run with a Python that has the packages of
requirements/test.txt. With --check it writes nothing, and fails if a file is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import shtab
from argparse_manpage.manpage import Manpage
from generated_page import ROOT

from perseus.run.completion import SHELLS
from perseus.run.options import EXAMPLES, make_parser

MAN_PAGE = ROOT / "docs/man/perseusrun.1"
SCRIPTS = ROOT / "perseus/run/completion_scripts"

#: What completes a value, by its name in the help.
COMPLETED = {"FILE": shtab.FILE, "FOLDER": shtab.DIRECTORY}
#: What completes the command and its arguments.
COMMAND = {
    "bash": "_perseusrun_complete_command",
    "zsh": "_normal",
    "fish": "(__fish_complete_command; __fish_complete_path (commandline -ct))",
}
PREAMBLE = {
    "bash": """\
_perseusrun_complete_command() {
  [[ $completing_word == -* ]] || compgen -A command -A file -- "$1"
}
"""
}
#: Changes to what shtab writes: the part and what stands for it. After the command has begun,
#: options are the command's, and fish calls options such as -np "old".
CHANGES = {
    "bash": [
        (
            r'if \[\[ \$pos_only = 0 && "\$completing_word" == -\* &&',
            r'\g<0> ! ( "$current_action_nargs" == *"..." &&\n'
            r"        $word_index -gt $current_action_args_start_index ) &&",
        )
    ],
    "zsh": [],
    "fish": [
        (
            r'test "\$_shtab_perseusrun_cmdpath" = "\$argv"',
            r"test $_shtab_perseusrun_npos -eq 0",
        ),
        (r" -n '_shtab_perseusrun_using; and test \$_shtab_perseusrun_npos -ge 0'", ""),
        (r"(?<= )-s (?=\w[\w-])", "-o "),
    ],
}

#: argparse-manpage leaves out --help.
HELP = """\
.TP
.B \\-h, \\-\\-help
show the options that most people need
.TP
.B \\-\\-help all
show every option
.TP
.B \\-\\-help settings
show the environment variables that the ranks read"""
EXIT_STATUS = """\
0 if all ranks have ended well, else the exit status of the rank that failed first; 128 and the
number of a signal if that has ended the rank, or perseusrun. 2 if the job cannot start as asked."""
ENVIRONMENT = """\
.TP
.B PERSEUS_...
Settings, which
.B perseusrun --help settings
explains.
.TP
.B PERSEUSRUN_RSH
The command that reaches other hosts, with options, instead of ssh.
.TP
.B NO_COLOR, FORCE_COLOR
If NO_COLOR is set, tags have no colours. If FORCE_COLOR is set, and not to 0, they have colours
even where the output is not a terminal."""


def man_page() -> str:
    page = Manpage(make_parser())
    page.date = ""  # nothing but the parser may change the page
    page.source = page.manual = "Perseus"
    page.description = "start a command as the ranks of a job"
    examples = [line.strip() for line in EXAMPLES.splitlines()[1:]]
    page.add_section("HELP", "=", HELP)
    page.add_section("EXIT STATUS", "=", EXIT_STATUS)
    page.add_section("ENVIRONMENT", "=", ENVIRONMENT)
    page.add_section("EXAMPLES", "=", "\n".join([".nf", *examples, ".fi"]).replace("-", r"\-"))
    return str(page)


def completion(shell: str) -> str:
    parser = make_parser()
    for action in parser._actions:
        if action.metavar in COMPLETED:
            action.complete = COMPLETED[action.metavar]  # type: ignore[attr-defined]
        elif action.dest == "command":
            action.help = "command to run"
            action.complete = COMMAND  # type: ignore[attr-defined]
    script: str = shtab.complete(parser, shell, preamble=PREAMBLE.get(shell, ""))
    for part, instead in CHANGES[shell]:
        script, count = re.subn(part, instead, script)
        if not count:
            sys.exit(f"what shtab writes for {shell} has changed: it has no part {part}")
    return script


def write(path: Path, text: str, *, check: bool) -> None:
    # As editors leave a file: no white space at the end of a line, and an end to the last one.
    text = "".join(f"{line.rstrip()}\n" for line in text.rstrip().split("\n"))
    if path.exists() and path.read_text() == text:
        return
    if check:
        sys.exit(f"{path} is out of date; `make pages` writes it anew")
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true", help="write nothing")
    check: bool = arguments.parse_args().check
    write(MAN_PAGE, man_page(), check=check)
    for shell in SHELLS:
        write(SCRIPTS / f"perseusrun.{shell}", completion(shell), check=check)
