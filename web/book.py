"""mdBook's preprocessor for `make docs`: a chapter for each lint rule, and links that leave docs/."""

import json
import pathlib
import posixpath
import re
import sys

LINK = re.compile(r"(\]\()([^)#\s]+)")


def chapters(items):
    """All chapters below `items`, in order."""
    for item in items:
        if isinstance(item, dict) and (chapter := item.get("Chapter")):
            yield chapter
            yield from chapters(chapter["sub_items"])


def rules(index, docs):
    """The chapters of the rules, below their index."""
    for place, page in enumerate(sorted(docs.glob("rules/OOM*.md")), 1):
        text = page.read_text()
        path = page.relative_to(docs).as_posix()
        yield {
            "Chapter": {
                "name": text.split("\n", 1)[0].strip("# ").replace("`", ""),
                "content": text,
                "number": index["number"] and [*index["number"], place],
                "sub_items": [],
                "path": path,
                "source_path": path,
                "parent_names": [*index["parent_names"], index["name"]],
            }
        }


def redirect(chapter, docs, repository):
    """Send links to files that are not below docs/ to the repository, and those to a README to its folder's index."""

    def target(match):
        path = match[2]
        if "://" in path or not chapter["source_path"]:
            return match[0]
        place = posixpath.normpath(
            posixpath.join("docs", posixpath.dirname(chapter["source_path"]), path)
        )
        if place.startswith("docs/"):
            return match[1] + re.sub(r"(^|/)README\.md$", r"\1index.md", path)
        kind = "tree" if (docs.parent / place).is_dir() else "blob"
        return f"{match[1]}{repository}/{kind}/main/{place}"

    chapter["content"] = LINK.sub(target, chapter["content"])


def main():
    """Read the book from stdin, and write it to stdout."""
    context, book = json.load(sys.stdin)
    docs = pathlib.Path(context["root"], context["config"]["book"]["src"])
    repository = context["config"]["output"]["html"]["git-repository-url"]
    for chapter in list(chapters(book["items"])):
        if chapter["source_path"] == "rules/README.md":
            chapter["sub_items"] += rules(chapter, docs)
    for chapter in chapters(book["items"]):
        redirect(chapter, docs, repository)
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    if sys.argv[1:2] == ["supports"]:
        sys.exit(0)
    main()
