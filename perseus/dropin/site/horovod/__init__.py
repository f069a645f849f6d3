"""The package that `import horovod` gives when Perseus replaces it; see perseus.dropin."""

from perseus.dropin import HOROVOD_VERSION as __version__
from perseus.dropin import install as _install

_install()

from horovod.runner import run  # noqa: E402

__all__ = ["__version__", "run"]
