//! Unpacking files, and a window over their bytes.

use std::cell::Cell;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use crate::error::Error;

/// How many bytes of a file are in memory at once: large enough that refills cost nothing.
const WINDOW: usize = 1 << 20;

/// No usable snapshot is larger; a small compressed file that unpacks to more is
/// a bomb.
pub(crate) const MAX_UNPACKED: u64 = 64 << 30;

/// A file that unpacks to more than this many times its size is a bomb, too. Recorded snapshots shrink to a
/// fortieth; what has little in it may shrink further, so the first bytes do not count.
const MAX_RATIO: u64 = 400;
const MAX_UNCOUNTED: u64 = 256 << 20;

/// Memory that an `.xz` file may ask for its dictionary: the largest preset of xz needs 64 MiB.
/// (The zstd reader has its own limit of 100 MiB.)
const MAX_DICTIONARY: u64 = 256 << 20;

/// Unpacks a file by its first bytes, not its name; `path` is for messages only.
pub(crate) fn unpacked(file: impl Read + 'static, path: &Path) -> Result<Box<dyn Read>, Error> {
    let io_error = |source| Error::Io {
        path: path.to_owned(),
        source,
    };
    let mut file = BufReader::with_capacity(1 << 16, file);
    let mut magic = [0_u8; 32];
    let mut filled = 0;
    while filled < magic.len() {
        match file.read(&mut magic[filled..]).map_err(io_error)? {
            0 => break,
            n => filled += n,
        }
    }
    if filled == 0 {
        return Err(Error::Empty {
            path: path.to_owned(),
        });
    }
    let head = magic[..filled].to_vec();
    let whole = io::Cursor::new(head.clone()).chain(file);
    unpack(&head, whole).map_err(io_error)
}

/// Unpacks `whole`, which begins with `head`.
pub(crate) fn unpack<R: Read + 'static>(head: &[u8], whole: R) -> io::Result<Box<dyn Read>> {
    let packed = Rc::new(Cell::new(0));
    let whole = Counted {
        reader: whole,
        bytes: Rc::clone(&packed),
    };
    let unpacked = |reader: Box<dyn Read>| {
        Box::new(Unpacked {
            reader: reader.take(MAX_UNPACKED),
            packed,
            bytes: 0,
        })
    };
    Ok(if head.starts_with(&[0x1f, 0x8b]) {
        unpacked(Box::new(flate2::read::MultiGzDecoder::new(whole)))
    } else if head.starts_with(&[0xfd, b'7', b'z', b'X', b'Z', 0]) {
        let dictionary = xz_dictionary(head);
        if dictionary > MAX_DICTIONARY {
            return Err(io::Error::other(format!(
                "the .xz file wants a dictionary of {dictionary} bytes; at most {MAX_DICTIONARY} \
                 are allowed. Compress it again with `xz -9` or less"
            )));
        }
        unpacked(Box::new(lzma_rust2::XzReader::new(whole, true)))
    } else if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let reader = ruzstd::decoding::StreamingDecoder::new(whole)
            .map_err(|error| in_words(io::Error::other(error)))?;
        unpacked(Box::new(reader))
    } else {
        Box::new(whole)
    })
}

/// A packed file, and how much of it was read.
struct Counted<R> {
    reader: R,
    bytes: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(out)?;
        self.bytes.set(self.bytes.get() + count as u64);
        Ok(count)
    }
}

/// What a packed file holds, unless that is out of all proportion.
struct Unpacked<R> {
    reader: R,
    packed: Rc<Cell<u64>>,
    bytes: u64,
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(out).map_err(in_words)?;
        self.bytes += count as u64;
        if self.bytes > MAX_UNCOUNTED && self.bytes / MAX_RATIO > self.packed.get() {
            return Err(io::Error::other(format!(
                "it unpacks to more than {MAX_RATIO} times its size, which no recorded file does. \
                 Unpack it first if you trust it"
            )));
        }
        Ok(count)
    }
}

/// What is wrong with a packed file: the unpackers' own words are of their insides.
fn in_words(error: io::Error) -> io::Error {
    let text = error.to_string();
    let cut = error.kind() == io::ErrorKind::UnexpectedEof
        || text.contains("failed to fill whole buffer")
        || text.contains("UnexpectedEof");
    if cut {
        let words = "the packed file ends too early: an incomplete copy?";
        return io::Error::new(io::ErrorKind::UnexpectedEof, words);
    }
    match error.kind() {
        io::ErrorKind::Other | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
            io::Error::new(error.kind(), "the packed file is damaged")
        }
        _ => error,
    }
}

/// The dictionary that the first block of an `.xz` stream asks for, 0 where its header is unusual.
///
/// After the 12 bytes of the stream header comes the block header: its size, flags (sizes present
/// in bits 6 and 7), then the filter: id 0x21 (LZMA2), one byte of properties, the dictionary.
fn xz_dictionary(head: &[u8]) -> u64 {
    match head.get(13..17) {
        Some(&[flags, 0x21, 1, bits]) if flags & 0xc0 == 0 => {
            if bits >= 40 {
                return u64::from(u32::MAX);
            }
            u64::from(2 | bits & 1) << (bits / 2 + 11)
        }
        _ => 0,
    }
}

