//! cuSOLVER's workspaces: what its `bufferSize` functions answer.
//!
//! The routines do nothing, but PyTorch allocates their workspaces. The formulas below give what an H200 was seen to
//! need (`bench/gpu/results/cusolver_workspaces.jsonl`: matrices from 4 to 3072 rows, float and double), most of them to
//! the byte and the others to 0.1 %. A routine that was not measured keeps its entry in [`crate::stubs`], which assumes
//! an empty workspace and says so.

use std::ffi::c_int;

use crate::arguments::Out;
use crate::{export, ledger};

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

/// Elements for the first `n` columns of an orthogonal matrix of `m` rows.
const fn orgqr(m: u64, n: u64) -> u64 {
    if n < 128 {
        (32 << 10) + 256 + m * n
    } else {
        (16 << 10) + 256 + 128 * m + 256 * n
    }
}

/// Elements to multiply by an orthogonal matrix of `m` rows, the product of `k` reflections.
const fn ormqr(m: u64, k: u64) -> u64 {
    m * k + k * k + 256 * m + 67_360
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
    n * n + n + (1024 + 1) * t + 4 * t * t + 1024
}

/// Elements for eigenvalues of `batch` small symmetric matrices.
const fn syev_batched(n: u64, batch: u64) -> u64 {
    batch * (3 * n * n + 768 * n + 65_536)
}

/// Elements for singular values by Jacobi's method. One that is not square is first made so.
const fn gesvdj(m: u64, n: u64) -> u64 {
    let k = if m < n { m } else { n };
    let t = panels(k);
    let square = 2 * k * k + (2048 + 32) * t + (4 * t * t).next_multiple_of(PANEL) + 1024 + 32;
    if m == n {
        return square;
    }
    let first = geqrf(k) + if m < n { m * n } else { 0 };
    k + 32 + if first > square { first } else { square }
}

/// Elements for singular values of matrices of up to 32 rows and columns; of any batch the same.
const GESVDJ_BATCHED: u64 = 992;

/// Elements for singular values by QR iteration; square ones were fitted.
fn gesvd(m: u64, n: u64) -> u64 {
    let k = m.min(n);
    let square = 3 * k * k + 260 * k + 65_792;
    if m == n {
        return square;
    }
    ledger::assume(
        "cusolverDnGesvd",
        "the workspace of this routine is estimated for matrices that are not square",
    );
    geqrf(k) + square + m * n
}

/// Elements for eigenvalues of a general matrix.
const fn geev(n: u64) -> u64 {
    let (whole, basis) = (n * n + 4 * n + 128, orgqr(n, n) + 3 * n);
    if whole > basis { whole } else { basis }
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

/// Functions for the four types of elements: what each is called, its arguments before the size, the elements. `$size` is
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
    ($name:ident, $size:ident $bytes:literal, [$($argument:ident)*], $elements:expr) => { export! {
        fn $name($($argument: usize,)* out: Out<c_int>) -> c_int, or INTERNAL; {
            let $size: u64 = $bytes;
            let _ = ($size, $($argument,)*);
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
    cusolverDnCheevj_bufferSize cusolverDnZheevj_bufferSize
    cusolverDnSsyevjBatched_bufferSize cusolverDnDsyevjBatched_bufferSize
    cusolverDnCheevjBatched_bufferSize cusolverDnZheevjBatched_bufferSize,
    |size| [_handle _jobz _uplo n _a _lda _w] => syevj(int(n))
}

sizes! {
    cusolverDnSorgqr_bufferSize cusolverDnDorgqr_bufferSize
    cusolverDnCungqr_bufferSize cusolverDnZungqr_bufferSize,
    |size| [_handle m n _k _a _lda _tau] => orgqr(int(m), int(n))
}

sizes! {
    cusolverDnSormqr_bufferSize cusolverDnDormqr_bufferSize
    cusolverDnCunmqr_bufferSize cusolverDnZunmqr_bufferSize,
    |size| [_handle _side _trans m _n k _a _lda _tau _c _ldc] => ormqr(int(m), int(k))
}

sizes! {
    cusolverDnSgesvdjBatched_bufferSize cusolverDnDgesvdjBatched_bufferSize
    cusolverDnCgesvdjBatched_bufferSize cusolverDnZgesvdjBatched_bufferSize,
    |size| [_handle _jobz _m _n _a _lda _s _u _ldu _v _ldv] => GESVDJ_BATCHED
}

sizes! {
    cusolverDnSgesvdj_bufferSize cusolverDnDgesvdj_bufferSize
    cusolverDnCgesvdj_bufferSize cusolverDnZgesvdj_bufferSize,
    |size| [_handle _jobz _economic m n _a _lda _s _u _ldu _v _ldv] => gesvdj(int(m), int(n))
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
    fn cusolverDnXsyevBatched_bufferSize(_handle: usize, _params: usize, _jobz: usize, _uplo: usize, n: usize, of: usize, _a: usize, _lda: usize, _w_type: usize, _w: usize, _compute: usize, device: Out<usize>, host: Out<usize>, batch: usize) -> c_int, or INTERNAL; {
        answer_bytes(device, host, syev_batched(n as u64, batch as u64) * size_of(of))
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
            assert_eq!(4 * gesvdj(m, n), bytes, "gesvdj {m}×{n}");
        }
        for (n, bytes) in [(128, 3_145_856), (1000, 6_193_280), (3072, 14_680_192)] {
            assert_eq!(4 * geqrf(n) + QR_BYTES, bytes, "geqrf {n}");
        }
        for (m, n, bytes) in [(64, 32, 140_288), (3072, 768, 2_425_856)] {
            assert_eq!(4 * orgqr(m, n), bytes, "orgqr {m}×{n}");
        }
        for (m, k, bytes) in [(512, 128, 1_121_408), (3072, 768, 15_211_648)] {
            assert_eq!(4 * ormqr(m, k), bytes, "ormqr {m}×{k}");
        }
        for (n, bytes) in [(256, 462_848), (1024, 4_211_200)] {
            assert_eq!(4 * geev(n), bytes, "geev {n}");
        }
        for (n, bytes) in [(32, 160), (1000, 4_224), (2048, 16_512)] {
            assert_eq!(potrf(n), bytes, "potrf {n}");
        }
        for (n, bytes) in [(100, 2_304), (768, 10_496), (2048, 52_480)] {
            assert_eq!(getrf(n, 4), bytes, "getrf {n}");
        }
        assert_eq!(4 * gesvd(1024, 1024), 13_911_040);
        let measured = 190_783_744.0;
        assert!((4.0 * syev_batched(32, 512) as f64 / measured - 1.0).abs() < 1e-3);
    }
}
