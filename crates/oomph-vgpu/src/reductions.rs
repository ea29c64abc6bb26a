//! How PyTorch's reductions share out what they reduce: the configuration lies in the kernel's argument.
//!
//! What a round of loads and the end of a reduction cost is fitted to the reductions of half of the jobs in
//! `bench/time/results/*_profiles.jsonl.gz`, in cycles of an H200; the other half was left out.

use std::ffi::{c_int, c_void};

use crate::work::Work;

/// `ReduceConfig`, of which these words are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Config([c_int; 16]);

/// Loads of a round.
const ROUND: u64 = 4;

impl Config {
    /// That of a `ReduceOp`, or nothing if it does not look as expected. Only the first words of it are sure to be there if they do not.
    ///
    /// # Safety
    /// `argument` must point to the `ReduceOp` of PyTorch's `reduce_kernel`.
    unsafe fn of(argument: *const c_void) -> Option<Self> {
        /// The operation and its neutral element come first, which are small but not always the same.
        const BEFORE: std::ops::RangeInclusive<usize> = 1..=8;
        BEFORE.into_iter().find_map(|at| {
            // Bytes of an element of the sum, numbers of inputs and outputs, the first step.
            // SAFETY: the structure goes on with strides and addresses for far more words than these.
            let word =
                |word: usize| unsafe { argument.cast::<c_int>().add(at + word).read_unaligned() };
            let [size, inputs, outputs, step] = [0, 1, 2, 3].map(word);
            let counts = inputs > 0 && outputs > 0 && (1..=1 << 20).contains(&step);
            (matches!(size, 1 | 2 | 4 | 8 | 16) && counts).then(|| Self(std::array::from_fn(word)))
        })
    }

    const fn counts(&self) -> [u64; 2] {
        [self.0[1] as u64, self.0[2] as u64]
    }

    /// What `threads` threads in each of `blocks` blocks do, if they read elements of so many bytes.
    fn work(&self, blocks: u64, threads: u32, bytes: u64) -> Option<Work> {
        let [inputs, outputs] = self.counts();
        let [sharing, across, high, all, vectors, together] =
            [5, 6, 12, 13, 14, 15].map(|word| self.0[word]);
        // A flag of one byte.
        let vectors = vectors & 0xff;
        let known = (1..=1 << 20).contains(&sharing)
            && (1..=1024).contains(&high)
            && (1..=1024).contains(&all)
            && matches!(vectors, 0 | 1)
            && matches!(together, 1 | 2 | 4);
        if !known || blocks == 0 || threads == 0 {
            return None;
        }
        let elements = inputs.checked_mul(outputs)?;
        let each = elements.div_ceil(blocks * u64::from(threads));
        // Whether the threads of a row walk along the sum together, or each along its own.
        let along = across != 0;
        let (loads, cycles, begun) = match (together, vectors) {
            (2.., _) => (ROUND * together as u64, 399, 4100),
            (_, 1) => (if bytes == 2 { 8 } else { 4 }, 412, 0),
            _ if along => (ROUND, 1120, 0),
            _ => (ROUND, 838, 1060),
        };
        // The last block of several that share an output adds up what they have left.
        let tail = if sharing > 1 {
            let (begun, adding) = if along { (4340, all) } else { (5620, high) };
            begun + 496 * (sharing as u64).div_ceil(adding as u64)
        } else {
            0
        };
        Some(Work::Walk {
            cycles: begun + cycles * each.div_ceil(loads),
            tail,
            blocks,
            threads,
            bytes: elements.checked_mul(bytes)?,
            what: "reductions",
        })
    }
}

/// The bytes of all inputs, as wide as they are summed, or nothing if the argument does not look as expected.
///
/// # Safety
/// `argument` must point to the `ReduceOp` of PyTorch's `reduce_kernel`.
pub unsafe fn bytes(argument: *const c_void) -> Option<f64> {
    // SAFETY: the caller's contract.
    let config = unsafe { Config::of(argument) }?;
    let counts = config.counts().map(|count| count as f64);
    Some(counts.iter().product::<f64>() * f64::from(config.0[0]))
}

/// What a reduction of elements of so many bytes does, and the bytes that it reads as far as they are known if that is not.
///
/// # Safety
/// As for [`bytes`].
pub unsafe fn work(
    argument: *const c_void,
    blocks: u64,
    threads: u32,
    bytes: u64,
) -> Result<Work, u64> {
    // SAFETY: the caller's contract.
    let config = unsafe { Config::of(argument) }.ok_or(0_u64)?;
    let [inputs, outputs] = config.counts();
    config
        .work(blocks, threads, bytes)
        .ok_or_else(|| inputs.saturating_mul(outputs).saturating_mul(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `[inputs, outputs]`, blocks that share an output, whether threads walk along together, `[high, all]`, `[vectors, together]`.
    fn config(
        counts: [c_int; 2],
        sharing: c_int,
        along: bool,
        [high, all]: [c_int; 2],
        [vectors, together]: [c_int; 2],
    ) -> Vec<c_int> {
        let mut words = vec![0; 64];
        let [inputs, outputs] = counts;
        let known = [4, inputs, outputs, 1, 1, sharing, c_int::from(along)];
        words[2..2 + known.len()].copy_from_slice(&known);
        words[2 + 12..2 + 16].copy_from_slice(&[high, all, vectors, together]);
        words
    }

    fn walked(words: &[c_int], blocks: u64, threads: u32, bytes: u64) -> (u64, u64) {
        // SAFETY: as many words as are read.
        match unsafe { work(words.as_ptr().cast(), blocks, threads, bytes) } {
            Ok(Work::Walk { cycles, tail, .. }) => (cycles, tail),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_last_block_adds_up_what_many_have_left() {
        // The gradient of a bias, 98,304 rows of 192: 2 by 1,056 blocks of 32 by 4 threads.
        let words = config([98_304, 192], 1056, false, [4, 128], [0, 4]);
        let (cycles, tail) = walked(&words, 2112, 128, 4);
        assert_eq!(tail, 5620 + 496 * 264);
        assert!(cycles < tail);
        let alone = config([98_304, 192], 1, false, [4, 128], [0, 4]);
        assert_eq!(walked(&alone, 2, 128, 4).1, 0);
    }

    #[test]
    fn a_whole_tensor_is_read_in_vectors() {
        let whole = |vectors| config([1 << 20, 1], 1, true, [1, 512], [vectors, 1]);
        let (quick, _) = walked(&whole(1), 1, 512, 2);
        let (slow, _) = walked(&whole(0), 1, 512, 2);
        assert_eq!(quick, 412 * (1 << 20) / 512 / 8);
        assert_eq!(slow, 1120 * (1 << 20) / 512 / 4);
    }

    #[test]
    fn words_that_make_no_sense_are_not_believed() {
        let mut words = config([1024, 64], 1, true, [4, 128], [0, 1]);
        words[2 + 15] = 77;
        // SAFETY: as many words as are read.
        let found = unsafe { work(words.as_ptr().cast(), 16, 512, 4) };
        assert_eq!(found, Err(1024 * 64 * 4));
    }
}
