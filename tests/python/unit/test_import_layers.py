"""Checks every import of the Python code against the design's arrows: perseus -> perseus_core.

Imports are read from the source, also those within functions, and nothing is imported for it.
`violations` does the work; it takes a folder, so that each rule is seen to fail on a made-up tree.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]

#: Folders of programs that use the packages, and may import their public modules only.
PROGRAMS = ("benchmarks", "examples", "scripts")

FRAMEWORKS = {
    *("cupy", "jax", "keras", "mxnet", "pyspark", "ray", "starlette", "tensorflow", "torch"),
    *("horovod", "mpi4py"),
}


class Room(NamedTuple):
    """The modules that a package may import, besides its own and perseus_core.

    `lazily`: within functions only.
    """

    rooms: tuple[str, ...] = ()
    lazily: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ()
    frameworks_lazily: tuple[str, ...] = ()


#: The packages of perseus. A module belongs to the longest name here that it begins with.
ROOMS = {
    "perseus": Room(lazily=("perseus.run",)),
    "perseus.config": Room(),
    "perseus.common": Room(frameworks_lazily=("mxnet", "tensorflow", "torch")),
    "perseus._keras": Room(("perseus.common",), frameworks_lazily=("keras",)),
    "perseus.keras": Room(("perseus._keras", "perseus.common"), frameworks=("keras",)),
    "perseus.torch": Room(
        ("perseus._keras", "perseus.common"), frameworks=("torch",), frameworks_lazily=("keras",)
    ),
    "perseus.tensorflow": Room(("perseus._keras", "perseus.common"), frameworks=("tensorflow",)),
    "perseus.mxnet": Room(("perseus.common",), frameworks=("mxnet",)),
    "perseus.pipeline": Room(("perseus.torch",), frameworks=("torch",)),
    "perseus.pipeline.layerwise": Room(
        ("perseus.common", "perseus.pipeline", "perseus.torch"), frameworks=("torch",)
    ),
    "perseus.run": Room(("perseus.dropin",), lazily=("perseus.elastic",)),
    "perseus.elastic": Room(("perseus.run",)),
    "perseus.dropin": Room(lazily=("perseus.run",)),
    "perseus.dropin.runner": Room(
        ("perseus.common", "perseus.dropin", "perseus.elastic", "perseus.run")
    ),
    "perseus.dropin.tensorflow_data": Room(
        ("perseus.dropin.runner", "perseus.run", "perseus.tensorflow"), frameworks=("tensorflow",)
    ),
    # The package `horovod` that the drop-in shows.
    "perseus.dropin.site": Room(("perseus.dropin",), frameworks=("horovod",)),
}


@dataclass(frozen=True)
class Import:
    """`module` imports `target`, a module or a name in one."""

    module: str
    target: str
    line: int
    is_lazy: bool

    def __str__(self) -> str:
        return f"{self.module}, line {self.line}: imports {self.target}"


class _Reader(ast.NodeVisitor):
    """Collects the imports of one module, and the attributes of perseus_core that it uses."""

    def __init__(self, module: str, is_package: bool) -> None:
        self._module = module
        self._package = module if is_package else module.rpartition(".")[0]
        self._depth = 0
        #: what names of this module stand for, as far as that is in perseus_core
        self._aliases = {"perseus_core": "perseus_core"}
        self.found: list[Import] = []

    def _add(self, target: str, node: ast.AST) -> None:
        self.found.append(
            Import(self._module, target, getattr(node, "lineno", 0), is_lazy=self._depth > 0)
        )

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node)
            if is_in(alias.name, "perseus_core") and alias.asname:
                self._aliases[alias.asname] = alias.name

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parents = self._package.split(".")
            base = ".".join([*parents[: len(parents) - node.level + 1], *base.split(".")]).strip(
                "."
            )
        for alias in node.names:
            self._add(base if alias.name == "*" else f"{base}.{alias.name}", node)
            if is_in(base, "perseus_core"):
                self._aliases[alias.asname or alias.name] = f"{base}.{alias.name}"

    def visit_Call(self, node: ast.Call) -> None:
        called = ast.unparse(node.func).rpartition(".")[2]
        match called, node.args:
            case (("import_module" | "__import__"), [ast.Constant(name), *_]):
                self._add(str(name), node)
            case "getattr", [ast.Name(value), ast.Constant(name), *_] if value in self._aliases:
                self._add(f"{self._aliases[value]}.{name}", node)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in self._aliases:
            self._add(f"{self._aliases[node.value.id]}.{node.attr}", node)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        is_for_types = ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for child in node.orelse if is_for_types else [node.test, *node.body, *node.orelse]:
            self.visit(child)

    def _visit_function(self, node: ast.AST) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_function


def module_name(path: Path) -> str:
    """The name of the module in a file, whose path begins at the package or folder."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read(root: Path) -> dict[str, list[Import]]:
    """The imports of every module of the packages and programs below a folder."""
    modules = {}
    for top in ("perseus", "perseus_core", *PROGRAMS):
        for file in sorted((root / top).rglob("*.py")):
            name = module_name(file.relative_to(root))
            reader = _Reader(name, file.name == "__init__.py")
            reader.visit(ast.parse(file.read_text(), str(file)))
            modules[name] = reader.found
        for stub in (root / top).rglob("*.pyi"):  # of an extension module
            modules[module_name(stub.relative_to(root))] = []
    return modules


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def room_of(name: str, rooms: Collection[str]) -> str | None:
    """The longest of these packages that a module is in."""
    return max((room for room in rooms if is_in(name, room)), key=len, default=None)


