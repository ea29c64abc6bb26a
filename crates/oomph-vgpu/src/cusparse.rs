//! cuSPARSE: the workspaces of products with a matrix in CSR form.
//!
//! Products do nothing, but PyTorch allocates their workspaces, whose sizes depend on the number of entries alone. The
//! formulas give what an H200 was seen to need, to the byte (`bench/gpu/results/cusparse_workspaces.jsonl`). Other
//! routines keep their entries in [`crate::stubs`], which assume an empty workspace and say so.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::LazyLock;

use crate::arguments::Out;
use crate::export;
use crate::streams::opaque_handle;
use crate::sync::Mutex;

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
/// Columns of dense matrices.
static COLUMNS: LazyLock<Mutex<HashMap<u64, i64>>> = LazyLock::new(Mutex::default);

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
    fn cusparseCreateDnMat(out: Out<u64>, _rows: i64, columns: i64) -> c_int, or INTERNAL; {
        let handle = opaque_handle();
        COLUMNS.lock().insert(handle, columns);
        out.put(handle);
        SUCCESS
    }
    fn cusparseDestroySpMat(matrix: u64) -> c_int, or INTERNAL; {
        MATRICES.lock().remove(&matrix);
        SUCCESS
    }
    fn cusparseDestroyDnMat(matrix: u64) -> c_int, or INTERNAL; {
        COLUMNS.lock().remove(&matrix);
        SUCCESS
    }
    fn cusparseSpMV_bufferSize(_handle: usize, _op: c_int, _alpha: usize, matrix: u64, _x: usize, _beta: usize, _y: usize, _type: c_int, _algorithm: c_int, size: Out<usize>) -> c_int, or INTERNAL; {
        let bytes = MATRICES.lock().get(&matrix).copied().map_or(0, by_vector);
        size.put(bytes as usize);
        SUCCESS
    }
    fn cusparseSpMM_bufferSize(_handle: usize, _op: c_int, _other: c_int, _alpha: usize, matrix: u64, _by: usize, _beta: usize, result: u64, _type: c_int, algorithm: c_int, size: Out<usize>) -> c_int, or INTERNAL; {
        let columns = COLUMNS.lock().get(&result).copied().unwrap_or(0);
        let found = MATRICES.lock().get(&matrix).copied();
        size.put(found.map_or(0, |a| by_matrix(a, columns, algorithm)) as usize);
        SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
