"""The reference is what the code says of itself, and the site has every page once, with no broken link."""

import os
import re

import pytest

from tests.support import pages, reference

LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("name", sorted(reference.PAGES))
def test_a_page_is_up_to_date(name):
    path, text = pages.DOCS / name, reference.PAGES[name]()
    if "OOMPH_UPDATE_DOCS" in os.environ:
        path.write_text(text)
    found = path.read_text() if path.exists() else ""
    assert found == text, f"{name}: OOMPH_UPDATE_DOCS=1 pytest tests/docs"


def links(path):
    """Where a file's links lead, without those in code."""
    text = re.sub(r"^( *)```.*?^\1```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "`", text)
    return [a or b for a, b in LINK.findall(text)]


def anchors(path):
    """The headings of a page as links name them, in mdBook as on GitHub."""
    text = re.sub(r"^( *)```.*?^\1```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = set()
    for title in re.findall(r"^#+ +(.+)$", text, re.MULTILINE):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return found


def test_no_link_is_broken():
    """Links to files and headings; of those to the web only that they are written as one."""
    root = pages.DOCS.parent
    others = [
        root / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
    ]
    broken = []
    for page in [*pages.pages().values(), *others, *root.glob("editors/*/README.md")]:
        for link in links(page):
            path, _, anchor = link.partition("#")
            if re.match(r"https?://|mailto:", link):
                continue
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (
                anchor and target.suffix == ".md" and anchor not in anchors(target)
            ):
                broken.append(f"{page.relative_to(root)}: {link}")
    assert not broken, "\n".join(broken)


def test_every_page_is_in_the_summary_once():
    listed = links(pages.DOCS / "SUMMARY.md")
    assert len(listed) == len(set(listed))
    # `web/book.py` adds the rules' pages.
    own = {name for name in pages.pages() if not name.startswith("rules/OOM")} - {"SUMMARY.md"}
    assert set(listed) == own
