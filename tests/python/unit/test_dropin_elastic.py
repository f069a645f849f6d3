"""Tests the drop-in's horovod.runner.elastic, as programs and Horovod's own tests use it."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from perseus.common.elastic import HostUpdateResult
from perseus.dropin.runner.elastic.constants import RESET_LIMIT_EXCEEDED_MESSAGE
from perseus.dropin.runner.elastic.discovery import (
    DiscoveredHosts,
    FixedHosts,
    HostDiscovery,
    HostDiscoveryScript,
    HostManager,
    source_of,
)
from perseus.dropin.runner.elastic.settings import ElasticSettings
from perseus.elastic.discovery import Discovery, DiscoveryError
from perseus.run.hosts import Host


def discovery(*found: dict[str, int]) -> Any:
    """A discovery that finds these one after the other."""
    return Mock(find_available_hosts_and_slots=Mock(side_effect=list(found)))


class TestScript:
    def test_it_reads_hosts_with_and_without_slots(self, tmp_path: Path) -> None:
        script = tmp_path / "discover"
        script.write_text("#!/bin/sh\necho b:2\necho a\n")
        script.chmod(0o755)
        found = HostDiscoveryScript(str(script), 4).find_available_hosts_and_slots()
        assert list(found.items()) == [("b", 2), ("a", 4)]

    def test_running_it_can_be_replaced_and_slots_may_be_anything(self) -> None:
        slots: Any = object()
        hosts = HostDiscoveryScript(Mock(), slots)
        hosts._execute_discovery_script = Mock(  # type: ignore[method-assign]
            side_effect=["", "h1", "h1:2\nh2\n"]
        )
        found = [hosts.find_available_hosts_and_slots() for _ in range(3)]
        assert found == [{}, {"h1": slots}, {"h1": 2, "h2": slots}]

    def test_a_failure_is_a_runtime_error(self) -> None:
        with pytest.raises(RuntimeError, match="'exit 3' ended with exit code 3"):
            HostDiscoveryScript("exit 3", 1).find_available_hosts_and_slots()
        with pytest.raises(RuntimeError, match="line 1 of its output: 'a' names no slots"):
            HostDiscoveryScript("echo a", None).find_available_hosts_and_slots()


class TestSource:
    def test_hosts_of_a_program_are_a_source(self) -> None:
        hosts = FixedHosts({"b": 2, "a": 1})
        assert source_of(hosts).find() == [Host("b", 2), Host("a", 1)]
        hosts.set({"a": 1})
        assert source_of(hosts).find() == [Host("a", 1)]

    def test_a_script_that_hangs_ends_with_the_discovery(self) -> None:
        running = Discovery(source_of(HostDiscoveryScript("sleep 1000", 1)), Mock())
        running.start()
        running.stop()
        with pytest.raises(DiscoveryError, match=r"has been stopped|is not run any more"):
            running.first(10)

    def test_one_must_be_derived(self) -> None:
        with pytest.raises(NotImplementedError):
            HostDiscovery().find_available_hosts_and_slots()


class TestManager:
    def test_updates_say_how_the_hosts_have_changed(self) -> None:
        steps = [
            ({"a": 2}, HostUpdateResult.added),
            ({"a": 2, "b": 2}, HostUpdateResult.added),
            ({"b": 2}, HostUpdateResult.removed),
            ({"b": 1, "c": 1}, HostUpdateResult.mixed),
            ({"b": 1, "c": 1}, HostUpdateResult.no_update),
        ]
        manager = HostManager(discovery(*(found for found, _ in steps)))
        before = manager.current_hosts
        assert before.available_hosts == set()
        for found, change in steps:
            assert manager.update_available_hosts() == change
            assert manager.current_hosts.host_slots == found
            assert manager.current_hosts.available_hosts == found.keys()
            assert manager.current_hosts.count_available_slots() == sum(found.values())
        assert before.count_available_slots() == 0

    def test_a_blacklisted_host_is_gone_from_then_on(self) -> None:
        manager = HostManager(FixedHosts({"a": 2, "b": 3}))
        manager.update_available_hosts()
        before = manager.current_hosts
        manager.blacklist("a")
        assert before.available_hosts == {"a", "b"}
        assert before.count_available_slots() == 5
        assert manager.is_blacklisted("a") and not manager.is_blacklisted("b")
        assert manager.current_hosts.host_assignment_order == ["b"]
        assert manager.current_hosts.count_available_slots() == 3
        assert manager.current_hosts.get_slots("a") == 2
        assert manager.update_available_hosts() == HostUpdateResult.no_update

    def test_a_host_out_of_cooldown_is_added(self, monkeypatch: pytest.MonkeyPatch) -> None:
        manager = HostManager(FixedHosts({"a": 2, "b": 2}), cooldown_range=(1, 2))
        manager.update_available_hosts()
        manager.blacklist("a")
        assert manager.update_available_hosts() == HostUpdateResult.no_update
        deadline = time.monotonic() + 20
        while manager.update_available_hosts() != HostUpdateResult.added:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert manager.current_hosts.host_assignment_order == ["b", "a"]

    def test_a_wrong_range_is_refused(self) -> None:
        with pytest.raises(ValueError, match="from 1 to 3600"):
            HostManager(FixedHosts({}), cooldown_range=(0, 10))

    def test_a_host_s_event_is_set_when_it_fails(self) -> None:
        manager = HostManager(FixedHosts({"a": 2, "b": 2}))
        event, other = manager.get_host_event("a"), manager.get_host_event("b")
        assert manager.get_host_event("a") is event
        manager.blacklist("a")
        assert event.is_set() and not other.is_set()
        assert not manager.get_host_event("a").is_set()  # for those that are started later

    def test_any_thread_may_use_it(self) -> None:
        hosts = {str(number): 1 for number in range(50)}
        manager = HostManager(FixedHosts(hosts))
        work = [manager.update_available_hosts] * 50
        work += [lambda name=name: manager.blacklist(name) for name in hosts]  # type: ignore[misc]
        threads = [threading.Thread(target=each) for each in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert manager.current_hosts.available_hosts == set()

    def test_known_hosts_come_first_in_their_order(self) -> None:
        order = HostManager.order_available_hosts(["d", "c", "b"], ["a", "b", "c"])
        assert order == ["b", "c", "d"]
        assert HostManager.order_available_hosts(["a", "b"], []) == ["a", "b"]


def test_discovered_hosts_are_shown() -> None:
    assert str(DiscoveredHosts({"a": 2}, ["a"])) == "slots: {'a': 2} order: ['a']"


def test_the_message_on_the_reset_limit_matches_itself() -> None:
    message = RESET_LIMIT_EXCEEDED_MESSAGE.format(1)
    assert "number of resets during elastic job exceeded limit" in message
    assert re.search(message, message)


class TestSettings:
    def test_they_are_settings_of_an_elastic_job(self) -> None:
        settings = ElasticSettings(FixedHosts({}), 1, 4, 600, 3, (1, 10), num_proc=2, verbose=2)
        assert settings.elastic
        assert (settings.min_num_proc, settings.max_num_proc, settings.num_proc) == (1, 4, 2)
        assert (settings.elastic_timeout, settings.reset_limit) == (600, 3)
        assert (settings.cooldown_range, settings.verbose) == ((1, 10), 2)

    def test_the_discovery_stays_behind(self) -> None:
        settings = ElasticSettings(FixedHosts({"a": 1}), 1, 4, 600, None)
        copy = pickle.loads(pickle.dumps(settings))
        assert copy.discovery is None and copy.max_num_proc == 4
        assert settings.discovery is not None

    def test_deprecated_names_still_work(self) -> None:
        with pytest.warns(DeprecationWarning) as warnings:
            settings = ElasticSettings(None, None, None, 600, None, min_np=2, max_np=3)
        assert [str(each.message) for each in warnings] == [
            "min_np is deprecated; it is called min_num_proc",
            "max_np is deprecated; it is called max_num_proc",
        ]
        assert {each.filename for each in warnings} == {__file__}
        assert (settings.min_num_proc, settings.max_num_proc) == (2, 3)


def test_programs_import_it_by_horovod_s_names() -> None:
    code = """
from horovod.runner.elastic import constants, settings
from horovod.runner.elastic.discovery import FixedHosts, HostDiscoveryScript, HostManager
import perseus.dropin.runner.elastic.discovery as ours
assert FixedHosts is ours.FixedHosts
print(constants.RESET_LIMIT_EXCEEDED_MESSAGE.format(1), settings.ElasticSettings.__name__)
"""
    command = [sys.executable, "-m", "perseus.dropin", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "exceeded limit of 1 ElasticSettings" in result.stdout
