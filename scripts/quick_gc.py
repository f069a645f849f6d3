"""Spares short-lived interpreters most of their garbage collections.

A process that imports PyTorch or TensorFlow and ends spends a third of its time collecting
garbage: while it imports, because each module makes many objects, and when it ends, because the
interpreter then looks at all of them. The unit tests start a thousand such processes. If
PERSEUS_TEST_QUICK_GC is in its environment, each of them collects rarely, and at its end what is in
cycles is left to the operating system. Tests of how processes end run without.
"""

from __future__ import annotations

from pathlib import Path

VARIABLE = "PERSEUS_TEST_QUICK_GC"
#: Python runs a line of a .pth file that begins with "import" in each process, at its start.
LINE = (
    f'import os; exec("import atexit, gc; gc.set_threshold(100_000, 50, 100); '
    f"atexit.register(gc.freeze)\" if '{VARIABLE}' in os.environ else '')\n"
)


def install(environment: Path) -> None:
    """Lets the processes of a virtual environment obey VARIABLE."""
    (packages,) = environment.glob("lib/python3.*/site-packages")
    (packages / "perseus-quick-gc.pth").write_text(LINE)
