//! Random numbers as PyTorch's CUDA kernels draw them: Philox4x32-10 of cuRAND, laid over the threads of a grid.
//!
//! A thread is a subsequence of the generator, and each of its calls gives four 32-bit numbers. How bits become floats
//! follows from cuRAND's headers. How the numbers are spread over a tensor is PyTorch's choice (`DistributionTemplates.h`,
//! `Dropout.cu`), which `_virtual_gpu/random_numbers.py` knows.

use std::f64::consts::TAU;
use std::ffi::{c_int, c_void};

use crate::export;

const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;
/// FlashAttention's generator has fewer.
const FLASH_ROUNDS: usize = 7;

const INVERSE_2_32: f32 = 2.328_306_4e-10;
const INVERSE_2_53: f64 = 1.110_223_024_625_156_5e-16;

/// The four numbers of a thread's call `counter`.
fn philox(seed: u64, thread: u64, counter: u64) -> [u32; 4] {
    rounds(ROUNDS, seed, thread, counter)
}

fn rounds(count: usize, seed: u64, thread: u64, counter: u64) -> [u32; 4] {
    let halves = |value: u64| [value as u32, (value >> 32) as u32];
    let [mut key, [mut a, mut b], [mut c, mut d]] = [seed, counter, thread].map(halves);
    for _ in 0..count {
        let [low_a, high_a] = halves(MULTIPLIERS[0] * u64::from(a));
        let [low_c, high_c] = halves(MULTIPLIERS[1] * u64::from(c));
        [a, b, c, d] = [high_c ^ b ^ key[0], low_c, high_a ^ d ^ key[1], low_a];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    [a, b, c, d]
}

/// In (0, 1].
fn uniform(bits: u32) -> f32 {
    bits as f32 * INVERSE_2_32 + INVERSE_2_32 / 2.0
}

fn long(low: u32, high: u32) -> f64 {
    (u64::from(low) ^ (u64::from(high) << 21)) as f64
}

/// In (0, 1].
fn uniform_double(low: u32, high: u32) -> f64 {
    long(low, high) * INVERSE_2_53 + INVERSE_2_53 / 2.0
}

/// Box and Muller's two normal numbers. The GPU takes its approximate sine here, so the last bits differ.
fn normals(x: u32, y: u32) -> [f32; 2] {
    let scale = TAU as f32 * INVERSE_2_32;
    let angle = y as f32 * scale + scale / 2.0;
    let radius = (-2.0 * uniform(x).ln()).sqrt();
    [radius * angle.sin(), radius * angle.cos()]
}

fn normals_double([a, b, c, d]: [u32; 4]) -> [f64; 2] {
    let angle = (long(c, d) * (2.0 * INVERSE_2_53) + INVERSE_2_53) * std::f64::consts::PI;
    let radius = (-2.0 * uniform_double(a, b).ln()).sqrt();
    [radius * angle.sin(), radius * angle.cos()]
}

/// How numbers are spread over the elements of a tensor.
#[derive(Debug, Clone, Copy)]
struct Draw {
    seed: u64,
    /// The generator's offset, in numbers.
    offset: u64,
    /// Threads of the grid.
    threads: usize,
    /// Consecutive elements of a thread; 0 where a thread's elements lie a grid apart.
    vector: usize,
}

impl Draw {
    /// Fill `out`; `each` gives the `N` numbers of a call.
    fn fill<T: Copy, const N: usize>(self, out: &mut [T], each: impl Fn([u32; 4]) -> [T; N]) {
        let Self {
            threads, vector, ..
        } = self;
        let call = |thread: usize, call: usize| {
            each(philox(
                self.seed,
                thread as u64,
                self.offset / 4 + call as u64,
            ))
        };
        if vector == 0 {
            for (round, part) in out.chunks_mut(threads * N).enumerate() {
                for thread in 0..threads.min(part.len()) {
                    let numbers = call(thread, round);
                    for (at, to) in part[thread..].iter_mut().step_by(threads).enumerate() {
                        *to = numbers[at];
                    }
                }
            }
        } else {
            let calls = vector.div_ceil(N);
            for (at, part) in out.chunks_mut(vector).enumerate() {
                let (round, thread) = (at / threads, at % threads);
                for (number, to) in part.chunks_mut(N).enumerate() {
                    let numbers = call(thread, round * calls + number);
                    to.copy_from_slice(&numbers[..to.len()]);
                }
            }
        }
    }
}

/// `bits % range`, or all of them where that is 0.
fn within(bits: u64, range: u64) -> i64 {
    bits.checked_rem(range).unwrap_or(bits).cast_signed()
}

/// As `oomph_vgpu_random` says. `false` for an unknown kind.
///
/// # Safety
/// `out` is `count` numbers of the kind's type.
unsafe fn random(kind: c_int, draw: Draw, range: u64, out: *mut c_void, count: usize) -> bool {
    /// # Safety
    /// As for `random`.
    unsafe fn numbers<'a, T>(out: *mut c_void, count: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(out.cast(), count) }
    }
    let pair = |high: u32, low: u32| within(u64::from(high) << 32 | u64::from(low), range);
    // SAFETY: the caller's promise, for the type that each kind has.
    unsafe {
        match kind {
            0 => draw.fill(numbers::<f32>(out, count), |bits| bits.map(uniform)),
            1 => draw.fill(numbers::<f32>(out, count), |[a, b, c, d]| {
                let ([a, b], [c, d]) = (normals(a, b), normals(c, d));
                [a, b, c, d]
            }),
            2 => draw.fill(numbers::<f64>(out, count), |[a, b, c, d]| {
                [uniform_double(a, b), uniform_double(c, d)]
            }),
            3 => draw.fill(numbers::<f64>(out, count), normals_double),
            4 => draw.fill(numbers::<i64>(out, count), |bits| {
                bits.map(|bits| within(u64::from(bits), range))
            }),
            5 => draw.fill(numbers::<i64>(out, count), |[a, b, c, d]| {
                [pair(a, b), pair(c, d)]
            }),
            _ => return false,
        }
    }
    true
}

