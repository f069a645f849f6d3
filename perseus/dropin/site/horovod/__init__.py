"""What `import horovod` gives where Perseus stands in for it; see perseus.dropin."""

from perseus.dropin import HOROVOD_VERSION as __version__
from perseus.dropin import install as _install

_install()

from horovod.runner import run  # noqa: E402

__all__ = ["__version__", "run"]
