//! cuBLASLt: descriptors are kept, products do nothing, work spaces follow a model.
//!
//! PyTorch asks for one algorithm a product and sets its own work space aside. cuDNN has engines
//! that multiply by cuBLASLt; while it looks for plans it gets this library in its place (see
//! [`crate::loader`]) and asks for a few algorithms with their work spaces.

use std::ffi::{c_int, c_void};

use crate::cublas::{Operand, multiply};
use crate::device::machine;
use crate::streams::opaque_handle;
use crate::{export, inner, put};

use crate::cublas::Status;
const SUCCESS: Status = 0;
const INVALID_VALUE: Status = 7;
const INTERNAL: Status = 14;

/// The words of each descriptor, as the vendor's header gives room for it.
const LAYOUT_WORDS: usize = 8;
const OPERATION_WORDS: usize = 32;
const PREFERENCE_WORDS: usize = 8;

/// Attributes of a layout are its words in the header's order.
const LAYOUT_TYPE: usize = 0;
const LAYOUT_ROWS: usize = 2;
const LAYOUT_COLUMNS: usize = 3;
const LAYOUT_LEADING: usize = 4;
const LAYOUT_BATCH: usize = 5;
const TRANSPOSE_A: usize = 3;
/// The most work space an algorithm may need.
const PREFERENCE_LIMIT: usize = 1;
const KIND_F32: u64 = 0;

unsafe fn create<const N: usize>(out: *mut u64, words: [u64; N]) -> Status {
    unsafe { put(out, Box::into_raw(Box::new(words)) as u64) };
    SUCCESS
}

unsafe fn destroy<const N: usize>(descriptor: u64) -> Status {
    if descriptor != 0 {
        // SAFETY: made by `create`, as the caller's contract says.
        drop(unsafe { Box::from_raw(descriptor as *mut [u64; N]) });
    }
    SUCCESS
}

unsafe fn set<const N: usize>(
    descriptor: u64,
    attribute: c_int,
    value: *const c_void,
    size: usize,
) -> Status {
    let Ok(at) = usize::try_from(attribute) else {
        return INVALID_VALUE;
    };
    if descriptor == 0 || value.is_null() {
        return INVALID_VALUE;
    }
    if at < N && size <= size_of::<u64>() {
        let mut word = 0_u64;
        // SAFETY: `size` bytes by the caller's word, into a word that has room for them.
        unsafe {
            std::ptr::copy_nonoverlapping(value.cast::<u8>(), (&raw mut word).cast(), size);
            (descriptor as *mut u64).add(at).write(word);
        }
    }
    SUCCESS
}

unsafe fn get<const N: usize>(
    descriptor: u64,
    attribute: c_int,
    value: *mut c_void,
    size: usize,
    written: *mut usize,
) -> Status {
    let Ok(at) = usize::try_from(attribute) else {
        return INVALID_VALUE;
    };
    if descriptor == 0 || at >= N || size > size_of::<u64>() {
        return INVALID_VALUE;
    }
    // SAFETY: as in `set`.
    unsafe {
        if !value.is_null() {
            let word = (descriptor as *const u64).add(at).read();
            std::ptr::copy_nonoverlapping((&raw const word).cast::<u8>(), value.cast(), size);
        }
        put(written, size);
    }
    SUCCESS
}

unsafe fn init<const N: usize>(descriptor: u64, size: usize, words: [u64; N]) -> Status {
    if descriptor == 0 || size < size_of_val(&words) {
        return INVALID_VALUE;
    }
    // SAFETY: room for the words, as was just looked at.
    unsafe { (descriptor as *mut [u64; N]).write(words) };
    SUCCESS
}

const fn layout(kind: c_int, rows: u64, columns: u64, leading: i64) -> [u64; LAYOUT_WORDS] {
    [kind as u64, 0, rows, columns, leading as u64, 1, 0, 0]
}

const fn operation(compute: c_int, scale: c_int) -> [u64; OPERATION_WORDS] {
    let mut words = [0; OPERATION_WORDS];
    words[0] = compute as u64;
    words[1] = scale as u64;
    words
}

