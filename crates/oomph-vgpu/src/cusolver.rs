//! cuSOLVER's workspaces: what its `bufferSize` functions answer.
//!
//! The routines do nothing, but PyTorch and CuPy allocate their workspaces. The formulas below were worked out from 996 sizes that
//! cuSOLVER answered on an H100 (`bench/gpu/results/cusolver_sizes.jsonl.xz`; matrices from 1 to 8192 rows, four types) and are within 1 %
//! for all of 484 drawn ones, but for LU's, which are some KB at most. An H200 allocates the same
//! (`bench/gpu/results/cusolver_workspaces.jsonl`). A routine that is not here keeps its entry in [`crate::stubs`], which
//! assumes an empty workspace and says so.

use std::ffi::c_int;

use crate::arguments::Out;
use crate::export;

/// Success of cuSOLVER.
const SUCCESS: c_int = 0;
/// `CUSOLVER_STATUS_INTERNAL_ERROR`.
const INTERNAL: c_int = 7;

/// Panels of most routines are so wide.
const PANEL: u64 = 32;

const fn panels(n: u64) -> u64 {
    n.div_ceil(PANEL)
}

/// Elements for a QR factorization of a matrix with `n` columns, less [`QR_BYTES`].
const fn geqrf(n: u64) -> u64 {
    (512 << 10) + (1 << 10) * if n < 256 { 256 } else { n }
}

/// Bytes that a QR factorization needs beside its elements.
const QR_BYTES: u64 = 128;

/// Elements for the first `n` columns of an orthogonal matrix of `m` rows, the product of `k` reflections.
fn orgqr(m: u64, n: u64, k: u64) -> u64 {
    let few = if k < 128 { (16 << 10) + m * k } else { 0 };
    (16 << 10) + 256 + few.max((m + 2 * n) * k.min(128))
}

/// Elements to multiply `n` columns by an orthogonal matrix of `m` rows, the product of `k` reflections.
fn ormqr(m: u64, n: u64, k: u64) -> u64 {
    m.max(n) * k + k * k + 256 * m + 513 * n + 65_792
}

/// Bytes for a Cholesky factorization; of every type the same.
const fn potrf(n: u64) -> u64 {
    128 + (4 * panels(n) * panels(n)).next_multiple_of(PANEL)
}

/// Bytes for an LU factorization, with elements of `size` bytes.
const fn getrf(n: u64, size: u64) -> u64 {
    let n = n.next_multiple_of(PANEL);
    if n <= 512 {
        256 + 16 * n
    } else if n <= 1024 {
        4352 + 8 * n
    } else {
        // One size above 1024 was measured, 2048.
        12_544 + (n - 1024) * if size == 4 { 39 } else { 72 }
    }
}

/// Elements for eigenvalues of a symmetric matrix by divide and conquer.
const fn syevd(n: u64) -> u64 {
    let (small, large) = (3 * n * n + 768 * n + 65_619, 4 * n * n + 127 * n + 32_979);
    if small > large { small } else { large }
}

/// Elements for eigenvalues of a symmetric matrix by Jacobi's method.
const fn syevj(n: u64) -> u64 {
    let t = panels(n);
    if n >= 4096 {
        return n * n + 4096 * n + (8 << 20) + 36;
    }
    n * n + n + (1024 + 1) * t + 4 * t * t + 1024
}

/// The same for `batch` matrices at once.
const fn syevj_batched(n: u64, batch: u64) -> u64 {
    let t = panels(n);
    1024 + batch * (n * n + 2 * n + 1024 * t + t * t + 1)
}

