"""Settings of Sphinx for the documentation site, which `make docs` builds into build/docs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

# TensorFlow prints what it finds on the machine, and looks for GPUs.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

from docsite import project as perseus  # noqa: E402
from docsite import stand_ins  # noqa: E402

stand_ins.stand_in_for_mxnet()
stand_ins.read_engine_stub()

project = "Perseus"
author = "The Perseus authors"
copyright = author
release = version = perseus.version()
language = "en"

root_doc = "index"
exclude_patterns = ["docsite"]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "breathe",
    "docsite.navigation",
    "docsite.links",
    "docsite.completeness",
    "docsite.docstrings",
    "docsite.signatures",
    "docsite.tables",
    "docsite.code",
    "docsite.c_search",
]

myst_heading_anchors = 4
# Only the commands of a console are copied.
copybutton_exclude = ".linenos, .gp, .go"

# Python.
autodoc_mock_imports = stand_ins.MOCKED
autodoc_default_options = {"undoc-members": True}
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Common arguments", "params_style")]
add_module_names = False
toc_object_entries_show_parents = "hide"

# C.
breathe_projects = {"perseus": str(ROOT / "build/docs/doxygen/xml")}
breathe_show_include = False
breathe_default_project = "perseus"
breathe_domain_by_extension = {"h": "c"}

# A name that is not found is an error, unless another project documents it.
nitpicky = True
nitpick_ignore_regex = [
    (r"c:.*", r"(u?int(8|16|32|64)_t|size_t|cudaStream_t)"),
    (r"c:.*", r"perseus_(gradients|rendezvous)"),  # what these structures hold is not public
    (
        r"py:.*",
        r"(collections|typing|types|enum|os|pathlib|numpy|torch|tensorflow|keras|mxnet)\..*",
    ),
    (r"py:.*", r".*\.(FP16Compressor|NDArray)|NDArray|Array"),  # of a framework
    (r"py:.*", r"(.*\.)?(T|Train)"),  # type variables
    (r"py:.*", r"Join|BlacklistBy"),  # the words that an argument takes, which its text names
]

html_theme = "furo"
html_theme_options = {
    "source_repository": perseus.address(),
    "source_branch": "main",
    "source_directory": "docs/",
    "light_css_variables": {"color-brand-primary": "#1b5fbd", "color-brand-content": "#1b5fbd"},
    "dark_css_variables": {"color-brand-primary": "#7ab7ff", "color-brand-content": "#7ab7ff"},
}
html_title = f"Perseus {release}"
html_logo = html_favicon = "docsite/static/logo.svg"
html_static_path = ["docsite/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
pygments_dark_style = "github-dark"
