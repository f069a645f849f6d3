"""Commands of perseusrun for elastic jobs that run already: --drain, --resume and --end."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from perseus.run.options import flags_in
from perseus.run.own_streams import tell

__all__ = ["is_asked", "run"]

# The effect of each, and the flags that may stand beside it.
_DOES = {
    "--drain": "lets a host of a job go",
    "--resume": "takes a job over, with the options that it has",
    "--end": "ends a job",
}
_BESIDE = {"--drain": ["--job"]}


def is_asked(options: argparse.Namespace) -> bool:
    return bool(_given(options)) or options.job is not None


def run(parser: argparse.ArgumentParser, options: argparse.Namespace, words: Sequence[str]) -> int:
    """Does what the options ask for; returns the exit code.

    That is 1 if it cannot be done, and that of the job which is taken over. Exits with 2 and a
    message for options that do not go together.

    Args:
      words: the arguments of perseusrun that the options come from.
    """
    if options.drain is None and options.job is not None:
        parser.error("--job names the job whose host is to be drained; give --drain HOST, too")
    flag, *others = _given(options)
    if others:
        parser.error(f"{flag} {_DOES[flag]}, and {others[0]} {_DOES[others[0]]}; give one")
    if options.command:
        what = "HOST" if flag == "--drain" else "JOB"
        parser.error(f"{flag} {what} is for a job that runs already, and takes no program")
    for other in flags_in(parser, words):
        if other != flag and other not in _BESIDE.get(flag, ()):
            parser.error(f"{flag} {_DOES[flag]}, and {other} has no effect on that; leave it out")
    if flag == "--drain":
        return _drain(options.drain, options.job)
    if flag == "--end":
        return _end(options.end)
    return _resume(options.resume)


def _given(options: argparse.Namespace) -> list[str]:
    values = {"--drain": options.drain, "--resume": options.resume, "--end": options.end}
    return [flag for flag, value in values.items() if value is not None]


def _drain(host: str, job: int | None) -> int:
    """Drains a host of a job that another perseusrun runs."""
    from perseus.elastic.drain_command import DrainError, drain_host

    try:
        print(drain_host(host, job), flush=True)
    except DrainError as error:
        tell(str(error))
        return 1
    return 0


def _end(job: int) -> int:
    """Ends a job whose perseusrun was killed."""
    from perseus.elastic.resume_command import ResumeError, end_job

    try:
        print(end_job(job), flush=True)
    except ResumeError as error:
        tell(str(error))
        return 1
    return 0


def _resume(job: int) -> int:
    """Runs a job to its end whose perseusrun was killed; lists such jobs for number 0."""
    from perseus.elastic.resume_command import ResumeError, list_jobs, resume_job

    try:
        if job:
            return resume_job(job)[1]
        print(list_jobs(), flush=True)
    except ResumeError as error:
        tell(str(error))
        return 1
    return 0
