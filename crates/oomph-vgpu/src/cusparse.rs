//! cuSPARSE: the workspaces of products with a matrix in CSR form.
//!
//! Products do nothing but tell the clock what they would take (`bench/time/kinds.py sparse`). PyTorch allocates their
//! workspaces, whose sizes depend on the number of entries alone: the formulas give what an H200 was seen to need, to the
//! byte (`bench/gpu/results/cusparse_workspaces.jsonl`). Other routines keep their entries in [`crate::stubs`], which assume an empty workspace and say so.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::LazyLock;

use crate::arguments::Out;
use crate::export;
use crate::kernels;
use crate::streams::opaque_handle;
use crate::sync::Mutex;
use crate::work::{Work, note};

/// Success of cuSPARSE.
const SUCCESS: c_int = 0;
/// `CUSPARSE_STATUS_INTERNAL_ERROR`.
const INTERNAL: c_int = 6;
/// `CUSPARSE_INDEX_64I`.
const WIDE: c_int = 3;
/// `CUDA_R_64F`.
const DOUBLE: c_int = 1;
/// `CUSPARSE_SPMM_CSR_ALG2`, which PyTorch takes for matrices in CSR form; for COO it takes the first.
const BALANCED: c_int = 6;

#[derive(Debug, Clone, Copy)]
struct Csr {
    entries: u64,
    /// Whether indices have 64 bits.
    wide: bool,
    double: bool,
}

/// Matrices in CSR form by their handle; those of PyTorch live as long as one product.
static MATRICES: LazyLock<Mutex<HashMap<u64, Csr>>> = LazyLock::new(Mutex::default);
/// Rows and columns of dense matrices.
static SIZES: LazyLock<Mutex<HashMap<u64, [i64; 2]>>> = LazyLock::new(Mutex::default);

const WHAT: &str = "sparse products";
/// Cycles of a multiprocessor for each entry, where entries are shared out evenly; else for each and each column, in hundredths.
const CYCLES: [u64; 2] = [16, 131];

/// What a product of `a` with a dense matrix takes, whose result has these rows and columns: a kernel that shares out the entries,
/// one that sets the result to zero, and the product, which reads a row for each entry.
fn product(a: Csr, rows: u64, columns: u64, algorithm: c_int) -> [Work; 3] {
    let element = if a.double { 8 } else { 4 };
    let work = if algorithm == BALANCED {
        a.entries * CYCLES[0]
    } else {
        a.entries * columns * CYCLES[1] / 100
    };
    // The rows that are read again are in the L2 cache.
    let bytes = a.entries * (columns * element + 8) * 6 / 10 + rows * columns * element;
    let moving = |bytes| Work::Moving { bytes, what: WHAT };
    let product = Work::Chain {
        cycles: 0,
        work,
        bytes,
        what: WHAT,
    };
    [moving(a.entries), moving(rows * columns * element), product]
}

/// Bytes for a product with a vector.
const fn by_vector(a: Csr) -> u64 {
    match (a.entries, a.wide, a.double) {
        (0, ..) => 0,
        (n, true, _) => 15 + 8 * n.div_ceil(3072),
        (n, false, true) => 7 + 4 * n.div_ceil(3584),
        (n, false, false) => 7 + 4 * n.div_ceil(4096),
    }
}

/// Bytes for a product with a dense matrix of `columns`.
const fn by_matrix(a: Csr, columns: i64, algorithm: c_int) -> u64 {
    match (a.entries, columns) {
        (0, _) => 0,
        (_, 1) => by_vector(a),
        (n, _) if algorithm != BALANCED => 7 + 4 * n.div_ceil(256),
        (n, _) => 7 + if a.wide { 8 } else { 4 } * n.div_ceil(24),
    }
}