/// Elements for singular values by Jacobi's method, `full` with all of the orthogonal matrices. A matrix that is not square is
/// first made so, a wide one is turned.
fn gesvdj(m: u64, n: u64, full: bool) -> u64 {
    let (k, long) = (m.min(n), m.max(n));
    let t = panels(k);
    let square = 2 * k * k + (2048 + 32) * t + (4 * t * t).next_multiple_of(PANEL) + 1024 + 32;
    if m == n {
        return square;
    }
    let turned = if m < n { m * n } else { 0 };
    let made_square = geqrf(k).max(ormqr(long, if full { long } else { k }, k));
    (square + k * k).max(turned + k + 32 + made_square)
}

/// Elements for singular values of matrices of up to 32 rows and columns; of any batch the same.
const GESVDJ_BATCHED: u64 = 992;

/// Elements for singular values by QR iteration. Of a tall matrix the triangle is taken first where that needs more.
fn gesvd(m: u64, n: u64) -> u64 {
    if m <= n {
        return 3 * n * n + 260 * n + 65_792;
    }
    let at_once = 3 * m * n + 3 * n * n + 257 * m + 3 * n + 65_792;
    let vectors = (16 << 10) + 256 + ((16 << 10) + m * n).max(3 * m * n.min(128));
    at_once.max(geqrf(n) + m * n + 2 * n * n + vectors)
}

/// Elements for eigenvalues of a general matrix.
fn geev(n: u64) -> u64 {
    (n * n + 4 * n + 128).max(orgqr(n, n, n) + 3 * n)
}

/// Bytes of an element by its `cudaDataType`.
const fn size_of(data_type: usize) -> u64 {
    match data_type as u32 {
        0 => 4,
        5 => 16,
        _ => 8,
    }
}

/// A length that C passed as an `int`, in a slot whose upper half means nothing.
const fn int(slot: usize) -> u64 {
    slot as u32 as u64
}

/// Writes a size as cuSOLVER's older functions give it.
fn answer(out: Out<c_int>, elements: u64) -> c_int {
    out.put(c_int::try_from(elements).unwrap_or(c_int::MAX));
    SUCCESS
}

/// Writes a size in bytes as cuSOLVER's newer functions give it: nothing is needed on the host.
fn answer_bytes(device: Out<usize>, host: Out<usize>, bytes: u64) -> c_int {
    device.put(bytes as usize);
    host.put(0);
    SUCCESS
}

/// Functions for the four types of elements: what each is called, its arguments before the size and behind it, the elements. `$size` is
/// how many bytes an element has.
macro_rules! sizes {
    ($($single:ident $double:ident $complex:ident $double_complex:ident)+, |$size:ident| $arguments:tt => $elements:expr) => {$(
        size! { $single, $size 4, $arguments, $elements }
        size! { $double, $size 8, $arguments, $elements }
        size! { $complex, $size 8, $arguments, $elements }
        size! { $double_complex, $size 16, $arguments, $elements }
    )+};
}

macro_rules! size {
    ($name:ident, $size:ident $bytes:literal, [$($argument:ident)* $(; $($after:ident)*)?], $elements:expr) => { export! {
        fn $name($($argument: usize,)* out: Out<c_int> $($(, $after: usize)*)?) -> c_int, or INTERNAL; {
            let $size: u64 = $bytes;
            let _ = ($size, $($argument,)* $($($after,)*)?);
            answer(out, $elements)
        }
    } };
}

sizes! {
    cusolverDnSgesvd_bufferSize cusolverDnDgesvd_bufferSize
    cusolverDnCgesvd_bufferSize cusolverDnZgesvd_bufferSize,
    |size| [_handle m n] => gesvd(int(m), int(n))
}

sizes! {
    cusolverDnSgeqrf_bufferSize cusolverDnDgeqrf_bufferSize
    cusolverDnCgeqrf_bufferSize cusolverDnZgeqrf_bufferSize,
    |size| [_handle _m n _a _lda] => geqrf(int(n)) + QR_BYTES / size
}

sizes! {
    cusolverDnSgetrf_bufferSize cusolverDnDgetrf_bufferSize
    cusolverDnCgetrf_bufferSize cusolverDnZgetrf_bufferSize,
    |size| [_handle m n _a _lda] => getrf(int(m).min(int(n)), size).div_ceil(size)
}

