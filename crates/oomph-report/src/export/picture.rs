//! A picture of rectangles and words, and the two forms that it is written in.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::sync::LazyLock;

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;

/// A colour: red, green, blue.
pub(super) type Colour = [u8; 3];

/// Where a text's position lies within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    End,
}

#[derive(Debug)]
enum Shape {
    Rect {
        x: f64,
        y: f64,
        width: f64,
        height: f64,
        colour: Colour,
    },
    Text {
        x: f64,
        y: f64,
        anchor: Anchor,
        bold: bool,
        colour: Colour,
        text: String,
    },
}

/// A picture in units of CSS pixels.
#[derive(Debug)]
pub(super) struct Picture {
    width: usize,
    height: usize,
    shapes: Vec<Shape>,
}

/// Pixels of a PNG per unit: sharp on today's screens.
const SCALE: usize = 2;
/// Units of a text's height.
const TEXT: usize = 11;
const PAPER: Colour = [255, 255, 255];

impl Picture {
    pub fn new(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            shapes: Vec::new(),
        }
    }

    pub fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, colour: Colour) {
        if width > 0.0 && height > 0.0 {
            self.shapes.push(Shape::Rect {
                x,
                y,
                width,
                height,
                colour,
            });
        }
    }

    /// A line of text with its baseline at `y`.
    pub fn text(&mut self, x: f64, y: f64, anchor: Anchor, colour: Colour, text: &str) {
        self.shapes.push(Shape::Text {
            x,
            y,
            anchor,
            bold: false,
            colour,
            text: text.to_owned(),
        });
    }

    /// The same, twice as heavy.
    pub fn bold(&mut self, x: f64, y: f64, colour: Colour, text: &str) {
        self.shapes.push(Shape::Text {
            x,
            y,
            anchor: Anchor::Start,
            bold: true,
            colour,
            text: text.to_owned(),
        });
    }

    pub fn svg(&self) -> String {
        let (width, height) = (self.width, self.height);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"system-ui, DejaVu Sans, sans-serif\" \
             font-size=\"{TEXT}\">\n<rect width=\"100%\" height=\"100%\" fill=\"{}\"/>\n",
            hex(PAPER)
        );
        for shape in &self.shapes {
            match shape {
                Shape::Rect {
                    x,
                    y,
                    width,
                    height,
                    colour,
                } => {
                    let _ = writeln!(
                        out,
                        "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" \
                         height=\"{height:.2}\" fill=\"{}\"/>",
                        hex(*colour)
                    );
                }
                Shape::Text {
                    x,
                    y,
                    anchor,
                    bold,
                    colour,
                    text,
                } => {
                    let anchor = match anchor {
                        Anchor::Start => "start",
                        Anchor::End => "end",
                    };
                    let weight = if *bold { " font-weight=\"600\"" } else { "" };
                    let _ = writeln!(
                        out,
                        "<text x=\"{x:.2}\" y=\"{y:.2}\" text-anchor=\"{anchor}\"{weight} \
                         fill=\"{}\">{}</text>",
                        hex(*colour),
                        escape(text)
                    );
                }
            }
        }
        out.push_str("</svg>\n");
        out
    }

    pub fn png(&self) -> Vec<u8> {
        let mut raster = Raster::new(self.width * SCALE, self.height * SCALE);
        for shape in &self.shapes {
            match shape {
                Shape::Rect {
                    x,
                    y,
                    width,
                    height,
                    colour,
                } => raster.rect([*x, *y, *width, *height], *colour),
                Shape::Text {
                    x,
                    y,
                    anchor,
                    bold,
                    colour,
                    text,
                } => {
                    let length = width_of(text);
                    let x = match anchor {
                        Anchor::Start => *x,
                        Anchor::End => x - length,
                    };
                    raster.text(x, *y, text, *colour);
                    if *bold {
                        raster.text(x + 0.5, *y, text, *colour);
                    }
                }
            }
        }
        raster.png()
    }
}

