"""Draws the letters of PNG exports: `python make_glyphs.py FONT.ttf glyphs.bin`.

The file holds, packed by zlib, for each character below: its advance (u8, pixels), then HEIGHT rows of WIDTH bytes of
coverage. The committed one was drawn from DejaVu Sans 2.37. Needs Pillow.
"""

import sys
import zlib

from PIL import Image, ImageDraw, ImageFont

SIZE, WIDTH, HEIGHT, ASCENT = 22, 26, 28, 21
CHARACTERS = [chr(code) for code in range(32, 127)] + list("·✗✓…−×→←")


def main() -> None:
    """Write the file."""
    font = ImageFont.truetype(sys.argv[1], SIZE)
    out = bytearray()
    for character in CHARACTERS:
        image = Image.new("L", (WIDTH, HEIGHT))
        ImageDraw.Draw(image).text((1, ASCENT), character, fill=255, font=font, anchor="ls")
        out.append(round(font.getlength(character)))
        out += image.tobytes()
    with open(sys.argv[2], "wb") as file:
        file.write(zlib.compress(bytes(out), 9))


main()