sizes! {
    cusolverDnSpotrf_bufferSize cusolverDnDpotrf_bufferSize
    cusolverDnCpotrf_bufferSize cusolverDnZpotrf_bufferSize,
    |size| [_handle _uplo n _a _lda] => potrf(int(n)).div_ceil(size)
}

sizes! {
    cusolverDnSsyevd_bufferSize cusolverDnDsyevd_bufferSize
    cusolverDnCheevd_bufferSize cusolverDnZheevd_bufferSize,
    |size| [_handle _jobz _uplo n _a _lda _w] => syevd(int(n))
}

sizes! {
    cusolverDnSsyevj_bufferSize cusolverDnDsyevj_bufferSize
    cusolverDnCheevj_bufferSize cusolverDnZheevj_bufferSize,
    |size| [_handle _jobz _uplo n _a _lda _w] => syevj(int(n))
}

sizes! {
    cusolverDnSsyevjBatched_bufferSize cusolverDnDsyevjBatched_bufferSize
    cusolverDnCheevjBatched_bufferSize cusolverDnZheevjBatched_bufferSize,
    |size| [_handle _jobz _uplo n _a _lda _w; _params batch] => syevj_batched(int(n), int(batch))
}

sizes! {
    cusolverDnSorgqr_bufferSize cusolverDnDorgqr_bufferSize
    cusolverDnCungqr_bufferSize cusolverDnZungqr_bufferSize,
    |size| [_handle m n k _a _lda _tau] => orgqr(int(m), int(n), int(k))
}

sizes! {
    cusolverDnSormqr_bufferSize cusolverDnDormqr_bufferSize
    cusolverDnCunmqr_bufferSize cusolverDnZunmqr_bufferSize,
    |size| [_handle _side _trans m n k _a _lda _tau _c _ldc] => ormqr(int(m), int(n), int(k))
}

sizes! {
    cusolverDnSgesvdjBatched_bufferSize cusolverDnDgesvdjBatched_bufferSize
    cusolverDnCgesvdjBatched_bufferSize cusolverDnZgesvdjBatched_bufferSize,
    |size| [_handle _jobz _m _n _a _lda _s _u _ldu _v _ldv] => GESVDJ_BATCHED
}

sizes! {
    cusolverDnSgesvdj_bufferSize cusolverDnDgesvdj_bufferSize
    cusolverDnCgesvdj_bufferSize cusolverDnZgesvdj_bufferSize,
    |size| [_handle _jobz economic m n _a _lda _s _u _ldu _v _ldv] => gesvdj(int(m), int(n), int(economic) == 0)
}

