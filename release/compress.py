"""Compresses the wheels of a release more densely, with a shorter bill of materials: `python release/compress.py dist`.

Zopfli writes what every unzip reads, 4 % smaller than zlib's densest level, and takes a minute of a core.
"""

import sys
import zipfile
from pathlib import Path

import zopfli.zlib
from bill import shorter


class Compressor:
    """What `zipfile` expects of a compressor: a raw deflate stream, all of it at the end."""

    def __init__(self):
        """Hold nothing yet."""
        self.content = b""

    def compress(self, part):
        """Take a part of the file."""
        self.content += part
        return b""

    def flush(self):
        """Return the whole file, compressed."""
        # As many blocks as help; fifteen, the default, are few for a library.
        stream = zopfli.zlib.compress(self.content, numiterations=5, blocksplittingmax=0)
        return stream[2:-4]  # Without zlib's header and checksum.


# `zipfile` has no public way to name a compressor; release/check_files.py reads what comes of this one.
zipfile._get_compressor = lambda kind, level=None: Compressor()


def compress(path):
    """Write a wheel anew with the same dates and permissions, in place of the old one."""
    dense = path.with_suffix(".dense")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(dense, "w") as new:
        members = {member.filename: member for member in old.infolist()}
        for name, content in shorter({name: old.read(name) for name in members}).items():
            new.writestr(members[name], content)
    dense.replace(path)


if __name__ == "__main__":
    for wheel in sorted(Path(sys.argv[1]).glob("*.whl")):
        compress(wheel)
