//! What an allocator of XLA's or TensorFlow's (BFC) holds where it finds no room: the file that `TF_BFC_MEMORY_DUMP` has it write, a protobuf
//! message, and its lines in a log.
//!
//! Field numbers are those of `bfc_memory_map.proto`.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use crate::error::Error;
use crate::pprof::{fields, numbers};
use crate::units::Bytes;

/// A chunk takes some 30 bytes of a file; no pool has millions.
const MAX_BYTES: usize = 64 << 20;
/// Kinds of chunks that are told apart.
const MOST: usize = 4096;

/// The chunks of a pool at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pool {
    /// The allocator's name, such as `GPU_0_bfc`.
    pub allocator: String,
    /// How many chunks are in use, by who asked for them (empty where that is unknown) and their size.
    pub held: BTreeMap<(String, u64), u64>,
    /// The same by size alone, from a summary below the chunks.
    summary: BTreeMap<u64, u64>,
    /// The free chunks together.
    pub free: Bytes,
    /// The largest of them.
    pub largest_free: Bytes,
    /// The most that was in use, where it says so.
    pub peak: Bytes,
    /// Hundredths of the pool that are free by its map, a line of `*` and `_`, and how many of them the longest free piece has.
    pub map: Option<[u8; 2]>,
}

impl Pool {
    /// What is in use.
    pub fn in_use(&self) -> Bytes {
        Bytes(sum(self
            .held
            .iter()
            .map(|((_, size), count)| (size, count))))
    }

    /// Whether a request finds no room in one piece, but would in all of them together.
    pub fn is_in_pieces(&self, request: Bytes) -> bool {
        self.largest_free < request && request <= self.free
    }

    fn add(&mut self, by: &str, size: u64) {
        let by = if self.held.len() < MOST { by } else { "" };
        let size = if self.held.len() < 2 * MOST { size } else { 0 };
        let count = self.held.entry((by.to_owned(), size)).or_default();
        *count = count.saturating_add(1);
    }

    fn add_free(&mut self, size: u64) {
        self.free += Bytes(size);
        self.largest_free = self.largest_free.max(Bytes(size));
    }

    /// Reads a line of a log.
    pub(crate) fn read_line(&mut self, text: &str) {
        let number = |rest: &str| {
            let digits = rest.find(|c: char| !c.is_ascii_digit());
            rest[..digits.unwrap_or(rest.len())].parse::<u64>().ok()
        };
        let after = |words: &str| Some(text.split_once(words)?.1);
        let between = |from: &str, to: &str| Some(after(from)?.split_once(to)?.0.trim());
        if let Some(map) = map(text) {
            self.map = Some(map);
        } else if text.contains("Bin (256): ") {
            *self = Self::default();
        } else if let Some(size) = after(" of size ").and_then(number)
            && after(" at ").is_some_and(|at| at.starts_with(|c: char| c.is_ascii_hexdigit()))
        {
            if text.contains("Free ") {
                self.add_free(size);
            } else {
                let by = between(" allocation_annotation ", " next ")
                    .or_else(|| between(" by op ", " action_count "));
                self.add(by.unwrap_or_default(), size);
            }
        } else if let Some(size) = after(" Chunks of size ").and_then(number) {
            let (before, _) = text.split_once(" Chunks of size ").unwrap_or_default();
            let count = before.rsplit(' ').next().and_then(number).unwrap_or(0);
            if self.summary.len() < MOST {
                self.summary.insert(size, count);
            }
            if sum(&self.summary) > self.in_use().0 {
                // The chunks themselves are cut off, or some of them are.
                self.held = (self.summary.iter())
                    .map(|(size, count)| ((String::new(), *size), *count))
                    .collect();
            }
        }
    }
}

/// The free part of a map of a pool, and the longest piece of it: `bfc_allocator.cc:497] **__*_…`.
fn map(text: &str) -> Option<[u8; 2]> {
    const CELLS: usize = 100;
    let cells = text.trim_end().rsplit(' ').next()?;
    let is_map =
        cells.len() == CELLS && cells.bytes().all(|cell| matches!(cell, b'*' | b'_' | b'x'));
    let longest = cells.split(['*', 'x']).map(str::len).max()?;
    let free = cells.bytes().filter(|cell| *cell == b'_').count();
    is_map.then(|| [free, longest].map(|count| u8::try_from(count).unwrap_or(u8::MAX)))
}

fn sum<'a>(rows: impl IntoIterator<Item = (&'a u64, &'a u64)>) -> u64 {
    rows.into_iter().fold(0, |sum, (size, count)| {
        sum.saturating_add(size.saturating_mul(*count))
    })
}

/// Whether the beginning of a file looks like such a message: a name comes first, then a bin.
pub(crate) fn looks_like(head: &[u8]) -> bool {
    let [0x0a, length @ 1..=64, rest @ ..] = head else {
        return false;
    };
    rest.split_at_checked(usize::from(*length))
        .is_some_and(|(name, rest)| {
            name.iter().all(u8::is_ascii_graphic) && rest.first() == Some(&0x12)
        })
}

