//! cuBLAS and cuBLASLt: handles and modes are real, products do nothing.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};

use crate::arguments::Out;
use crate::clock::{Kind, Product, alignment};
use crate::context::Charge;
use crate::device::{self, machine};
use crate::export;
use crate::streams::opaque_handle;
use crate::sync::Mutex;

pub type Status = c_int;
const SUCCESS: Status = 0;
const NOT_INITIALIZED: Status = 1;
const INTERNAL: Status = 14;

/// The state of a handle.
#[derive(Debug, Clone, Copy, Default)]
struct Handle {
    stream: u64,
    math_mode: c_int,
    pointer_mode: c_int,
}

static HANDLES: std::sync::LazyLock<Mutex<HashMap<u64, Handle>>> =
    std::sync::LazyLock::new(|| Mutex::new(HashMap::new()));

fn edit(handle: u64, change: impl FnOnce(&mut Handle)) -> Status {
    HANDLES
        .lock()
        .get_mut(&handle)
        .map_or(NOT_INITIALIZED, |found| {
            change(found);
            SUCCESS
        })
}

/// A matrix of a product as it is stored.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    pub at: u64,
    /// `cudaDataType`.
    pub kind: c_int,
    pub leading: u64,
    /// With a single one, the leading dimension means nothing.
    pub columns: u64,
}

/// `cublasComputeType_t` of products that may round to TF32, and the math mode that allows it.
const COMPUTE_TF32: c_int = 77;
const COMPUTE_FP32: c_int = 68;
const MATH_TF32: c_int = 3;

/// Accounts a product of `[m, n, k, batch]`: the operands are A, B and the result.
pub fn multiply(stream: u64, compute: c_int, [m, n, k, batch]: [u64; 4], operands: [Operand; 3]) {
    machine()
        .costs
        .charge(device::current(), Charge::FirstMatmul);
    let kind = Kind::new(operands[0].kind, compute);
    let product = |kind: Kind, width: fn(Kind) -> Kind| Product {
        m,
        n,
        k,
        batch,
        kind,
        alignment: operands
            .iter()
            .map(|operand| {
                let bytes = width(Kind::new(operand.kind, compute)).bytes() as u64;
                let leading = if operand.columns > 1 {
                    operand.leading * bytes
                } else {
                    0
                };
                alignment(operand.at).min(alignment(leading))
            })
            .min()
            .unwrap_or(0),
    };
    let rates = &machine().rates;
    let time = rates.product(&product(kind, |kind| kind));
    let halved = match kind {
        Kind::Fp32 | Kind::Tf32 => rates.product(&product(Kind::Bf16, |_| Kind::Bf16)),
        _ => time,
    };
    crate::work::note(crate::work::Work::Product(product(kind, |kind| kind)));
    crate::kernels::enqueued_as(stream, time, halved);
}

/// Accounts a product called for through a handle of cuBLAS, whose sizes are ints.
fn classic(
    handle: u64,
    compute: c_int,
    turned: [c_int; 2],
    sizes: [c_int; 4],
    places: [(u64, c_int, c_int); 3],
) -> Status {
    let Some(found) = HANDLES.lock().get(&handle).copied() else {
        return NOT_INITIALIZED;
    };
    let compute = if found.math_mode == MATH_TF32 && compute == COMPUTE_FP32 {
        COMPUTE_TF32
    } else {
        compute
    };
    let [m, n, k, batch] = sizes.map(|size| size.max(0) as u64);
    let columns = [
        if turned[0] == 0 { k } else { m },
        if turned[1] == 0 { n } else { k },
        n,
    ];
    let operand = |index: usize| {
        let (at, kind, leading) = places[index];
        Operand {
            at,
            kind,
            leading: leading.max(0) as u64,
            columns: columns[index],
        }
    };
    multiply(
        found.stream,
        compute,
        [m, n, k, batch],
        [operand(0), operand(1), operand(2)],
    );
    SUCCESS
}