export! {
    fn cusolverDnXpotrf_bufferSize(_handle: usize, _params: usize, _uplo: usize, n: usize, _type: usize, _a: usize, _lda: usize, _compute: usize, device: Out<usize>, host: Out<usize>) -> c_int, or INTERNAL; {
        answer_bytes(device, host, potrf(n as u64))
    }
    fn cusolverDnXgeqrf_bufferSize(_handle: usize, _params: usize, _m: usize, n: usize, of: usize, _a: usize, _lda: usize, _tau_type: usize, _tau: usize, _compute: usize, device: Out<usize>, host: Out<usize>) -> c_int, or INTERNAL; {
        answer_bytes(device, host, geqrf(n as u64) * size_of(of) + QR_BYTES)
    }
    fn cusolverDnXsyevd_bufferSize(_handle: usize, _params: usize, _jobz: usize, _uplo: usize, n: usize, of: usize, _a: usize, _lda: usize, _w_type: usize, _w: usize, _compute: usize, device: Out<usize>, host: Out<usize>) -> c_int, or INTERNAL; {
        answer_bytes(device, host, syevd(n as u64) * size_of(of))
    }
    fn cusolverDnXgesvd_bufferSize(_handle: usize, _params: usize, _jobu: usize, _jobvt: usize, m: usize, n: usize, of: usize, _a: usize, _lda: usize, _s_type: usize, _s: usize, _u_type: usize, _u: usize, _ldu: usize, _vt_type: usize, _vt: usize, _ldvt: usize, _compute: usize, device: Out<usize>, host: Out<usize>) -> c_int, or INTERNAL; {
        // Not measured: taken to be what the older function answers.
        answer_bytes(device, host, gesvd(m as u64, n as u64) * size_of(of))
    }
    fn cusolverDnXsyevBatched_bufferSize(_handle: usize, _params: usize, _jobz: usize, _uplo: usize, n: usize, of: usize, _a: usize, _lda: usize, _w_type: usize, _w: usize, _compute: usize, device: Out<usize>, host: Out<usize>, batch: usize) -> c_int, or INTERNAL; {
        answer_bytes(device, host, batch as u64 * syevd(n as u64) * size_of(of))
    }
    fn cusolverDnXgeev_bufferSize(_handle: usize, _params: usize, _left: usize, _right: usize, n: usize, of: usize, _a: usize, _lda: usize, _w_type: usize, _w: usize, _vl_type: usize, _vl: usize, _ldvl: usize, _vr_type: usize, _vr: usize, _ldvr: usize, _compute: usize, device: Out<usize>, host: Out<usize>) -> c_int, or INTERNAL; {
        answer_bytes(device, host, geev(n as u64) * size_of(of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that an H200 was seen to allocate for float32 (`bench/gpu/results/cusolver_workspaces.jsonl`).
    #[test]
    fn workspaces_are_those_of_the_h200() {
        for (n, bytes) in [(64, 29_000), (256, 301_088), (512, 1_124_416)] {
            assert_eq!(4 * syevj(n), bytes, "syevj {n}");
        }
        for (n, bytes) in [(256, 3_670_680), (512, 9_962_136), (2048, 136_562_328)] {
            assert_eq!(8 * syevd(n), bytes, "syevd of doubles {n}");
        }
        for (m, n, bytes) in [
            (128, 128, 168_832),
            (1024, 1024, 8_675_456),
            (512, 128, 3_146_368),
            (128, 512, 3_408_512),
        ] {
            assert_eq!(4 * gesvdj(m, n, false), bytes, "gesvdj {m}×{n}");
        }
        for (n, bytes) in [(128, 3_145_856), (1000, 6_193_280), (3072, 14_680_192)] {
            assert_eq!(4 * geqrf(n) + QR_BYTES, bytes, "geqrf {n}");
        }
        for (n, bytes) in [(32, 160), (1000, 4_224), (2048, 16_512)] {
            assert_eq!(potrf(n), bytes, "potrf {n}");
        }
        for (n, bytes) in [(100, 2_304), (768, 10_496), (2048, 52_480)] {
            assert_eq!(getrf(n, 4), bytes, "getrf {n}");
        }
        assert_eq!(4 * gesvd(1024, 1024), 13_911_040);
    }

    /// JAX 0.11 asks so, with nulls for all arrays.
    #[test]
    fn singular_values_of_the_newer_interface_have_the_same_workspace() {
        let (mut device, mut host) = (0, 1);
        let asked = cusolverDnXgesvd_bufferSize(
            1,
            0,
            83,
            83,
            1024,
            1024,
            0,
            0,
            1024,
            0,
            0,
            0,
            0,
            1024,
            0,
            0,
            1024,
            0,
            (&mut device).into(),
            (&mut host).into(),
        );
        assert_eq!((asked, device, host), (SUCCESS, 13_911_040, 0));
    }

    /// What cuSOLVER answered on an H100 for sizes drawn at random, on which no formula rests (`bench/gpu/results/cusolver_sizes.jsonl.xz`).
    #[test]
    fn sizes_drawn_at_random_have_their_workspace() {
        let near = |name: &str, answered: u64, here: u64| {
            assert!(
                here.abs_diff(answered) <= (answered / 100).max(1024),
                "{name}: {here} of {answered}"
            );
        };
        for (m, n, k, qr, full, thin, columns, product) in [
            (252, 47, 47, 855_104, 786_528, 786_528, 44_896, 168_512),
            (355, 16, 14, 831_424, 786_496, 786_496, 38_016, 170_080),
            (109, 25, 10, 826_304, 786_496, 786_496, 34_144, 107_744),
            (
                5827,
                4000,
                3068,
                119_499_360,
                48_323_680,
                48_323_680,
                1_786_496,
                30_899_392,
            ),
            (
                7357, 5, 5, 2_067_136, 5_760_192, 1_988_640, 69_824, 1_988_608,
            ),
            (420, 274, 274, 1_248_416, 805_184, 805_184, 140_544, 504_064),
            (206, 163, 163, 969_184, 786_656, 786_656, 84_736, 262_336),
            (
                6184, 6, 6, 1_766_720, 4_858_496, 1_689_184, 70_144, 1_689_152,
            ),
            (1340, 6, 3, 835_776, 1_104_384, 786_496, 37_056, 415_968),
            (850, 129, 107, 1_272_672, 845_920, 786_624, 135_232, 452_000),
            (
                4075, 146, 146, 3_005_728, 3_815_936, 1_800_352, 575_616, 1_800_192,
            ),
            (
                5102, 1365, 830, 27_863_584, 12_818_080, 10_900_992, 1_019_136, 6_995_744,
            ),
            (
                7697, 1953, 1953, 58_589_344, 24_833_248, 21_886_592, 1_501_824, 21_884_608,
            ),
            (311, 3, 3, 821_504, 786_496, 786_496, 33_984, 147_936),
            (
                1530, 1530, 166, 7_486_368, 4_791_968, 4_791_968, 604_160, 1_523_904,
            ),
            (
                882, 882, 882, 2_628_992, 1_618_304, 1_618_304, 355_328, 2_299_936,
            ),
            (145, 145, 86, 166_688, 53_600, 53_600, 54_080, 197_184),
            (1, 580, 1, 1_225_920, 787_104, 787_104, 0, 364_224),
            (6, 350, 5, 524_352, 788_608, 788_608, 0, 248_672),
            (
                135, 4693, 41, 67_358_784, 4_960_256, 2_622_016, 0, 2_701_984,
            ),
            (5, 222, 4, 271_424, 787_616, 787_616, 0, 181_888),
            (3, 427, 3, 723_904, 787_808, 787_808, 0, 286_944),
            (4, 67, 4, 96_832, 786_784, 786_784, 0, 101_504),
            (2, 249, 2, 316_608, 787_008, 787_008, 0, 194_560),
        ] {
            near("gesvd", qr, gesvd(m, n));
            near("gesvdj, full", full, gesvdj(m, n, true));
            near("gesvdj", thin, gesvdj(m, n, false));
            near("ormqr", product, ormqr(m, n, k));
            if m >= n {
                near("orgqr", columns, orgqr(m, n, k));
            }
        }
        for (n, batch, many, one, general) in [
            (257, 500, 37_891_348, 76_879, 464_384),
            (123, 7, 137_392, 20_440, 247_808),
            (33, 16, 52_304, 4212, 137_216),
            (1380, 1, 1_960_985, 1_959_648, 7_640_064),
            (3918, 7, 108_453_131, 15_542_257, 61_466_112),
            (442, 500, 105_294_308, 211_964, 788_992),
            (57, 500, 2_707_040, 6396, 145_920),
            (30, 7, 14_923, 2983, 136_192),
        ] {
            near("syevjBatched", many, syevj_batched(n, batch));
            near("syevj", one, syevj(n));
            near("Xgeev", general, 4 * geev(n));
        }
    }
}
