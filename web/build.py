"""Builds the report's page: `web/src` into one file, `web/dist/report.html`.

    python web/build.py            write the bundle
    python web/build.py --check    fail if the committed bundle is not what the sources give

The sources are plain ES modules without dependencies. Bundling them is putting them one after
another, each after what it imports and in a function of its own, which returns what it exports.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

WEB = Path(__file__).parent
SOURCES = WEB / "src"
BUNDLE = WEB / "dist" / "report.html"

IMPORT = re.compile(r'^import\s+(\{[^}]*\})\s+from\s+"\./([\w-]+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export ((?:async )?function|class|const) ([\w$]+)", re.MULTILINE)


def in_order(entry: str) -> list[str]:
    """The modules that `entry` needs, each after those that it imports itself."""
    done: list[str] = []
    visiting: list[str] = []

    def visit(name: str) -> None:
        if name in done:
            return
        if name in visiting:
            cycle = " → ".join([*visiting[visiting.index(name) :], name])
            sys.exit(f"web/src: modules import each other in a circle: {cycle}")
        visiting.append(name)
        for _, imported in IMPORT.findall((SOURCES / f"{name}.js").read_text()):
            visit(imported)
        visiting.pop()
        done.append(name)

    visit(entry)
    return done


def script() -> str:
    """All modules as one."""
    parts = []
    for name in in_order("main"):
        text = (SOURCES / f"{name}.js").read_text()
        exported = [found for _, found in EXPORT.findall(text)]
        text = IMPORT.sub(r"const \1 = \2_module;\n", text)
        text = EXPORT.sub(r"\1 \2", text)
        if leftover := re.search(r"^(import|export)\b.*", text, re.MULTILINE):
            sys.exit(f"web/src/{name}.js: this form is not bundled: {leftover.group()}")
        if "</script" in text.lower() or "<!--" in text:
            sys.exit(f"web/src/{name}.js: must not hold text that ends or hides a script")
        body = f"{text.strip()}\nreturn {{ {', '.join(exported)} }};"
        parts.append(f"const {name}_module = (() => {{\n{body}\n}})();\n")
    return "\n".join(parts)


def build() -> str:
    """The whole page without data."""
    page = (SOURCES / "index.html").read_text()
    style = (SOURCES / "style.css").read_text()
    for marker, text in (("/*style*/", f"\n{style}"), ("/*script*/", f"\n{script()}")):
        if page.count(marker) != 1:
            sys.exit(f"web/src/index.html: expected {marker} once")
        page = page.replace(marker, text)
    return page


def main() -> None:
    """Write the bundle, or check it."""
    page = build()
    if sys.argv[1:] == ["--check"]:
        if not BUNDLE.exists() or BUNDLE.read_text() != page:
            sys.exit("web/dist/report.html is stale: run python web/build.py and commit it")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        BUNDLE.parent.mkdir(exist_ok=True)
        BUNDLE.write_text(page)
        print(f"{BUNDLE}: {len(page.encode()):,} bytes")


if __name__ == "__main__":
    main()
