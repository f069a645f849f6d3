"""The scripts that let shells complete perseusrun's arguments.

scripts/make_shell_files.py writes them, so that no library is needed to run them.
"""

from __future__ import annotations

from importlib.resources import files

SHELLS = ("bash", "zsh", "fish")


def completion_script(shell: str) -> str:
    """Returns the script for one of SHELLS."""
    script = files("perseus.run") / "completion_scripts" / f"perseusrun.{shell}"
    return script.read_text()