/// Reads such a file; `path` is for messages only.
pub fn read_from(reader: impl Read, path: &Path) -> Result<Pool, Error> {
    let mut file = Vec::new();
    let read = reader.take(MAX_BYTES as u64 + 1).read_to_end(&mut file);
    read.map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })?;
    parse(&file)
        .filter(|_| file.len() <= MAX_BYTES)
        .ok_or_else(|| Error::Format {
            path: path.to_owned(),
            found: "an allocator's dump of its chunks that is cut or damaged".to_owned(),
            expected: "a whole file, as TF_BFC_MEMORY_DUMP has JAX or TensorFlow write it"
                .to_owned(),
        })
}

/// `None` where the bytes are no message.
fn parse(file: &[u8]) -> Option<Pool> {
    let mut pool = Pool::default();
    fields(file, &mut |number, _, bytes| {
        match number {
            1 => pool.allocator = String::from_utf8_lossy(bytes).into_owned(),
            3 => {
                let [_, size, ..] = numbers(bytes)?;
                let (mut by, mut in_use) = (String::new(), false);
                fields(bytes, &mut |number, value, bytes| {
                    match number {
                        5 => by = String::from_utf8_lossy(bytes).into_owned(),
                        8 => in_use = value != 0,
                        _ => {}
                    }
                    Some(())
                })?;
                if in_use {
                    pool.add(&by, size);
                } else {
                    pool.add_free(size);
                }
            }
            5 => pool.peak = Bytes(numbers(bytes)?[2]),
            _ => {}
        }
        Some(())
    })?;
    Some(pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What JAX 0.11.2 wrote on a virtual H200.
    const FILE: &[u8] = include_bytes!("../../../fixtures/messages/bfc_dump.pb");

    #[test]
    fn a_file_has_the_chunks_of_its_pool() {
        assert!(looks_like(FILE));
        let pool = read_from(FILE, Path::new("dump")).unwrap();
        assert_eq!(pool.allocator, "GPU_0_bfc");
        let sizes: Vec<(u64, u64)> = pool.held.iter().map(|((_, a), b)| (*a, *b)).collect();
        assert_eq!(sizes, [(1_200_128, 5), (1 << 28, 3), (1 << 30, 1)]);
        assert_eq!(
            (pool.in_use(), pool.peak),
            (Bytes(1_885_048_832), pool.in_use())
        );
        assert_eq!(pool.free + pool.in_use(), Bytes(4_504_682_496));
        assert_eq!(pool.largest_free, Bytes(1_820_327_424));
        assert!(pool.is_in_pieces(Bytes::mib(2048)) && !pool.is_in_pieces(Bytes::mib(4096)));
    }

    #[test]
    fn tensorflow_writes_the_same_file() {
        // TensorFlow 2.21 on a virtual H200, in a pool of 4 GiB.
        let file = include_bytes!("../../../fixtures/messages/bfc_dump_tensorflow.pb");
        assert!(looks_like(file));
        let pool = read_from(&file[..], Path::new("dump")).unwrap();
        assert_eq!(pool.allocator, "GPU_0_bfc");
        let sizes: Vec<(u64, u64)> = pool.held.iter().map(|((_, a), b)| (*a, *b)).collect();
        assert_eq!(sizes, [(256, 3), (1280, 1), (1 << 30, 3)]);
        assert_eq!(
            (pool.in_use(), pool.peak),
            (Bytes(3_221_227_520), pool.in_use())
        );
        assert_eq!(pool.free + pool.in_use(), Bytes::mib(4096));
        assert_eq!(pool.largest_free, Bytes(1_071_644_672));
    }

    #[test]
    fn a_part_of_a_file_is_refused_or_has_less() {
        for end in 0..FILE.len() {
            if let Ok(pool) = read_from(&FILE[..end], Path::new("dump")) {
                assert!(pool.in_use() <= Bytes(1_885_048_832));
            }
        }
        assert!(!looks_like(
            b"\n  a log with an empty first line, whose words are not a name"
        ));
    }

    #[test]
    fn lines_of_any_version_are_chunks() {
        let mut pool = Pool::default();
        for line in [
            "I bfc_allocator.cc:1392] Bin (256): \tTotal Chunks: 0, Chunks in use: 0. 0B allocated for chunks.",
            "I bfc_allocator.cc:1447] InUse at 7f36be000200 of size 1024 tag lower allocation_annotation xla.execute{executable=jit_f} next 10",
            "I bfc_allocator.cc:970] InUse at 7fc2ca000000 of size 1024 by op gradients/Conv2D action_count 12 step 3 next 1",
            "I tensorflow/core/common_runtime/bfc_allocator.cc:678] Chunk at 0x10205600000 of size 1024",
            "I tensorflow/core/common_runtime/bfc_allocator.cc:687] Free at 0x10205601000 of size 4096",
            "I bfc_allocator.cc:1447] Free  at 7f36be000000 of size 512 tag central_gap next 2",
        ] {
            pool.read_line(line);
        }
        let by: Vec<&str> = pool.held.keys().map(|(by, _)| by.as_str()).collect();
        assert_eq!(
            by,
            ["", "gradients/Conv2D", "xla.execute{executable=jit_f}"]
        );
        assert_eq!((pool.free, pool.largest_free), (Bytes(4608), Bytes(4096)));
        // A summary that has more than the chunks that are left of a log.
        pool.read_line("I bfc_allocator.cc:1455] 5 Chunks of size 1024 totalling 5.0KiB");
        assert_eq!(pool.held, BTreeMap::from([((String::new(), 1024), 5)]));
    }
}
