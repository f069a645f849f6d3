"""`python -m perseus.run` is `perseusrun`."""

import sys

from perseus.run.cli import main

sys.exit(main())
