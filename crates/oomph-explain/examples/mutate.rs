//! Fuzzing without a nightly compiler: changes bytes of real files for a stated time and sends the
//! result through every reader and the analysis. `mutate SECONDS FILE…`; a panic ends it.

use std::path::Path;
use std::time::{Duration, Instant};

/// xorshift64*: the runs can be repeated from the seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(12) {
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes.truncate(at.max(16)),
            1 => {
                let end = (at + random.below(64)).min(bytes.len());
                bytes.drain(at..end);
            }
            2 => {
                let end = (at + random.below(256)).min(bytes.len());
                let copy = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, copy);
            }
            3 => bytes[at] = [0, 0x7f, 0x80, 0xff, b'(', b'u', b'e', b'.'][random.below(8)],
            _ => bytes[at] = random.next() as u8,
        }
        if bytes.len() < 16 {
            return;
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seconds: u64 = arguments.next().and_then(|s| s.parse().ok()).unwrap_or(10);
    let mut files: Vec<Vec<u8>> = Vec::new();
    for path in arguments {
        match std::fs::read(&path) {
            Ok(bytes) => files.push(bytes),
            Err(error) => println!("{path}: {error}"),
        }
    }
    let seed = 0x9e37_79b9_7f4a_7c15;
    let mut random = Random(seed);
    // oomph's own files of the same histories take part, too.
    let own: Vec<Vec<u8>> = files
        .iter()
        .filter_map(|bytes| {
            let (trace, _) =
                oomph_trace::snapshot::read_from(bytes.as_slice(), Path::new("x")).ok()?;
            let mut out = Vec::new();
            oomph_trace::oomph_file::write(&trace, &mut out).ok()?;
            Some(out)
        })
        .collect();
    files.extend(own);
    let begin = Instant::now();
    let (mut runs, mut read) = (0_u64, 0_u64);
    while begin.elapsed() < Duration::from_secs(seconds) && !files.is_empty() {
        let mut bytes = files[random.below(files.len())].clone();
        change(&mut bytes, &mut random);
        runs += 1;
        let path = Path::new("x");
        for found in [
            oomph_trace::snapshot::read_from(bytes.as_slice(), path),
            oomph_trace::oomph_file::read_from(bytes.as_slice(), path),
            oomph_trace::chrome::read_from(bytes.as_slice(), path),
        ]
        .into_iter()
        .flatten()
        {
            read += 1;
            let _ = oomph_explain::explain(&found.0, &oomph_explain::Options::default());
        }
        if let Ok((messages, _)) = oomph_trace::text::read_from(bytes.as_slice()) {
            let _ = oomph_explain::explain_messages(&messages);
        }
    }
    println!(
        "{runs} changed files in {seconds} s, {read} of them readable, seed {seed:#x}: no panic"
    );
}