def violations(root: Path, rooms: Mapping[str, Room] = ROOMS) -> list[str]:
    """Every import below a folder that goes against an arrow, as a sentence."""
    modules = read(root)
    found = []
    for imports in modules.values():
        for one in imports:
            found += [f"{one}: {why}" for why in _faults(one, rooms)]
    found += [f"{name}: is in no room" for name in modules if _is_homeless(name, rooms)]
    return found + [f"circle: {' -> '.join(circle)}" for circle in circles(modules)]


def _is_homeless(name: str, rooms: Mapping[str, Room]) -> bool:
    # The package itself counts as a room, which holds only its own module.
    return is_in(name, "perseus") and name != "perseus" and room_of(name, rooms) == "perseus"


def _faults(one: Import, rooms: Mapping[str, Room]) -> Iterator[str]:
    if is_in(one.module, "perseus_core"):
        yield from _faults_of_core(one)
        return
    if is_in(one.target, "perseus_core") and _has_private_part(one.target):
        yield "only perseus_core may use its private modules"
    if is_in(one.module, "perseus"):
        yield from _faults_of_adapter(one, rooms)
    elif is_in(one.target, "perseus") and _has_private_part(one.target):
        yield "programs use public modules"


def _has_private_part(target: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in target.split("."))


def _faults_of_core(one: Import) -> Iterator[str]:
    if is_in(one.target, "perseus"):
        yield "perseus_core is below perseus"
    if one.target.partition(".")[0] in FRAMEWORKS:
        yield "perseus_core imports no framework"


def _faults_of_adapter(one: Import, rooms: Mapping[str, Room]) -> Iterator[str]:
    home = room_of(one.module, rooms)
    assert home is not None
    room = rooms[home]
    top = one.target.partition(".")[0]
    if top in FRAMEWORKS:
        allowed = room.frameworks + (room.frameworks_lazily if one.is_lazy else ())
        if top not in allowed:
            when = "" if one.is_lazy else " when it is imported"
            yield f"{home} may not import {top}{when}"
    elif is_in(one.target, "perseus"):
        target = room_of(one.target, rooms)
        allowed = (home, *room.rooms, *(room.lazily if one.is_lazy else ()))
        if target not in allowed:
            yield f"{home} may not import {target}"


