"""Sphinx's settings; tools/build_site.py lays out the sources and runs it."""

from __future__ import annotations

import inspect
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, NumpyDocstring
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import cudnnpy  # noqa: E402
from tools import public_api  # noqa: E402

project = "cudnnpy"
author = "The cudnnpy authors"
copyright = author
version = release = cudnnpy.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx_copybutton"]
root_doc = "index"
templates_path = [str(ROOT / "docs" / "_templates")]
html_theme = "furo"
html_title = f"cudnnpy {version}"
html_copy_source = False
html_static_path = [str(ROOT / "docs" / "_static")]
html_css_files = ["site.css"]
smartquotes = False  # quotes and dashes of commands are as typed

# Pages are Markdown as code hosts show it: anchors of headings as there, and no other syntax.
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_heading_anchors = 4

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
SECTIONS = Config(napoleon_use_rtype=False, napoleon_use_ivar=True)
default_role = "code"  # `x` in a docstring

nitpicky = True
# Without pages: Python, NumPy and the libraries of arrays; C's names, which coverage.md lists; private packages.
nitpick_ignore_regex = [
    (
        "py:.*",
        r"(?!cudnnpy\b).*|cudnnpy\.(.*\.)?_\w+.*|cudnnpy\.(convolution\.|graph\.|ops\.|reference\.graph\.|tuning\.|raw\.cudnn\w+_t).*",
    )
]

# The navigation: (title, pages). The pages themselves have plain links.
NAVIGATION = {
    "Use": [
        "installation",
        "quickstart",
        "framework-authors",
        "choosing-algorithms",
        "tuning",
        "planning-without-a-gpu",
        "comparing-releases",
        "arrays-and-streams",
        "operations",
        "attention",
        "graphs",
        "graph-kinds",
        "pytorch",
        "tracing",
        "test-your-convolution",
        "errors",
    ],
    "Understand": ["how-it-works", "known-issues", "benchmarks", "not-here"],
    "Port": ["porting/README"],
    "Look up": ["api", "glossary", "notation", "reference/index", "reference/c/index", "coverage"],
    "Project": ["project/CHANGELOG", "project/CONTRIBUTING", "project/SECURITY", "dev/README"],
}
FOLDERS = {
    "porting/README": ["*"],
    "dev/README": ["*", "../project/tools/benchmark/README", "../project/tools/generate/README"],
    "quickstart": ["examples/*"],
    "test-your-convolution": ["project/tests/gpu/test_convolution_against_reference"],
}


def _toctree(pages: list[str], caption: str = "") -> str:
    options = f":caption: {caption}\n" if caption else ":glob:\n"
    return "\n\n```{toctree}\n:hidden:\n" + options + "\n" + "\n".join(pages) + "\n```\n"


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the navigation into the landing page, and the pages of a folder into that folder's own page."""
    if page == root_doc:
        source[0] += "".join(_toctree(pages, caption) for caption, pages in NAVIGATION.items())
    elif page in FOLDERS:
        source[0] += _toctree(FOLDERS[page])


NEEDS = {
    "gpu": "a GPU",
    "cpu": "no GPU",
    "torch": "PyTorch",
    "cupy": "CuPy",
    "jax": "JAX",
    "cudnn": "cudnn-frontend",
}


def _captioned(fence: re.Match[str]) -> str:
    needs = " and ".join(NEEDS[word] for word in reversed(fence[1].split()))
    return f"```{{code-block}} python\n:caption: needs {needs}\n"


def add_captions(app: Sphinx, page: str, source: list[str]) -> None:
    """Caption each program with the words after ```python, by which the tests decide where it runs."""
    source[0] = re.sub(r"^```python (.+)\n", _captioned, source[0], flags=re.M)


def _targets() -> dict[str, str]:
    """What pages write in backticks -> the name in the reference: `Plan.execute`, `raw.call`, `cudnnpy.Plan`."""
    found: dict[str, str] = {}
    for module in public_api.MODULES:
        for path in public_api.paths(module):
            for name in (path, path.removeprefix("cudnnpy."), path.removeprefix(f"{module}.")):
                found.setdefault(name, public_api.page_of(path))
    for function in cudnnpy.raw.functions():
        for name in (function, f"raw.{function}", f"cudnnpy.raw.{function}"):
            found[name] = f"cudnnpy.raw.{function}"
    return {
        name: path
        for name, path in found.items()
        if name[0].isupper() or "." in name or "_" in name or name.startswith("cudnn")
    }


class LinkNames(SphinxTransform):
    """Links public names in backticks to their pages in the reference."""

    default_priority = 400
    targets: dict[str, str] = {}

    def apply(self, **_: Any) -> None:
        """Wrap each literal that names something public into a reference to it."""
        targets = self.targets or self.targets.update(_targets()) or self.targets
        within = (nodes.title, nodes.reference, nodes.target, addnodes.pending_xref, addnodes.download_reference)
        for literal in list(self.document.findall(nodes.literal)):
            target = targets.get(literal.astext().removesuffix("()"))
            parent = literal.parent
            while parent is not None and not isinstance(parent, within):
                parent = parent.parent
            if target is None or parent is not None:
                continue
            link = addnodes.pending_xref(
                "", refdomain="py", reftype="obj", reftarget=target, refexplicit=True, refdoc=self.env.docname
            )
            literal.replace_self(link)
            link += literal


def public_name(app: Sphinx, env: Any, node: addnodes.pending_xref, contents: nodes.Node) -> nodes.Node | None:
    """Resolve a class by the module that it lies in: signatures have that, and users its public name."""
    target = _homes().get(node.get("reftarget", ""))
    if target is None or node.get("refdomain") != "py":
        return None
    return env.get_domain("py").resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, contents)


@cache
def _homes() -> dict[str, str]:
    found: dict[str, str] = {}
    for path, kind in public_api.objects():
        if inspect.isclass(kind) or inspect.isfunction(kind):
            found.setdefault(f"{kind.__module__}.{kind.__qualname__}", public_api.page_of(path))
            if public_api.page_of(path) != path:
                found[path] = public_api.page_of(path)
    return found


def read_sections(app: Sphinx, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Turn the sections of NumPy's docstrings into reStructuredText.

    As an extension napoleon would take what precedes a colon in an attribute's first line for the attribute's type.
    The class of an operation has the docstring of its base, which Sphinx does not look for.
    """
    if inspect.isclass(found) and not any(lines):
        lines[:] = (inspect.getdoc(found) or "").splitlines()
    lines[:] = NumpyDocstring(lines, SECTIONS).lines()


def write_colons(app: Sphinx, doctree: nodes.document) -> None:
    """Put a colon between a parameter and its description, where Sphinx has two hyphens."""
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(": "))


def setup(app: Sphinx) -> None:
    """Connect the above."""
    app.connect("autodoc-process-docstring", read_sections)
    app.connect("source-read", add_navigation)
    app.connect("source-read", add_captions)
    app.connect("doctree-read", write_colons)
    app.connect("missing-reference", public_name)
    app.add_transform(LinkNames)
