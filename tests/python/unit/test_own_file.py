"""Tests which files are opened, and which are not since another user has a hand in them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perseus.run.checks import output_folder
from perseus.run.output import remove_older
from perseus.run.own_file import open_to_read, open_to_write
from perseus.run.rank_file import RankFile

STRANGER = 65533
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def give_away(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


def write(path: Path, text: bytes) -> None:
    with open_to_write(path) as file:
        file.write(text)


def test_a_file_is_made_or_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in (b"long", b"new"):
        write(Path("file"), text)
        assert (tmp_path / "file").read_bytes() == text
    with open_to_read(tmp_path / "file") as file:
        assert file.read() == "new"


def test_links_of_ones_own_are_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "relative").symlink_to("folder")
    (tmp_path / "absolute").symlink_to(tmp_path / "relative" / "new")
    write(tmp_path / "absolute", b"text")
    assert (tmp_path / "folder" / "new").read_bytes() == b"text"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels"):
        open_to_write(tmp_path / "loop")


def test_a_device_will_do(tmp_path: Path) -> None:
    write(Path("/dev/null"), b"text")
    with pytest.raises(IsADirectoryError):
        open_to_write(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_to_write(tmp_path / "no" / "file")
    with pytest.raises(NotADirectoryError):
        open_to_write(Path("/dev/null/file"))


def test_a_pipe_that_nobody_reads_is_an_error_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is a pipe that nobody reads"):
        open_to_write(tmp_path / "pipe")
    with pytest.raises(OSError, match="is no file"):
        open_to_read(tmp_path / "pipe")


def test_a_second_name_of_a_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "file").hardlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="has 2 names"):
        open_to_write(tmp_path / "file")


@as_root
@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_what_another_user_has_made_is_neither_written_nor_believed(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / kind
    path.touch() if kind == "file" else os.mkfifo(path)
    give_away(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    for opens in (open_to_write, open_to_read):
        with pytest.raises(OSError, match=f"{kind} belongs to user {STRANGER}"):
            opens(path)
    os.close(reader)


@as_root
def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    precious = tmp_path / "mine" / "file"
    precious.write_text("precious")
    for name, target in (("file", precious), ("folder", tmp_path / "mine")):
        (tmp_path / name).symlink_to(target)
        give_away(tmp_path / name)
    for path in (tmp_path / "file", tmp_path / "folder" / "file"):
        with pytest.raises(OSError, match=f"a symbolic link of user {STRANGER}"):
            open_to_write(path)
        with pytest.raises(OSError, match=f"a symbolic link of user {STRANGER}"):
            open_to_read(path)
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("what", ["PERSEUS_TIMELINE", "PERSEUS_TUNING_LOG"])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_lies_where_rank_0_writes_ends_no_job(tmp_path: Path, what: str, kind: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    path = tmp_path / kind
    path.symlink_to(precious) if kind == "link" else os.mkfifo(path)
    if kind == "link":
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        give_away(path)
    script = "import perseus_core as core; core.init(); core.barrier(); core.shutdown(); print(1)"
    job = [sys.executable, "-m", "perseus.run", "-np", "2", sys.executable, "-c", script]
    done = subprocess.run(
        job, env={**os.environ, what: str(path)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1\n") == 2
    why = "is a pipe that nobody reads" if kind == "pipe" else "a symbolic link of user 65533"
    (line,) = [line for line in done.stderr.splitlines() if what in line]
    assert why in line
    assert precious.read_text() == "precious"


@as_root
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_lies_where_the_ranks_output_goes_ends_no_job(tmp_path: Path, kind: str) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "stdout").write_text("precious")
    output = tmp_path / "output"
    output.mkdir()
    if kind == "folder":
        (output / "rank.0").symlink_to(precious)
        given = output / "rank.0"
    else:
        (output / "rank.0").mkdir()
        given = output / "rank.0" / "stdout"
        os.mkfifo(given) if kind == "pipe" else given.symlink_to(precious / "stdout")
    give_away(given)
    job = [sys.executable, "-m", "perseus.run", "-np", "1", "--output-filename", str(output)]
    done = subprocess.run([*job, "echo", "said"], capture_output=True, text=True, timeout=30)
    if kind == "folder":
        assert done.returncode != 0
        assert "belongs to another user" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert "said" in done.stdout
        is_pipe = kind == "pipe"
        why = "a pipe that nobody reads" if is_pipe else f"a symbolic link of user {STRANGER}"
        assert why in done.stderr
    assert (precious / "stdout").read_text() == "precious"


@as_root
@pytest.mark.parametrize("below", ["", "more"])
def test_a_link_of_another_user_is_no_folder_for_the_ranks_output(
    tmp_path: Path, below: str
) -> None:
    mine = tmp_path / "mine"
    (mine / "rank.0").mkdir(parents=True)
    (mine / "rank.0/stdout").write_text("precious")
    (tmp_path / "output").symlink_to(mine)
    give_away(tmp_path / "output")
    with pytest.raises(ValueError, match=f"a symbolic link of user {STRANGER}"):
        output_folder(str(tmp_path / "output" / below))
    assert [path.name for path in mine.iterdir()] == ["rank.0"]
    assert (mine / "rank.0/stdout").read_text() == "precious"
    assert output_folder(str(mine / below)) == mine / below


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of ours, and beside it `theirs`, another user's, with a folder `output` of ours."""
    (tmp_path / "precious/rank.0").mkdir(parents=True)
    (tmp_path / "precious/rank.0/stdout").write_text("precious")
    (tmp_path / "theirs/output").mkdir(parents=True)
    give_away(tmp_path / "theirs")
    return tmp_path / "precious"


def swap(output: Path, precious: Path) -> None:
    """Does what the owner of the folder above may do at any moment."""
    output.rename(output.parent / "moved")
    output.symlink_to(precious)
    give_away(output)


@as_root
def test_a_link_that_comes_after_the_check_is_not_followed(tmp_path: Path, precious: Path) -> None:
    output = output_folder(str(tmp_path / "theirs/output"))
    swap(output, precious)
    remove_older(output)
    with pytest.raises(OSError, match=f"a symbolic link of user {STRANGER}"):
        RankFile(output / "rank.1/stdout").put(memoryview(b"text"))
    assert [path.name for path in precious.iterdir()] == ["rank.0"]
    assert (precious / "rank.0/stdout").read_text() == "precious"


@as_root
def test_a_link_that_comes_before_a_folder_is_made_is_not_followed(
    tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, mkdir = tmp_path / "theirs/output", os.mkdir

    def swap_and_make(*args: Any, **kwargs: Any) -> None:
        swap(output, precious)
        mkdir(*args, **kwargs)

    monkeypatch.setattr(os, "mkdir", swap_and_make)
    with pytest.raises(ValueError, match="--output-filename"):
        output_folder(str(output / "new"))
    assert [path.name for path in precious.iterdir()] == ["rank.0"]


def test_what_an_older_job_has_left_is_not_removed_through_a_link(tmp_path: Path) -> None:
    for name in ("precious", "output/rank.1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "stdout").touch()
    (tmp_path / "output/rank.0").symlink_to(tmp_path / "precious")
    remove_older(tmp_path / "output")
    assert (tmp_path / "precious/stdout").exists()
    assert not (tmp_path / "output/rank.1").exists()


def test_a_socket_is_no_place_for_output(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="nobody reads"):
            open_to_write(tmp_path / "socket")
