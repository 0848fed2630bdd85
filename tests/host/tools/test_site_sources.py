"""The sources of the site, which tools/build_site.py makes of the pages. tests/site reads Sphinx's output."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pages
import pytest

from tools import build_site as site
from tools import public_api


def repository(folder: Path, **files: str) -> Path:
    """A folder with files; a/b.md is written a__b_md."""
    for name, text in files.items():
        file = folder / name.replace("__", "/").replace("_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def test_links_lead_to_the_same_files_as_in_the_repository(tmp_path: Path) -> None:
    page = (
        "[a](other.md#part) [b](../NOTES.md) [c](sub/run.py) [d](../tools/x.txt) [e](https://host.example/y) [f](#g)\n"
    )
    root = repository(
        tmp_path,
        docs__page_md=page,
        docs__other_md="# Part\n",
        docs__sub__run_py="print()\n",
        NOTES_md="[back](docs/page.md) ![p](docs/p.png)\n",
        docs__p_png="png",
        tools__x_txt="text\n",
    )
    found = site.sources(root, ("docs/page.md",))
    text = found[PurePosixPath("page.md")].decode()
    assert text == (
        "[a](other.md#part) [b](project/NOTES.md) [c](sub/run.rst) [d](project/tools/x.txt) "
        "[e](https://host.example/y) [f](#g)\n"
    )
    assert found[PurePosixPath("project/NOTES.md")].decode() == "[back](../page.md) ![p](../p.png)\n"
    assert found[PurePosixPath("sub/run.py")] == b"print()\n"
    assert b"literalinclude:: run.py" in found[PurePosixPath("sub/run.rst")]
    assert {str(path) for path in found} >= {"other.md", "p.png", "project/tools/x.txt"}


def test_code_is_no_link_and_keeps_its_lines() -> None:
    text = "[a](b.md)\n```python\nd[0](e.py)\n```\nend\n"
    assert site.links(text) == ["b.md"]
    assert site.relinked("README.md", text) == "[a](b.md)\n```python\nd[0](e.py)\n```\nend\n"
    assert site.relinked("docs/x/y.md", "[a](../../b.md)") == "[a](../project/b.md)"


def test_a_missing_file_is_left_to_sphinx_and_a_link_out_of_the_repository_is_refused(tmp_path: Path) -> None:
    root = repository(tmp_path, docs__page_md="[a](nothing.md)\n")
    assert list(site.sources(root, ("docs/page.md",))) == [PurePosixPath("page.md")]
    with pytest.raises(ValueError, match=r"docs/page\.md links to \.\./\.\./x\.md, outside of the repository"):
        site.relinked("docs/page.md", "[a](../../x.md)")


@pytest.mark.parametrize(
    "page", [f"docs/{page}" for page in pages.PAGES] + ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
)
def test_every_link_of_a_page_leads_to_a_file(page: str) -> None:
    """In the repository, and so in the site, which has the file as well."""
    text = (pages.ROOT / page).read_text()
    targets = [(pages.ROOT / page).parent / link for link in site.links(text)]
    assert [str(target) for target in targets if not target.is_file()] == []
    assert set(map(site.place, (str(target.resolve().relative_to(pages.ROOT)) for target in targets))) <= set(
        site.sources(pages.ROOT, (page,))
    )


def test_the_reference_has_every_public_module_and_name() -> None:
    files = site.reference()
    index = files[PurePosixPath("reference/index.rst")].decode()
    for module in public_api.MODULES:
        assert f"   {module}\n" in index
        lines = files[PurePosixPath(f"reference/{module}.rst")].decode().splitlines()
        elsewhere = set() if module == "cudnnpy.errors" else set(public_api.exported("cudnnpy.errors"))
        assert {f"   {name}" for name in public_api.exported(module) if name not in elsewhere} <= set(lines)