export! {
    fn cublasGemmEx(handle: u64, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, _alpha: u64, a: u64, a_kind: c_int, lda: c_int, b: u64, b_kind: c_int, ldb: c_int, _beta: u64, c: u64, c_kind: c_int, ldc: c_int, compute: c_int, _algorithm: c_int) -> Status, or INTERNAL; {
        classic(handle, compute, [ta, tb], [m, n, k, 1], [(a, a_kind, lda), (b, b_kind, ldb), (c, c_kind, ldc)])
    }
    fn cublasSgemmEx(handle: u64, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, _alpha: u64, a: u64, a_kind: c_int, lda: c_int, b: u64, b_kind: c_int, ldb: c_int, _beta: u64, c: u64, c_kind: c_int, ldc: c_int) -> Status, or INTERNAL; {
        classic(handle, COMPUTE_FP32, [ta, tb], [m, n, k, 1], [(a, a_kind, lda), (b, b_kind, ldb), (c, c_kind, ldc)])
    }
    fn cublasGemmBatchedEx(handle: u64, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, _alpha: u64, _a: u64, a_kind: c_int, lda: c_int, _b: u64, b_kind: c_int, ldb: c_int, _beta: u64, _c: u64, c_kind: c_int, ldc: c_int, batch: c_int, compute: c_int, _algorithm: c_int) -> Status, or INTERNAL; {
        classic(handle, compute, [ta, tb], [m, n, k, batch], [(0, a_kind, lda), (0, b_kind, ldb), (0, c_kind, ldc)])
    }
    fn cublasGemmStridedBatchedEx(handle: u64, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, _alpha: u64, a: u64, a_kind: c_int, lda: c_int, _a_step: i64, b: u64, b_kind: c_int, ldb: c_int, _b_step: i64, _beta: u64, c: u64, c_kind: c_int, ldc: c_int, _c_step: i64, batch: c_int, compute: c_int, _algorithm: c_int) -> Status, or INTERNAL; {
        classic(handle, compute, [ta, tb], [m, n, k, batch], [(a, a_kind, lda), (b, b_kind, ldb), (c, c_kind, ldc)])
    }
}

/// Products of one type: plain, strided and by tables of addresses, whose entries are not read.
macro_rules! typed_products {
    ($($kind:literal $plain:ident $strided:ident $batched:ident;)*) => { export! {$(
        fn $plain(handle: u64, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, _alpha: u64, a: u64, lda: c_int, b: u64, ldb: c_int, _beta: u64, c: u64, ldc: c_int) -> Status, or INTERNAL; {
            classic(handle, COMPUTE_FP32, [ta, tb], [m, n, k, 1], [(a, $kind, lda), (b, $kind, ldb), (c, $kind, ldc)])
        }
        fn $strided(handle: u64, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, _alpha: u64, a: u64, lda: c_int, _a_step: i64, b: u64, ldb: c_int, _b_step: i64, _beta: u64, c: u64, ldc: c_int, _c_step: i64, batch: c_int) -> Status, or INTERNAL; {
            classic(handle, COMPUTE_FP32, [ta, tb], [m, n, k, batch], [(a, $kind, lda), (b, $kind, ldb), (c, $kind, ldc)])
        }
        fn $batched(handle: u64, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int, _alpha: u64, _a: u64, lda: c_int, _b: u64, ldb: c_int, _beta: u64, _c: u64, ldc: c_int, batch: c_int) -> Status, or INTERNAL; {
            classic(handle, COMPUTE_FP32, [ta, tb], [m, n, k, batch], [(0, $kind, lda), (0, $kind, ldb), (0, $kind, ldc)])
        }
    )*} };
}

typed_products! {
    0 cublasSgemm_v2 cublasSgemmStridedBatched cublasSgemmBatched;
    1 cublasDgemm_v2 cublasDgemmStridedBatched cublasDgemmBatched;
    2 cublasHgemm cublasHgemmStridedBatched cublasHgemmBatched;
    4 cublasCgemm_v2 cublasCgemmStridedBatched cublasCgemmBatched;
    5 cublasZgemm_v2 cublasZgemmStridedBatched cublasZgemmBatched;
}