def circles(modules: Mapping[str, list[Import]]) -> list[list[str]]:
    """Modules that import each other while they are imported, each circle once.

    A package's `__init__`, which is run before its modules, counts only where it is imported for
    what is in it.
    """
    edges = {
        name: sorted({_defining(one, modules) for one in imports if not one.is_lazy} - {""})
        for name, imports in modules.items()
    }
    found: list[list[str]] = []
    state: dict[str, str] = {}
    path: list[str] = []

    def visit(name: str) -> None:
        state[name] = "open"
        path.append(name)
        for target in edges[name]:
            if state.get(target) == "open" and target != name:
                found.append([*path[path.index(target) :], target])
            elif target not in state:
                visit(target)
        path.pop()
        state[name] = "closed"

    for name in edges:
        if name not in state:
            visit(name)
    return found


def _defining(one: Import, modules: Mapping[str, object]) -> str:
    """The module that an import's target is or is in; empty if it is not one of these.

    A program also imports what lies in its own folder or in one above, without naming the folder.
    """
    folders = [""]
    if not is_in(one.module, "perseus") and not is_in(one.module, "perseus_core"):
        parts = one.module.split(".")
        folders += [".".join(parts[:depth]) + "." for depth in range(len(parts) - 1, 0, -1)]
    for folder in folders:
        for target in (one.target, one.target.rpartition(".")[0]):
            if target and folder + target in modules:
                return folder + target
    return ""


def test_every_import_follows_the_arrows() -> None:
    assert violations(ROOT) == []


def test_the_modules_of_the_core_that_adapters_use_are_listed() -> None:
    module = ast.parse((ROOT / "perseus_core/__init__.py").read_text())
    _, _, listed = (ast.get_docstring(module) or "").partition("use these modules as well:")
    modules = read(ROOT)
    used = {
        _defining(one, modules).partition(".")[2]
        for name, imports in modules.items()
        for one in imports
        if is_in(name, "perseus") and is_in(one.target, "perseus_core")
    }
    assert sorted(listed.strip(" .\n").replace("\n", " ").split(", ")) == sorted(used - {""})


def test_it_reads_all_there_is() -> None:
    modules = read(ROOT)
    assert {"perseus", "perseus_core", "perseus.torch.horovod.allreduce"} <= set(modules)
    assert len(modules) > 200
    targets = {one.target for imports in modules.values() for one in imports}
    assert {"perseus_core._engine", "torch", "tensorflow", "mxnet", "keras"} <= targets


def test_every_room_and_exception_is_needed() -> None:
    modules = read(ROOT)
    for room in ROOMS:
        assert any(room_of(module, ROOMS) == room for module in modules), room
    for home, room in ROOMS.items():
        imports = [
            one for name, of in modules.items() if room_of(name, ROOMS) == home for one in of
        ]
        for allowed in (*room.rooms, *room.frameworks):
            assert any(is_in(one.target, allowed) for one in imports), (home, allowed)
        for allowed in (*room.lazily, *room.frameworks_lazily):
            assert any(is_in(one.target, allowed) and one.is_lazy for one in imports), (
                home,
                allowed,
            )


#: A tree in which nothing is wrong.
SOUND = {
    "perseus/__init__.py": "",
    "perseus/common/__init__.py": "",
    "perseus/common/sets.py": "import perseus_core\nfrom perseus_core import names",
    "perseus/torch/__init__.py": "from perseus.torch import operations",
    "perseus/torch/operations.py": "import torch\nfrom perseus.common.sets import ProcessSet",
    "perseus/keras/__init__.py": "import keras",
    "perseus/run/__init__.py": "",
    "perseus_core/__init__.py": "from perseus_core.names import next_name",
    "perseus_core/_engine.pyi": "",
    "perseus_core/names.py": "from perseus_core import _engine",
    "benchmarks/step.py": "import torch\nfrom perseus_core import names",
}


