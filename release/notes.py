"""Prints what the changelog says of the version in Cargo.toml: `python release/notes.py [TAG | --version]`.

With a tag (`v1.2.3`), that must be this version, and the changelog must not call it unreleased. `--version` prints the version alone.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version(manifest):
    """The version in the text of the workspace's Cargo.toml, the only place that states it."""
    return re.search(r'^\[workspace\.package\]\nversion = "([^"]+)"', manifest, re.M)[1]


def notes(changelog, wanted):
    """The heading's note on a version, such as a date, and what stands below the heading."""
    for section in re.split(r"^## ", changelog, flags=re.M)[1:]:
        heading, _, text = section.partition("\n")
        name, _, note = heading.partition(" ")
        if name == wanted:
            return note.strip("() "), text.strip()
    sys.exit(f"CHANGELOG.md has no section '## {wanted}'. Write one")


def main(tag=None):
    """Print the notes, or say what is wrong with the tag."""
    current = version((ROOT / "Cargo.toml").read_text())
    if tag == "--version":
        print(current)
        return
    note, text = notes((ROOT / "CHANGELOG.md").read_text(), current)
    if tag is not None and tag != f"v{current}":
        sys.exit(f"the tag is {tag}, and Cargo.toml says {current}: expected v{current}")
    if tag is not None and note == "unreleased":
        sys.exit(
            f"CHANGELOG.md calls {current} unreleased. Write the date there: ## {current} (2027-01-31)"
        )
    print(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
