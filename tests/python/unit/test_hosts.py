from __future__ import annotations

from pathlib import Path

import pytest

from perseus.run.hosts import Host, assign, is_local, parse_hosts, read_hostfile


def test_hosts_with_and_without_slots() -> None:
    assert parse_hosts("a:2, b ,10.0.0.1:4") == [Host("a", 2), Host("b", 1), Host("10.0.0.1", 4)]


def test_ipv6_address_in_brackets() -> None:
    assert parse_hosts("[fe80::1]:2,[::1]") == [Host("fe80::1", 2), Host("::1", 1)]


def test_a_host_named_twice_has_the_slots_of_both() -> None:
    assert parse_hosts("a:2,b:1,a:1") == [Host("a", 3), Host("b", 1)]


def test_a_host_is_named_once_where_each_must_be(tmp_path: Path) -> None:
    assert parse_hosts("a:2,b:1", distinct=True) == [Host("a", 2), Host("b", 1)]
    with pytest.raises(ValueError, match="'a:2,b:1,a:1' names 'a' 2 times; an elastic job needs"):
        parse_hosts("a:2,b:1,a:1", distinct=True)
    (tmp_path / "hosts").write_text("a slots=1\na slots=1\n")
    assert read_hostfile(tmp_path / "hosts") == [Host("a", 2)]
    with pytest.raises(ValueError, match="hosts names 'a' 2 times; an elastic job needs each host"):
        read_hostfile(tmp_path / "hosts", distinct=True)


@pytest.mark.parametrize("text", ["a:b", "a:2:3", "a b", "a:0", "", ",", ":4", "a:-1"])
def test_malformed_hosts_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_hosts(text)


def test_hostfile_takes_slots_colons_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# two machines\na slots=2\nb:3  # fast\n\nc\nd slots = 4 max_slots=8\n")
    assert read_hostfile(file) == [Host("a", 2), Host("b", 3), Host("c", 1), Host("d", 4)]


def test_malformed_hostfile_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a slots=2\nb cores=3\n")
    with pytest.raises(ValueError, match=r"hosts, line 2: 'b cores=3'"):
        read_hostfile(file)


@pytest.mark.parametrize("content", [b"\x7fELF\x02\xff\xfe", b"node1\0\0 slots=2\n"])
def test_a_hostfile_that_is_no_text_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"hostfile .*/hosts is not a text file"):
        read_hostfile(file)


def test_missing_hostfile_is_named() -> None:
    with pytest.raises(ValueError, match="/nowhere/hosts: No such file"):
        read_hostfile("/nowhere/hosts")


def test_ranks_fill_the_hosts_in_order() -> None:
    slots = assign([Host("a", 2), Host("b", 2)], 4)
    assert [(s.rank, s.host, s.local_rank, s.local_size) for s in slots] == [
        (0, "a", 0, 2),
        (1, "a", 1, 2),
        (2, "b", 0, 2),
        (3, "b", 1, 2),
    ]
    assert [(s.cross_rank, s.cross_size) for s in slots] == [(0, 2), (0, 2), (1, 2), (1, 2)]


def test_cross_ranks_count_only_hosts_that_have_the_local_rank() -> None:
    slots = assign([Host("a", 1), Host("b", 3), Host("c", 2)], 6)
    assert [(s.local_rank, s.cross_rank, s.cross_size) for s in slots] == [
        (0, 0, 3),
        (0, 1, 3),
        (1, 0, 2),
        (2, 0, 1),
        (0, 2, 3),
        (1, 1, 2),
    ]


def test_a_host_partly_used_has_the_local_size_that_is_used() -> None:
    slots = assign([Host("a", 2), Host("b", 8)], 3)
    assert [s.local_size for s in slots] == [2, 2, 1]


@pytest.mark.parametrize("name", ["-oProxyCommand", "-v:2", "good:1,-bad:1"])
def test_a_name_that_ssh_would_take_for_an_option_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a host; it must not begin with '-'"):
        parse_hosts(name)


def test_too_few_slots_is_an_error_that_names_them() -> None:
    with pytest.raises(ValueError, match=r"5 ranks do not fit on 3 slots \(a:2, b:1\)"):
        assign([Host("a", 2), Host("b", 1)], 5)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
def test_loopback_is_local(name: str) -> None:
    assert is_local(name)


@pytest.mark.parametrize("name", ["192.0.2.1", "no-such-host.invalid"])
def test_foreign_and_unknown_hosts_are_not_local(name: str) -> None:
    assert not is_local(name)