fn hex([red, green, blue]: Colour) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Text as XML; characters that XML forbids become spaces.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            control if control.is_control() => out.push(' '),
            '\u{fffe}' | '\u{ffff}' => out.push(' '),
            other => out.push(other),
        }
    }
    out
}

/// Letters, drawn by `make_glyphs.py`: advance and coverage of each.
static GLYPHS: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut glyphs = Vec::new();
    let packed: &[u8] = include_bytes!("glyphs.bin");
    // A test checks that the letters unpack.
    let _ = ZlibDecoder::new(packed).read_to_end(&mut glyphs);
    glyphs
});
const GLYPH_WIDTH: usize = 26;
const GLYPH_HEIGHT: usize = 28;
const GLYPH_ASCENT: usize = 21;
const GLYPH_BYTES: usize = 1 + GLYPH_WIDTH * GLYPH_HEIGHT;
const OTHERS: [char; 8] = ['·', '✗', '✓', '…', '−', '×', '→', '←'];

/// The advance and the coverage of a letter; a question mark for those that are not there.
fn glyph(character: char) -> (usize, &'static [u8]) {
    let index = match character {
        ' '..='~' => character as usize - 32,
        other => match OTHERS.iter().position(|known| *known == other) {
            Some(place) => 95 + place,
            None => '?' as usize - 32,
        },
    };
    match GLYPHS.get(index * GLYPH_BYTES..(index + 1) * GLYPH_BYTES) {
        Some([advance, coverage @ ..]) => (usize::from(*advance), coverage),
        _ => (0, &[]),
    }
}

/// The width of a text in units.
pub(super) fn width_of(text: &str) -> f64 {
    let pixels: usize = text.chars().map(|character| glyph(character).0).sum();
    pixels as f64 / SCALE as f64
}

/// `text` cut at its end to fit `width` units; empty if nothing would remain.
pub(super) fn fit(text: &str, width: f64) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let mut room = width - width_of("…");
    let mut kept = String::new();
    for character in text.chars() {
        room -= glyph(character).0 as f64 / SCALE as f64;
        if room < 0.0 {
            break;
        }
        kept.push(character);
    }
    if kept.chars().count() < 2 {
        return String::new();
    }
    kept.push('…');
    kept
}

struct Raster {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Raster {
    fn new(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            pixels: PAPER.repeat(width * height),
        }
    }

    /// Mixes a colour into a pixel.
    fn blend(&mut self, x: usize, y: usize, colour: Colour, share: f64) {
        if x >= self.width || y >= self.height {
            return;
        }
        let at = (y * self.width + x) * 3;
        if let Some(pixel) = self.pixels.get_mut(at..at + 3) {
            for (old, new) in pixel.iter_mut().zip(colour) {
                let mixed = f64::from(*old) + (f64::from(new) - f64::from(*old)) * share;
                *old = mixed.round() as u8;
            }
        }
    }

    fn rect(&mut self, [x, y, width, height]: [f64; 4], colour: Colour) {
        let scale = SCALE as f64;
        let (left, right) = (x * scale, (x + width) * scale);
        let (top, bottom) = (y * scale, (y + height) * scale);
        // The share of each pixel that lies inside, so that thin bars do not vanish.
        let inside = |from: f64, to: f64, at: usize| {
            (to.min(at as f64 + 1.0) - from.max(at as f64)).clamp(0.0, 1.0)
        };
        for row in top.max(0.0) as usize..(bottom.max(0.0).ceil() as usize).min(self.height) {
            let tall = inside(top, bottom, row);
            for column in left.max(0.0) as usize..(right.max(0.0).ceil() as usize).min(self.width) {
                self.blend(column, row, colour, tall * inside(left, right, column));
            }
        }
    }