export! {
    fn cusparseCreateCsr(out: Out<u64>, _rows: i64, _columns: i64, entries: i64, _offsets: usize, _indices: usize, _values: usize, _offset_type: c_int, index_type: c_int, _base: c_int, value_type: c_int) -> c_int, or INTERNAL; {
        let handle = opaque_handle();
        let csr = Csr {
            entries: entries.max(0) as u64,
            wide: index_type == WIDE,
            double: value_type == DOUBLE,
        };
        MATRICES.lock().insert(handle, csr);
        out.put(handle);
        SUCCESS
    }
    fn cusparseCreateDnMat(out: Out<u64>, rows: i64, columns: i64) -> c_int, or INTERNAL; {
        let handle = opaque_handle();
        SIZES.lock().insert(handle, [rows, columns]);
        out.put(handle);
        SUCCESS
    }
    fn cusparseDestroySpMat(matrix: u64) -> c_int, or INTERNAL; {
        MATRICES.lock().remove(&matrix);
        SUCCESS
    }
    fn cusparseDestroyDnMat(matrix: u64) -> c_int, or INTERNAL; {
        SIZES.lock().remove(&matrix);
        SUCCESS
    }
    fn cusparseSpMV_bufferSize(_handle: usize, _op: c_int, _alpha: usize, matrix: u64, _x: usize, _beta: usize, _y: usize, _type: c_int, _algorithm: c_int, size: Out<usize>) -> c_int, or INTERNAL; {
        let bytes = MATRICES.lock().get(&matrix).copied().map_or(0, by_vector);
        size.put(bytes as usize);
        SUCCESS
    }
    fn cusparseSpMM_bufferSize(_handle: usize, _op: c_int, _other: c_int, _alpha: usize, matrix: u64, _by: usize, _beta: usize, result: u64, _type: c_int, algorithm: c_int, size: Out<usize>) -> c_int, or INTERNAL; {
        let columns = SIZES.lock().get(&result).map_or(0, |&[_, columns]| columns);
        let found = MATRICES.lock().get(&matrix).copied();
        size.put(found.map_or(0, |a| by_matrix(a, columns, algorithm)) as usize);
        SUCCESS
    }
    fn cusparseSpMM(_handle: usize, _op: c_int, _other: c_int, _alpha: usize, matrix: u64, _by: usize, _beta: usize, result: u64, _type: c_int, algorithm: c_int) -> c_int, or INTERNAL; {
        let size = SIZES.lock().get(&result).copied();
        let found = MATRICES.lock().get(&matrix).copied();
        if let (Some(a), Some(size)) = (found, size) {
            let [rows, columns] = size.map(|count| count.max(0) as u64);
            product(a, rows, columns, algorithm).into_iter().for_each(note);
        }
        kernels::launched(0);
        SUCCESS
    }
    fn cusparseSpMV(_handle: usize, _op: c_int, _alpha: usize, matrix: u64) -> c_int, or INTERNAL; {
        let found = MATRICES.lock().get(&matrix).copied();
        if let Some(a) = found {
            product(a, 0, 1, BALANCED).into_iter().for_each(note);
        }
        kernels::launched(0);
        SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_shared_out_evenly_or_taken_column_by_column() {
        let a = Csr {
            entries: 1000,
            wide: true,
            double: false,
        };
        let work = |algorithm| match product(a, 100, 256, algorithm) {
            [_, _, Work::Chain { work, bytes, .. }] => (work, bytes),
            other => panic!("{other:?}"),
        };
        assert_eq!(work(BALANCED).0, 16_000);
        assert_eq!(work(4).0, 335_360);
        assert_eq!(work(4).1, 600 * (1024 + 8) + 102_400);
    }

    #[test]
    fn workspaces_are_those_of_an_h200() {
        let csr = |entries, wide, double| Csr {
            entries,
            wide,
            double,
        };
        for (a, by, algorithm, bytes) in [
            (csr(482, true, false), 0, 0, 23),
            (csr(4_999_987, true, false), 0, 0, 13_039),
            (csr(995_022, false, false), 0, 0, 979),
            (csr(482, true, false), 16, BALANCED, 175),
            (csr(4_999_987, true, true), 16, BALANCED, 1_666_671),
            (csr(995_022, false, false), 16, 4, 15_555),
            (csr(0, true, false), 0, 0, 0),
        ] {
            let got = if by == 0 {
                by_vector(a)
            } else {
                by_matrix(a, by, algorithm)
            };
            assert_eq!(got, bytes, "{a:?} by {by}");
        }
    }
}