/// A window over a stream: the next bytes as a slice, refilled as they are consumed.
pub(crate) struct Input<R> {
    reader: R,
    buffer: Vec<u8>,
    position: usize,
    end: usize,
    // Offset in the stream of the first byte of `buffer`.
    base: u64,
    at_end: bool,
    /// The error that ended the stream early, if one did.
    pub(crate) error: Option<io::Error>,
}

impl<R: Read> Input<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self {
            reader,
            buffer: vec![0; WINDOW],
            position: 0,
            end: 0,
            base: 0,
            at_end: false,
            error: None,
        }
    }

    /// Offset of the next byte in the stream.
    pub(crate) fn offset(&self) -> u64 {
        self.base + self.position as u64
    }

    /// Makes at least `wanted` bytes available if the stream has them.
    #[cold]
    fn refill(&mut self, wanted: usize) {
        self.buffer.copy_within(self.position..self.end, 0);
        self.base += self.position as u64;
        self.end -= self.position;
        self.position = 0;
        if wanted > self.buffer.len() {
            // Callers ask in pieces of at most a window beyond what they hold.
            self.buffer.resize(wanted, 0);
        }
        while self.end < wanted && !self.at_end {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.at_end = true,
                Ok(n) => self.end += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // A damaged archive: what came before still counts.
                    self.error = Some(error);
                    self.at_end = true;
                }
            }
        }
    }

    /// The next `n` bytes, consumed; `None` if the stream ends before.
    #[inline]
    pub(crate) fn next_bytes(&mut self, n: usize) -> Option<&[u8]> {
        if self.end - self.position < n {
            self.refill(n);
            if self.end < n {
                return None;
            }
        }
        let start = self.position;
        self.position += n;
        self.buffer.get(start..start + n)
    }

    /// The next byte, consumed.
    #[inline]
    pub(crate) fn byte(&mut self) -> Option<u8> {
        if self.position == self.end {
            self.refill(1);
        }
        let byte = *self.buffer.get(self.position)?;
        if self.position >= self.end {
            return None;
        }
        self.position += 1;
        Some(byte)
    }

    /// The next `N` bytes as an array, consumed.
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.next_bytes(N)?.try_into().ok()
    }

    /// The bytes up to and without the next newline, consumed with it; `None` if there is none
    /// within `max` bytes.
    pub(crate) fn line(&mut self, max: usize) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            match self.byte()? {
                b'\n' => return Some(line),
                byte => line.push(byte),
            }
            if line.len() > max {
                return None;
            }
        }
    }

    /// Up to `n` of the next bytes, not consumed.
    pub(crate) fn peek(&mut self, n: usize) -> &[u8] {
        if self.end - self.position < n {
            self.refill(n);
        }
        let end = self.end.min(self.position + n);
        self.buffer.get(self.position..end).unwrap_or(&[])
    }
}

impl<R: Read> Read for Input<R> {
    /// What has been peeked at comes first.
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.position == self.end {
            self.refill(1);
            if let Some(error) = self.error.take() {
                return Err(error);
            }
        }
        let held = self.buffer.get(self.position..self.end).unwrap_or(&[]);
        let count = held.len().min(out.len());
        for (to, from) in out.iter_mut().zip(held) {
            *to = *from;
        }
        self.position += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use super::*;

    #[test]
    fn what_unpacks_out_of_proportion_is_refused() {
        let mut member = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
        member.write_all(&vec![b' '; 1 << 20]).unwrap();
        let packed = member.finish().unwrap().repeat(300);
        let mut unpacked = unpacked(Cursor::new(packed), Path::new("bomb.log.gz")).unwrap();
        let why = io::copy(&mut unpacked, &mut io::sink())
            .unwrap_err()
            .to_string();
        assert!(why.contains("400 times its size"), "{why}");
    }

    #[test]
    fn packed_files_that_are_cut_or_damaged_are_said_in_words() {
        let read = |bytes: &[u8]| {
            unpacked(Cursor::new(bytes.to_vec()), Path::new("x"))
                .and_then(|mut file| {
                    io::copy(&mut file, &mut io::sink()).map_err(|source| Error::Io {
                        path: "x".into(),
                        source,
                    })
                })
                .map_err(|error| std::error::Error::source(&error).unwrap().to_string())
        };
        for cut in [&b"\x1f\x8b\x08"[..], b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0"] {
            let why = read(cut).unwrap_err();
            assert!(why.starts_with("the packed file ends too early"), "{why}");
        }
        let why = read(b"\x1f\x8b\x08\0\0\0\0\0\0\xffnot deflated at all").unwrap_err();
        assert!(why.starts_with("the packed file"), "{why}");
    }
}
