"""Keeps the parameters of C functions out of the search, where they would come before pages."""

from __future__ import annotations

from collections.abc import Iterator

from sphinx.application import Sphinx
from sphinx.domains.c import CDomain

_NOT_SEARCHED = -1


class Domain(CDomain):
    def get_objects(self) -> Iterator[tuple[str, str, str, str, str, int]]:
        for *described, priority in super().get_objects():
            is_parameter = described[2] == "functionParam"
            yield (*described, _NOT_SEARCHED if is_parameter else priority)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_domain(Domain, override=True)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