    fn text(&mut self, x: f64, y: f64, text: &str, colour: Colour) {
        let mut left = (x * SCALE as f64).round() as isize - 1;
        let top = (y * SCALE as f64).round() as isize - GLYPH_ASCENT as isize;
        for character in text.chars() {
            let (advance, coverage) = glyph(character);
            for (at, &share) in coverage.iter().enumerate() {
                let column = left + (at % GLYPH_WIDTH) as isize;
                let row = top + (at / GLYPH_WIDTH) as isize;
                if share > 0 && column >= 0 && row >= 0 {
                    self.blend(
                        column as usize,
                        row as usize,
                        colour,
                        f64::from(share) / 255.0,
                    );
                }
            }
            left += advance as isize;
        }
    }

    fn png(&self) -> Vec<u8> {
        const SIGNATURE: [u8; 8] = [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n'];
        let mut out = SIGNATURE.to_vec();
        let mut header = Vec::new();
        header.extend_from_slice(&(self.width as u32).to_be_bytes());
        header.extend_from_slice(&(self.height as u32).to_be_bytes());
        // Eight bits, RGB, deflate, adaptive filters, not interlaced.
        header.extend_from_slice(&[8, 2, 0, 0, 0]);
        chunk(&mut out, *b"IHDR", &header);
        let mut packed = ZlibEncoder::new(Vec::new(), Compression::new(6));
        for row in self.pixels.chunks(self.width * 3) {
            // Filter 0: rows of flat colour pack well as they are. Memory does not fail.
            let _ = packed.write_all(&[0]);
            let _ = packed.write_all(row);
        }
        chunk(&mut out, *b"IDAT", &packed.finish().unwrap_or_default());
        chunk(&mut out, *b"IEND", &[]);
        out
    }
}

fn chunk(out: &mut Vec<u8>, kind: [u8; 4], payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    out.extend_from_slice(&kind);
    out.extend_from_slice(payload);
    let mut crc = flate2::Crc::new();
    crc.update(&kind);
    crc.update(payload);
    out.extend_from_slice(&crc.sum().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        let mut picture = Picture::new(10, 10);
        picture.text(0.0, 0.0, Anchor::Start, PAPER, "</text><script>\u{1}&\"");
        let svg = picture.svg();
        assert!(
            svg.contains("&lt;/text&gt;&lt;script&gt; &amp;&quot;"),
            "{svg}"
        );
    }

    #[test]
    fn a_png_has_its_size_and_its_pixels() {
        let mut picture = Picture::new(4, 2);
        picture.rect(0.0, 0.0, 4.0, 1.0, [200, 10, 20]);
        picture.text(-50.0, 90.0, Anchor::End, [0, 0, 0], "outside ✗ é");
        let png = picture.png();
        assert_eq!(&png[16..24], &[0, 0, 0, 8, 0, 0, 0, 4]);
        let at = png.windows(4).position(|four| four == b"IDAT").unwrap();
        let length = u32::from_be_bytes(png[at - 4..at].try_into().unwrap()) as usize;
        let mut pixels = Vec::new();
        std::io::Read::read_to_end(
            &mut flate2::read::ZlibDecoder::new(&png[at + 4..at + 4 + length]),
            &mut pixels,
        )
        .unwrap();
        assert_eq!(pixels.len(), 4 * (1 + 8 * 3));
        assert_eq!(&pixels[1..4], &[200, 10, 20]);
        assert_eq!(&pixels[2 * 25 + 1..2 * 25 + 4], &PAPER);
    }

    #[test]
    fn there_are_letters() {
        assert!(glyph('W').0 > glyph('i').0 && glyph('i').0 > 0);
        assert_eq!(glyph('←').1.len(), GLYPH_WIDTH * GLYPH_HEIGHT);
        assert_eq!(glyph('é'), glyph('?'));
    }

    #[test]
    fn long_text_is_cut() {
        assert_eq!(fit("short", 500.0), "short");
        assert!(fit("a rather long sentence", 40.0).ends_with('…'));
        assert_eq!(fit("a rather long sentence", 4.0), "");
    }
}