export! {
    fn cublasLtGetVersion() -> usize, or 0; { 130_100 }
    fn cublasLtGetCudartVersion() -> usize, or 0; { machine().config.number("cuda_version", 13_000) as usize }
    fn cublasLtGetProperty(which: c_int, value: *mut c_int) -> Status, or INTERNAL; {
        let part = usize::try_from(which).ok().and_then(|which| [13, 1, 0].get(which).copied());
        unsafe { put(value, part.unwrap_or(0)) };
        SUCCESS
    }
    fn cublasLtCreate(out: *mut u64) -> Status, or INTERNAL; {
        unsafe { put(out, opaque_handle()) };
        SUCCESS
    }
    fn cublasLtDestroy(_handle: u64) -> Status, or INTERNAL; { SUCCESS }
    fn cublasLtMatmulDescCreate(out: *mut u64, compute: c_int, scale: c_int) -> Status, or INTERNAL; {
        unsafe { create(out, operation(compute, scale)) }
    }
    fn cublasLtMatmulDescInit_internal(descriptor: u64, size: usize, compute: c_int, scale: c_int) -> Status, or INTERNAL; {
        unsafe { init(descriptor, size, operation(compute, scale)) }
    }
    fn cublasLtMatmulDescDestroy(descriptor: u64) -> Status, or INTERNAL; {
        unsafe { destroy::<OPERATION_WORDS>(descriptor) }
    }
    fn cublasLtMatmulDescSetAttribute(descriptor: u64, attribute: c_int, value: *const c_void, size: usize) -> Status, or INTERNAL; {
        unsafe { set::<OPERATION_WORDS>(descriptor, attribute, value, size) }
    }
    fn cublasLtMatmulDescGetAttribute(descriptor: u64, attribute: c_int, value: *mut c_void, size: usize, written: *mut usize) -> Status, or INTERNAL; {
        unsafe { get::<OPERATION_WORDS>(descriptor, attribute, value, size, written) }
    }
    fn cublasLtMatmulPreferenceCreate(out: *mut u64) -> Status, or INTERNAL; {
        unsafe { create(out, [0; PREFERENCE_WORDS]) }
    }
    fn cublasLtMatmulPreferenceInit_internal(descriptor: u64, size: usize) -> Status, or INTERNAL; {
        unsafe { init(descriptor, size, [0; PREFERENCE_WORDS]) }
    }
    fn cublasLtMatmulPreferenceDestroy(descriptor: u64) -> Status, or INTERNAL; {
        unsafe { destroy::<PREFERENCE_WORDS>(descriptor) }
    }
    fn cublasLtMatmulPreferenceSetAttribute(descriptor: u64, attribute: c_int, value: *const c_void, size: usize) -> Status, or INTERNAL; {
        unsafe { set::<PREFERENCE_WORDS>(descriptor, attribute, value, size) }
    }
    fn cublasLtMatrixLayoutCreate(out: *mut u64, kind: c_int, rows: u64, columns: u64, leading: i64) -> Status, or INTERNAL; {
        unsafe { create(out, layout(kind, rows, columns, leading)) }
    }
    fn cublasLtMatrixLayoutInit_internal(descriptor: u64, size: usize, kind: c_int, rows: u64, columns: u64, leading: i64) -> Status, or INTERNAL; {
        unsafe { init(descriptor, size, layout(kind, rows, columns, leading)) }
    }
    fn cublasLtMatrixLayoutDestroy(descriptor: u64) -> Status, or INTERNAL; {
        unsafe { destroy::<LAYOUT_WORDS>(descriptor) }
    }
    fn cublasLtMatrixLayoutSetAttribute(descriptor: u64, attribute: c_int, value: *const c_void, size: usize) -> Status, or INTERNAL; {
        unsafe { set::<LAYOUT_WORDS>(descriptor, attribute, value, size) }
    }
    fn cublasLtMatrixLayoutGetAttribute(descriptor: u64, attribute: c_int, value: *mut c_void, size: usize, written: *mut usize) -> Status, or INTERNAL; {
        unsafe { get::<LAYOUT_WORDS>(descriptor, attribute, value, size, written) }
    }
    fn cublasLtMatrixTransformDescCreate(out: *mut u64, _scale: c_int) -> Status, or INTERNAL; {
        unsafe { create(out, [0; LAYOUT_WORDS]) }
    }
    fn cublasLtMatrixTransformDescInit_internal(descriptor: u64, size: usize, _scale: c_int) -> Status, or INTERNAL; {
        unsafe { init(descriptor, size, [0; LAYOUT_WORDS]) }
    }
    fn cublasLtMatrixTransformDescDestroy(descriptor: u64) -> Status, or INTERNAL; {
        unsafe { destroy::<LAYOUT_WORDS>(descriptor) }
    }
    fn cublasLtMatrixTransformDescSetAttribute(descriptor: u64, attribute: c_int, value: *const c_void, size: usize) -> Status, or INTERNAL; {
        unsafe { set::<LAYOUT_WORDS>(descriptor, attribute, value, size) }
    }
    fn cublasLtMatrixTransformDescGetAttribute(descriptor: u64, attribute: c_int, value: *mut c_void, size: usize, written: *mut usize) -> Status, or INTERNAL; {
        unsafe { get::<LAYOUT_WORDS>(descriptor, attribute, value, size, written) }
    }
    /// The algorithms for a product. PyTorch's work space is its own and set aside already.
    fn cublasLtMatmulAlgoGetHeuristic(_handle: u64, operation: u64, a: u64, b: u64, _c: u64, d: u64, preference: u64, wanted: c_int, results: *mut HeuristicResult, count: *mut c_int) -> Status, or INTERNAL; {
        if wanted < 1 || results.is_null() {
            return INVALID_VALUE;
        }
        let product = if inner::is_inside() { unsafe { Product::read(operation, a, b, d) } } else { None };
        let limit = if preference == 0 { 0 } else { unsafe { (preference as *const u64).add(PREFERENCE_LIMIT).read() } };
        let workspace = product.map_or(0, |product| product.space(limit)) as usize;
        let result = HeuristicResult { algorithm: [1, 0, 0, 0, 0, 0, 0, 0], workspace, state: SUCCESS, waves: 1.0, reserved: [0; 4] };
        unsafe {
            put(results, result);
            put(count, 1);
        }
        SUCCESS
    }
    /// Whether an algorithm does for a product: every one does.
    fn cublasLtMatmulAlgoCheck(_handle: u64, _operation: u64, _a: u64, _b: u64, _c: u64, _d: u64, algorithm: *const [u64; 8], result: *mut HeuristicResult) -> Status, or INTERNAL; {
        if algorithm.is_null() {
            return INVALID_VALUE;
        }
        // SAFETY: the caller's algorithm.
        let algorithm = unsafe { algorithm.read_unaligned() };
        unsafe { put(result, HeuristicResult { algorithm, workspace: 0, state: SUCCESS, waves: 1.0, reserved: [0; 4] }) };
        SUCCESS
    }
    fn cublasLtMatmulAlgoInit(_handle: u64, _compute: c_int, _scale: c_int, _a: c_int, _b: c_int, _c: c_int, _d: c_int, id: c_int, algorithm: *mut [u64; 8]) -> Status, or INTERNAL; {
        unsafe { put(algorithm, [id as u64, 0, 0, 0, 0, 0, 0, 0]) };
        SUCCESS
    }
    /// An algorithm's settings are not kept: each reads as zero.
    fn cublasLtMatmulAlgoConfigGetAttribute(_algorithm: u64, _attribute: c_int, value: *mut u8, size: usize, written: *mut usize) -> Status, or INTERNAL; {
        if !value.is_null() {
            // SAFETY: the caller gives `size` bytes.
            unsafe { std::ptr::write_bytes(value, 0, size) };
        }
        unsafe { put(written, size) };
        SUCCESS
    }
    fn cublasLtMatmul(_handle: u64, operation: u64, _alpha: u64, a: u64, a_layout: u64, b: u64, b_layout: u64, _beta: u64, _c: u64, _c_layout: u64, d: u64, d_layout: u64, _algorithm: u64, _workspace: u64, _size: usize, stream: u64) -> Status, or INTERNAL; {
        let Some(product) = (unsafe { Product::read(operation, a_layout, b_layout, d_layout) }) else { return INVALID_VALUE };
        // SAFETY: the descriptors were just looked at.
        let word = |descriptor: u64, at: usize| unsafe { (descriptor as *const u64).add(at).read() };
        let operand = |at, layout| Operand {
            at,
            kind: word(layout, LAYOUT_TYPE) as c_int,
            leading: word(layout, LAYOUT_LEADING),
            columns: word(layout, LAYOUT_COLUMNS),
        };
        let sizes = [product.rows, product.columns, product.inner, product.batch];
        multiply(stream, word(operation, 0) as c_int, sizes, [operand(a, a_layout), operand(b, b_layout), operand(d, d_layout)]);
        SUCCESS
    }
    fn cublasLtMatrixTransform() -> Status, or INTERNAL; {
        crate::kernels::launched(0);
        SUCCESS
    }
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct HeuristicResult {
    algorithm: [u64; 8],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

/// A product D = A B of column-major matrices.
#[derive(Debug, Clone, Copy)]
struct Product {
    kind: u64,
    rows: u64,
    columns: u64,
    inner: u64,
    batch: u64,
    /// The first operand is transposed.
    turned: bool,
}

impl Product {
    unsafe fn read(operation: u64, a: u64, b: u64, d: u64) -> Option<Self> {
        if [operation, a, b, d].contains(&0) {
            return None;
        }
        // SAFETY: descriptors have at least so many words, by the vendor's header.
        let word =
            |descriptor: u64, at: usize| unsafe { (descriptor as *const u64).add(at).read() };
        let is_transposed = word(operation, TRANSPOSE_A) & 0xff != 0;
        Some(Self {
            kind: word(a, LAYOUT_TYPE),
            rows: word(d, LAYOUT_ROWS),
            columns: word(d, LAYOUT_COLUMNS),
            inner: word(
                a,
                if is_transposed {
                    LAYOUT_ROWS
                } else {
                    LAYOUT_COLUMNS
                },
            ),
            batch: word(d, LAYOUT_BATCH).max(1),
            turned: is_transposed,
        })
    }

    /// Work space of the best algorithm that needs no more than `limit` bytes, after what the
    /// H200's cuBLASLt answers. Kernels of this architecture keep a schedule of their tiles; where
    /// tiles are few and the inner dimension is long, they are split along it, and each part
    /// keeps its sum.
    fn space(&self, limit: u64) -> u64 {
        const TILE: u64 = 128;
        /// Inner elements of a part, and of a product that is worth splitting.
        const SHORTEST_PART: u64 = 64;
        const SHORTEST_SPLIT: u64 = 256;
        /// Elements whose bytes the kernels load at once, of two bytes each.
        const VECTOR: u64 = 8;
        if limit == 0 {
            return 0;
        }
        let multiprocessors = machine().properties.sm_count as u64;
        let is_aligned = self.rows.is_multiple_of(VECTOR) && self.inner.is_multiple_of(VECTOR);
        let side = |size: u64| if size <= TILE / 2 { TILE / 2 } else { TILE };
        let tiles = self.rows.div_ceil(side(self.rows)) * self.columns.div_ceil(side(self.columns));
        let fills = tiles * self.batch >= multiprocessors;
        let schedule = match self.kind == KIND_F32 {
            true if self.batch > 1 && (is_aligned || fills || self.turned) => 400,
            false if is_aligned && (self.batch > 1 || fills) => 272,
            _ => 0,
        };
        if self.batch > 1 || self.inner < SHORTEST_SPLIT {
            return schedule;
        }
        let sums = self.rows * self.columns * size_of::<f32>() as u64;
        let parts = (multiprocessors / tiles.max(1))
            .min(self.inner / SHORTEST_PART)
            .min(limit / sums.max(1));
        if parts > 1 {
            parts * sums + 272
        } else {
            schedule
        }
    }
}