/// Rows and columns of the scores that a warp of FlashAttention drops by one call of each of its threads.
const FLASH_TILE: [usize; 2] = [16, 32];

/// Which scores of one head FlashAttention keeps (1) and drops (0), row by row of `keys` each (`dropout.h`, `utils.h`).
///
/// A call's 16 bytes belong to the thread's places in two products of 16 by 16: in each, two rows 8 apart, two
/// blocks of 8 columns, and two neighbours.
fn flash_mask(seed: u64, offset: u64, keys: usize, threshold: u8, kept: &mut [u8]) {
    let [rows, columns] = FLASH_TILE;
    let queries = kept.len() / keys;
    for (row, column) in (0..queries.div_ceil(rows))
        .flat_map(|row| (0..keys.div_ceil(columns)).map(move |column| (row, column)))
    {
        for lane in 0..32 {
            let bits = rounds(
                FLASH_ROUNDS,
                seed,
                row as u64 | (column as u64) << 32,
                offset + lane as u64,
            );
            for (at, byte) in bits.iter().flat_map(|bits| bits.to_le_bytes()).enumerate() {
                let query = row * rows + lane / 4 + at / 2 % 2 * 8;
                let key = column * columns + at / 8 * 16 + at / 4 % 2 * 8 + lane % 4 * 2 + at % 2;
                if query < queries && key < keys {
                    kept[query * keys + key] = u8::from(byte <= threshold);
                }
            }
        }
    }
}