/// Batched solvers, which say in the host's memory whether their arguments were right. The callers of some leave that uninitialized.
macro_rules! typed_solvers {
    ($($factor:ident $least_squares:ident $solve:ident;)*) => { export! {$(
        fn $factor(_handle: u64, _m: c_int, _n: c_int, _a: u64, _lda: c_int, _tau: u64, info: Out<c_int>, _batch: c_int) -> Status, or INTERNAL; {
            info.put(0);
            multiplied();
            SUCCESS
        }
        fn $least_squares(_handle: u64, _trans: c_int, _m: c_int, _n: c_int, _columns: c_int, _a: u64, _lda: c_int, _c: u64, _ldc: c_int, info: Out<c_int>, _of_each: u64, _batch: c_int) -> Status, or INTERNAL; {
            info.put(0);
            multiplied();
            SUCCESS
        }
        fn $solve(_handle: u64, _trans: c_int, _n: c_int, _columns: c_int, _a: u64, _lda: c_int, _pivots: u64, _b: u64, _ldb: c_int, info: Out<c_int>, _batch: c_int) -> Status, or INTERNAL; {
            info.put(0);
            multiplied();
            SUCCESS
        }
    )*} };
}

typed_solvers! {
    cublasSgeqrfBatched cublasSgelsBatched cublasSgetrsBatched;
    cublasDgeqrfBatched cublasDgelsBatched cublasDgetrsBatched;
    cublasCgeqrfBatched cublasCgelsBatched cublasCgetrsBatched;
    cublasZgeqrfBatched cublasZgelsBatched cublasZgetrsBatched;
}

/// Accounts one call with unknown work on the GPU.
pub fn multiplied() {
    machine()
        .costs
        .charge(device::current(), Charge::FirstMatmul);
    crate::kernels::launched(0);
}

fn name_of(status: Status) -> &'static CStr {
    match status {
        SUCCESS => c"CUBLAS_STATUS_SUCCESS",
        NOT_INITIALIZED => c"CUBLAS_STATUS_NOT_INITIALIZED",
        _ => c"CUBLAS_STATUS_INTERNAL_ERROR",
    }
}

export! {
    fn cublasCreate_v2(out: Out<u64>) -> Status, or INTERNAL; {
        if device::is_forked() || device::active().is_none() {
            return NOT_INITIALIZED;
        }
        machine().costs.charge(device::current(), Charge::CublasHandle);
        let handle = opaque_handle();
        HANDLES.lock().insert(handle, Handle::default());
        out.put(handle);
        SUCCESS
    }
    fn cublasDestroy_v2(handle: u64) -> Status, or INTERNAL; {
        if HANDLES.lock().remove(&handle).is_some() { SUCCESS } else { NOT_INITIALIZED }
    }
    fn cublasSetStream_v2(handle: u64, stream: u64) -> Status, or INTERNAL; {
        edit(handle, |found| found.stream = stream)
    }
    fn cublasGetStream_v2(handle: u64, stream: Out<u64>) -> Status, or INTERNAL; {
        edit(handle, |found| stream.put(found.stream))
    }
    fn cublasSetMathMode(handle: u64, mode: c_int) -> Status, or INTERNAL; {
        edit(handle, |found| found.math_mode = mode)
    }
    fn cublasGetMathMode(handle: u64, mode: Out<c_int>) -> Status, or INTERNAL; {
        edit(handle, |found| mode.put(found.math_mode))
    }
    fn cublasSetPointerMode_v2(handle: u64, mode: c_int) -> Status, or INTERNAL; {
        edit(handle, |found| found.pointer_mode = mode)
    }
    fn cublasGetPointerMode_v2(handle: u64, mode: Out<c_int>) -> Status, or INTERNAL; {
        edit(handle, |found| mode.put(found.pointer_mode))
    }
    fn cublasSetWorkspace_v2(_handle: u64, _workspace: *mut c_void, _size: usize) -> Status, or INTERNAL; { SUCCESS }
    fn cublasGetStatusName(status: Status) -> *const c_char, or std::ptr::null(); { name_of(status).as_ptr() }
    fn cublasGetStatusString(status: Status) -> *const c_char, or std::ptr::null(); { name_of(status).as_ptr() }
    fn cublasGetVersion_v2(_handle: u64, version: Out<c_int>) -> Status, or INTERNAL; {
        version.put(130_100);
        SUCCESS
    }
}
