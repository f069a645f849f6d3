"""Compares the binary interface of libperseus with the recorded one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


@pytest.fixture
def abi(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setattr(sys, "argv", ["abi.py"])
    spec = importlib.util.spec_from_file_location("abi", SCRIPTS / "abi.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_as_recorded(abi: ModuleType) -> None:
    abi.main()
    assert {name.partition("@@")[0] for name in abi.exported()} == abi.declared_functions()


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("perseus_size@@PERSEUS_0.1\n", "", "+perseus_size@@PERSEUS_0.1"),
        ("PERSEUS_MAX 4", "PERSEUS_MAX 5", "+PERSEUS_MAX 4"),
        ("int64_t time_out_ms)", "int32_t time_out_ms)", "+perseus_status_t perseus_wait("),
        (
            "typedef int64_t perseus_handle_t",
            "typedef int32_t perseus_handle_t",
            "+typedef int64_t",
        ),
        (
            "const int64_t* splits;",
            "const int32_t* splits;",
            "+typedef struct { size_t struct_size",
        ),
        ("PERSEUS_NO_STREAM ((void*)(intptr_t)-1)", "PERSEUS_NO_STREAM 0", "+PERSEUS_NO_STREAM"),
        ("perseus_tensor_t.rank at 24", "perseus_tensor_t.rank at 16", "-perseus_tensor_t.rank at"),
    ],
)
def test_a_change_is_told(
    abi: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    before: str,
    after: str,
    told: str,
) -> None:
    text = abi.RECORD.read_text()
    record = tmp_path / "abi.txt"
    record.write_text(text.replace(before, after))
    assert record.read_text() != text
    monkeypatch.setattr(abi, "RECORD", record)
    with pytest.raises(SystemExit) as ended:
        abi.main()
    assert told in str(ended.value)


def test_every_field_of_every_structure_is_on_record(abi: ModuleType) -> None:
    structures = abi.structures()
    assert structures["perseus_codec_t"] == [
        "struct_size",
        "name",
        "encoded_size",
        "encode",
        "decode",
        "error_feedback",
        "user",
    ]
    assert "gradient_done" in structures["perseus_gradients_options_t"]
    assert len(structures) == abi.header().count("typedef struct {")
