"""Perseus: the communication layer under data-parallel training.

Import the adapter of your framework: `import perseus.torch.horovod as hvd`. `perseus.run.run` calls
a function on the ranks of a new job.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

__all__ = ["__version__"]


def __getattr__(name: str) -> Any:
    if name == "run":  # most programs do without the launcher
        import perseus.run

        return perseus.run
    # Reading the metadata of the installed package takes longer than everything else here.
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("perseus-train")
        except PackageNotFoundError:  # it is used from a folder in PYTHONPATH
            import perseus_core

            return perseus_core.__version__
    raise AttributeError(f"module 'perseus' has no attribute '{name}'")
