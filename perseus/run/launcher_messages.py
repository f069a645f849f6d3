"""What the launcher itself says, among the ranks' output."""

from __future__ import annotations

from perseus.run.output import Output


class LauncherMessages:
    """Lines on stderr that begin with "perseusrun: ".

    Args:
      verbose: whether to log.
      quiet: whether to say only what is a failure.
    """

    def __init__(self, output: Output, *, verbose: bool, quiet: bool):
        self._output = output
        self._verbose = verbose
        self._quiet = quiet

    def log(self, message: str) -> None:
        if self._verbose:
            self.say(message)

    def note(self, message: str) -> None:
        """Says what is good to know, and no failure."""
        if not self._quiet:
            self.say(message)

    def say(self, message: str) -> None:
        self._output.say(f"perseusrun: {message}")