export! {
    /// Writes to `kept`, of shape (heads of all samples, queries, keys), which scores FlashAttention's dropout keeps: a byte
    /// of random bits is `threshold` or below.
    unsafe fn oomph_vgpu_flash_mask(seed: u64, offset: u64, heads: usize, queries: usize, keys: usize, threshold: u8, kept: *mut u8) -> c_int, or -1; {
        let size = queries * keys;
        if size > 0 {
            // SAFETY: the recorder gives a tensor of this shape.
            let kept = unsafe { std::slice::from_raw_parts_mut(kept, heads * size) };
            for (head, kept) in kept.chunks_mut(size).enumerate() {
                flash_mask(seed, offset + 32 * head as u64, keys, threshold, kept);
            }
        }
        0
    }
    /// Writes `count` random numbers: of kind 0 and 1 single precision, uniform in (0, 1] and normal; 2 and 3 the same in
    /// double precision; 4 and 5 32 and 64 bits modulo `range` (0: all), as 64-bit integers. A grid of `threads` draws them,
    /// `vector` consecutive ones each, or with 0 one in each round of the grid. 0, or -1 for an unknown kind.
    unsafe fn oomph_vgpu_random(kind: c_int, seed: u64, offset: u64, threads: usize, vector: usize, range: u64, out: *mut c_void, count: usize) -> c_int, or -1; {
        let draw = Draw { seed, offset, threads: threads.max(1), vector };
        // SAFETY: the recorder gives a tensor of `count` elements of the kind's type.
        if unsafe { random(kind, draw, range, out, count) } { 0 } else { -1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_reference() {
        // The known answers of Salmon et al.'s Random123 for philox4x32-10.
        assert_eq!(
            philox(0, 0, 0),
            [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]
        );
        assert_eq!(
            philox(u64::MAX, u64::MAX, u64::MAX),
            [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]
        );
        assert_eq!(
            philox(
                0x299F_31D0_A409_3822,
                0x0370_7344_1319_8A2E,
                0x85A3_08D3_243F_6A88
            ),
            [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1]
        );
    }

    #[test]
    fn flash_attention_drops_what_a_thread_of_its_warp_holds() {
        let (queries, keys) = (20, 40);
        let mut kept = vec![9; queries * keys];
        flash_mask(3, 64, keys, 127, &mut kept);
        assert!(kept.iter().all(|&kept| kept < 2));
        // Query 17 is row 1 of the second tile, so lanes 4 to 7; key 35 is column 3 of the second tile, so lane 5.
        let bytes = rounds(FLASH_ROUNDS, 3, 1 | 1 << 32, 64 + 5)[0].to_le_bytes();
        assert_eq!(kept[17 * keys + 35], u8::from(bytes[1] <= 127));
        // Query 8 is lane 0 to 3; key 30 the fourth block of 8, so lane 3.
        let bytes = rounds(FLASH_ROUNDS, 3, 0, 64 + 3)[3].to_le_bytes();
        assert_eq!(kept[8 * keys + 30], u8::from(bytes[2] <= 127));
    }

    #[test]
    fn threads_take_elements_a_grid_apart_or_side_by_side() {
        let draw = |vector| Draw {
            seed: 7,
            offset: 8,
            threads: 3,
            vector,
        };
        let numbers = |thread, call: u64| philox(7, thread, 2 + call);
        let mut apart = [0; 26];
        draw(0).fill(&mut apart, |bits| bits);
        assert_eq!([apart[1], apart[4], apart[7], apart[10]], numbers(1, 0));
        assert_eq!([apart[14], apart[17], apart[20], apart[23]], numbers(2, 1));
        let mut beside = [0; 26];
        draw(4).fill(&mut beside, |bits| bits);
        assert_eq!(beside[4..8], numbers(1, 0));
        assert_eq!(beside[12..16], numbers(0, 1));
        draw(8).fill(&mut beside, |bits| bits);
        assert_eq!(beside[8..12], numbers(1, 0));
        assert_eq!(beside[12..16], numbers(1, 1));
    }

    #[test]
    fn an_unknown_kind_is_refused() {
        let draw = Draw {
            seed: 0,
            offset: 0,
            threads: 1,
            vector: 0,
        };
        // SAFETY: nothing is written.
        assert!(!unsafe { random(6, draw, 0, std::ptr::null_mut(), 0) });
    }
}