def planted(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in {**SOUND, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_sound_tree_passes(tmp_path: Path) -> None:
    assert violations(planted(tmp_path, {})) == []


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        (
            "perseus/torch/a.py",
            "from perseus_core import _engine",
            "perseus.torch.a, line 1: imports perseus_core._engine: only perseus_core may use",
        ),
        (
            "perseus/torch/a.py",
            "import perseus_core as core\n\ndef file():\n    return core._engine.__file__",
            "perseus.torch.a, line 4: imports perseus_core._engine: only perseus_core may use",
        ),
        (
            "perseus/torch/a.py",
            "def file():\n    return getattr(perseus_core, '_engine').__file__",
            "perseus.torch.a, line 2: imports perseus_core._engine: only perseus_core may use",
        ),
        (
            "benchmarks/a.py",
            "from perseus_core import submission as s\n\ndef it():\n    return s._engine.__file__",
            "imports perseus_core.submission._engine: only perseus_core may use",
        ),
        ("perseus/torch/a.py", "__import__('mxnet')", "perseus.torch may not import mxnet"),
        (
            "perseus/torch/a.py",
            "import perseus_core._engine",
            "imports perseus_core._engine: only perseus_core may use its private modules",
        ),
        (
            "benchmarks/a.py",
            "def main():\n    from perseus_core._engine import submit",
            "benchmarks.a, line 2: imports perseus_core._engine.submit: only perseus_core may use",
        ),
        (
            "examples/a.py",
            "import perseus._keras.backend",
            "imports perseus._keras.backend: programs use public modules",
        ),
        ("perseus_core/a.py", "import perseus.common", "perseus_core is below perseus"),
        (
            "perseus_core/a.py",
            "def late():\n    import torch",
            "perseus_core.a, line 2: imports torch: perseus_core imports no framework",
        ),
        (
            "perseus/torch/a.py",
            "def late():\n    import tensorflow as tf",
            "perseus.torch may not import tensorflow",
        ),
        ("perseus/torch/a.py", "import keras", "may not import keras when it is imported"),
        (
            "perseus/torch/a.py",
            "from importlib import import_module\nimportlib.import_module('mxnet')",
            "perseus.torch may not import mxnet",
        ),
        ("perseus/run/a.py", "import torch", "perseus.run may not import torch"),
        ("perseus/run/a.py", "try:\n    import ray\nexcept ImportError:\n    pass", "import ray"),
        (
            "perseus/common/a.py",
            "class A:\n    import torch",
            "perseus.common may not import torch when it is imported",
        ),
        (
            "perseus/mxnet/a.py",
            "from perseus.torch.operations import allreduce",
            "perseus.mxnet may not import perseus.torch",
        ),
        (
            "perseus/common/a.py",
            "from ..torch import operations",
            "imports perseus.torch.operations: perseus.common may not import perseus.torch",
        ),
        ("perseus/spark.py", "", "perseus.spark: is in no room"),
        (
            "perseus/torch/operations.py",
            "from perseus.torch import handles\n",
            "circle: perseus.torch.operations -> perseus.torch.handles -> perseus.torch.operations",
        ),
    ],
)
def test_each_rule_can_fail(tmp_path: Path, file: str, text: str, expected: str) -> None:
    handles = {"perseus/torch/handles.py": "from .operations import allreduce"}
    found = violations(planted(tmp_path, {file: text, **(handles if "circle" in expected else {})}))
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(
    "text",
    [
        "def late():\n    from perseus.torch import operations",
        "if TYPE_CHECKING:\n    from perseus.torch import operations",
    ],
)
def test_what_is_not_run_while_importing_makes_no_circle(tmp_path: Path, text: str) -> None:
    files = {
        "perseus/torch/handles.py": text,
        "perseus/torch/operations.py": "from perseus.torch import handles",
    }
    assert violations(planted(tmp_path, files)) == []


def test_a_program_imports_what_lies_in_its_folder(tmp_path: Path) -> None:
    files = {
        "benchmarks/works/one.py": "import works.two",
        "benchmarks/works/two.py": "from common import best",
        "benchmarks/common.py": "from works.one import run",
    }
    circle = "benchmarks.common -> benchmarks.works.one -> benchmarks.works.two"
    found = violations(planted(tmp_path, files))
    assert found == [f"circle: {circle} -> benchmarks.common"]
