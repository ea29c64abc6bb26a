//! cuBLASLt: descriptors are real, products do nothing, workspaces follow a model.
//!
//! PyTorch asks for one algorithm per product and allocates its own workspace. Some of cuDNN's engines
//! use cuBLASLt; while cuDNN searches for plans, it gets this library instead (see
//! [`crate::loader`]) and asks for a few algorithms with their workspaces.

use std::ffi::{c_int, c_void};

use crate::arguments::{In, Out};
use crate::cublas::{Operand, multiply};
use crate::device::machine;
use crate::streams::opaque_handle;
use crate::sync::Mutex;
use crate::{clock, export, inner};

use crate::cublas::Status;
const SUCCESS: Status = 0;
const INVALID_VALUE: Status = 7;
const INTERNAL: Status = 14;

/// The words of each descriptor, as the vendor's header gives room for them. C holds a `Box` of them,
/// or keeps them in memory of its own.
type Layout = [u64; 8];
type Operation = [u64; 32];
type Preference = [u64; 8];

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

/// The algorithms of a product. XLA tries each and allocates four times for it: the numbers of allocations that JAX
/// counted on an H200 (`bench/jax/results/h200_jax.jsonl`) are those of eight, for each of the jobs' products.
const ALGORITHMS: c_int = 8;

/// The product that several algorithms were last asked for.
static ASKED: Mutex<Option<clock::Product>> = Mutex::new(None);

/// The product that several algorithms were last asked for: the one that is tried.
pub fn asked() -> Option<clock::Product> {
    *ASKED.lock()
}

/// # Safety
/// `value` must be null or valid for reads of `size` bytes.
unsafe fn set<const N: usize>(
    descriptor: Option<&mut [u64; N]>,
    attribute: c_int,
    value: *const c_void,
    size: usize,
) -> Status {
    let (Some(descriptor), Ok(at)) = (descriptor, usize::try_from(attribute)) else {
        return INVALID_VALUE;
    };
    if value.is_null() {
        return INVALID_VALUE;
    }
    if at < N && size <= size_of::<u64>() {
        let mut word = 0_u64;
        // SAFETY: the caller's `size` bytes, into a word that has room for them.
        unsafe { std::ptr::copy_nonoverlapping(value.cast::<u8>(), (&raw mut word).cast(), size) };
        descriptor[at] = word;
    }
    SUCCESS
}

/// # Safety
/// `value` must be null or valid for writes of `size` bytes.
unsafe fn get<const N: usize>(
    descriptor: Option<&[u64; N]>,
    attribute: c_int,
    value: *mut c_void,
    size: usize,
    written: Out<usize>,
) -> Status {
    let (Some(descriptor), Ok(at)) = (descriptor, usize::try_from(attribute)) else {
        return INVALID_VALUE;
    };
    if at >= N || size > size_of::<u64>() {
        return INVALID_VALUE;
    }
    if !value.is_null() {
        let word = &raw const descriptor[at];
        // SAFETY: not more than a word, into the caller's `size` bytes.
        unsafe { std::ptr::copy_nonoverlapping(word.cast::<u8>(), value.cast(), size) };
    }
    written.put(size);
    SUCCESS
}

fn init<const N: usize>(descriptor: Out<[u64; N]>, size: usize, words: [u64; N]) -> Status {
    if descriptor.is_null() || size < size_of_val(&words) {
        return INVALID_VALUE;
    }
    descriptor.put(words);
    SUCCESS
}

const fn layout(kind: c_int, rows: u64, columns: u64, leading: i64) -> Layout {
    [kind as u64, 0, rows, columns, leading as u64, 1, 0, 0]
}

const fn operation(compute: c_int, scale: c_int) -> Operation {
    let mut words = [0; 32];
    words[0] = compute as u64;
    words[1] = scale as u64;
    words
}

export! {
    fn cublasLtGetVersion() -> usize, or 0; { 130_100 }
    fn cublasLtGetCudartVersion() -> usize, or 0; { crate::device::look().config.number("cuda_version", 13_000) as usize }
    fn cublasLtGetProperty(which: c_int, value: Out<c_int>) -> Status, or INTERNAL; {
        let part = usize::try_from(which).ok().and_then(|which| [13, 1, 0].get(which).copied());
        value.put(part.unwrap_or(0));
        SUCCESS
    }
    fn cublasLtCreate(out: Out<u64>) -> Status, or INTERNAL; {
        out.put(opaque_handle());
        SUCCESS
    }
    fn cublasLtDestroy(_handle: u64) -> Status, or INTERNAL; { SUCCESS }
    fn cublasLtMatmulDescCreate(out: Out<Box<Operation>>, compute: c_int, scale: c_int) -> Status, or INTERNAL; {
        out.put(Box::new(operation(compute, scale)));
        SUCCESS
    }
    fn cublasLtMatmulDescInit_internal(descriptor: Out<Operation>, size: usize, compute: c_int, scale: c_int) -> Status, or INTERNAL; {
        init(descriptor, size, operation(compute, scale))
    }
    fn cublasLtMatmulDescDestroy(_descriptor: Option<Box<Operation>>) -> Status, or INTERNAL; { SUCCESS }
    unsafe fn cublasLtMatmulDescSetAttribute(descriptor: Option<&mut Operation>, attribute: c_int, value: *const c_void, size: usize) -> Status, or INTERNAL; {
        // SAFETY: `value` is of `size` bytes by the vendor's header.
        unsafe { set(descriptor, attribute, value, size) }
    }
    unsafe fn cublasLtMatmulDescGetAttribute(descriptor: Option<&Operation>, attribute: c_int, value: *mut c_void, size: usize, written: Out<usize>) -> Status, or INTERNAL; {
        // SAFETY: `value` has room for `size` bytes by the vendor's header.
        unsafe { get(descriptor, attribute, value, size, written) }
    }
    fn cublasLtMatmulPreferenceCreate(out: Out<Box<Preference>>) -> Status, or INTERNAL; {
        out.put(Box::new([0; 8]));
        SUCCESS
    }
    fn cublasLtMatmulPreferenceInit_internal(descriptor: Out<Preference>, size: usize) -> Status, or INTERNAL; {
        init(descriptor, size, [0; 8])
    }
    fn cublasLtMatmulPreferenceDestroy(_descriptor: Option<Box<Preference>>) -> Status, or INTERNAL; { SUCCESS }
    unsafe fn cublasLtMatmulPreferenceSetAttribute(descriptor: Option<&mut Preference>, attribute: c_int, value: *const c_void, size: usize) -> Status, or INTERNAL; {
        // SAFETY: `value` is of `size` bytes by the vendor's header.
        unsafe { set(descriptor, attribute, value, size) }
    }
    fn cublasLtMatrixLayoutCreate(out: Out<Box<Layout>>, kind: c_int, rows: u64, columns: u64, leading: i64) -> Status, or INTERNAL; {
        out.put(Box::new(layout(kind, rows, columns, leading)));
        SUCCESS
    }
    fn cublasLtMatrixLayoutInit_internal(descriptor: Out<Layout>, size: usize, kind: c_int, rows: u64, columns: u64, leading: i64) -> Status, or INTERNAL; {
        init(descriptor, size, layout(kind, rows, columns, leading))
    }
    fn cublasLtMatrixLayoutDestroy(_descriptor: Option<Box<Layout>>) -> Status, or INTERNAL; { SUCCESS }
    unsafe fn cublasLtMatrixLayoutSetAttribute(descriptor: Option<&mut Layout>, attribute: c_int, value: *const c_void, size: usize) -> Status, or INTERNAL; {
        // SAFETY: `value` is of `size` bytes by the vendor's header.
        unsafe { set(descriptor, attribute, value, size) }
    }
    unsafe fn cublasLtMatrixLayoutGetAttribute(descriptor: Option<&Layout>, attribute: c_int, value: *mut c_void, size: usize, written: Out<usize>) -> Status, or INTERNAL; {
        // SAFETY: `value` has room for `size` bytes by the vendor's header.
        unsafe { get(descriptor, attribute, value, size, written) }
    }
    fn cublasLtMatrixTransformDescCreate(out: Out<Box<Layout>>, _scale: c_int) -> Status, or INTERNAL; {
        out.put(Box::new([0; 8]));
        SUCCESS
    }
    fn cublasLtMatrixTransformDescInit_internal(descriptor: Out<Layout>, size: usize, _scale: c_int) -> Status, or INTERNAL; {
        init(descriptor, size, [0; 8])
    }
    fn cublasLtMatrixTransformDescDestroy(_descriptor: Option<Box<Layout>>) -> Status, or INTERNAL; { SUCCESS }
    unsafe fn cublasLtMatrixTransformDescSetAttribute(descriptor: Option<&mut Layout>, attribute: c_int, value: *const c_void, size: usize) -> Status, or INTERNAL; {
        // SAFETY: `value` is of `size` bytes by the vendor's header.
        unsafe { set(descriptor, attribute, value, size) }
    }
    unsafe fn cublasLtMatrixTransformDescGetAttribute(descriptor: Option<&Layout>, attribute: c_int, value: *mut c_void, size: usize, written: Out<usize>) -> Status, or INTERNAL; {
        // SAFETY: `value` has room for `size` bytes by the vendor's header.
        unsafe { get(descriptor, attribute, value, size, written) }
    }
    /// The algorithms for a product. PyTorch's work space is its own and set aside already.
    unsafe fn cublasLtMatmulAlgoGetHeuristic(_handle: u64, operation: Option<&Operation>, a: Option<&Layout>, b: Option<&Layout>, _c: u64, d: Option<&Layout>, preference: Option<&Preference>, wanted: c_int, results: Out<HeuristicResult>, count: Out<c_int>) -> Status, or INTERNAL; {
        if wanted < 1 || results.is_null() {
            return INVALID_VALUE;
        }
        let product = match (operation, a, b, d) {
            (Some(operation), Some(a), Some(_), Some(d)) if inner::is_inside() => Some(Product::new(operation, a, d)),
            _ => None,
        };
        let limit = preference.map_or(0, |preference| preference[PREFERENCE_LIMIT]);
        let workspace = product.map_or(0, |product| product.space(limit)) as usize;
        let found = if inner::is_inside() { 1 } else { wanted.min(ALGORITHMS) };
        if let (true, Some(operation), Some(a), Some(d)) = (found > 1, operation, a, d) {
            *ASKED.lock() = Some(Product::new(operation, a, d).work(operation));
        }
        for index in 0..found {
            let algorithm = [index as u64 + 1, 0, 0, 0, 0, 0, 0, 0];
            let result = HeuristicResult { algorithm, workspace, state: SUCCESS, waves: 1.0, reserved: [0; 4] };
            // SAFETY: by the vendor's header there is room for as many results as are wanted.
            unsafe { results.as_ptr().add(index as usize).write_unaligned(result) };
        }
        count.put(found);
        SUCCESS
    }
    /// Whether an algorithm supports a product: every one does.
    fn cublasLtMatmulAlgoCheck(_handle: u64, _operation: u64, _a: u64, _b: u64, _c: u64, _d: u64, algorithm: In<[u64; 8]>, result: Out<HeuristicResult>) -> Status, or INTERNAL; {
        let Some(algorithm) = algorithm.get() else { return INVALID_VALUE };
        result.put(HeuristicResult { algorithm, workspace: 0, state: SUCCESS, waves: 1.0, reserved: [0; 4] });
        SUCCESS
    }
    fn cublasLtMatmulAlgoInit(_handle: u64, _compute: c_int, _scale: c_int, _a: c_int, _b: c_int, _c: c_int, _d: c_int, id: c_int, algorithm: Out<[u64; 8]>) -> Status, or INTERNAL; {
        algorithm.put([id as u64, 0, 0, 0, 0, 0, 0, 0]);
        SUCCESS
    }
    /// An algorithm's settings are not kept: each reads as zero.
    unsafe fn cublasLtMatmulAlgoConfigGetAttribute(_algorithm: u64, _attribute: c_int, value: *mut u8, size: usize, written: Out<usize>) -> Status, or INTERNAL; {
        if !value.is_null() {
            // SAFETY: the caller gives `size` bytes.
            unsafe { std::ptr::write_bytes(value, 0, size) };
        }
        written.put(size);
        SUCCESS
    }
    fn cublasLtMatmul(_handle: u64, operation: Option<&Operation>, _alpha: u64, a: u64, a_layout: Option<&Layout>, b: u64, b_layout: Option<&Layout>, _beta: u64, _c: u64, _c_layout: u64, d: u64, d_layout: Option<&Layout>, _algorithm: u64, _workspace: u64, _size: usize, stream: u64) -> Status, or INTERNAL; {
        let (Some(operation), Some(a_layout), Some(b_layout), Some(d_layout)) = (operation, a_layout, b_layout, d_layout) else { return INVALID_VALUE };
        let product = Product::new(operation, a_layout, d_layout);
        let operand = |at, layout: &Layout| Operand {
            at,
            kind: layout[LAYOUT_TYPE] as c_int,
            leading: layout[LAYOUT_LEADING],
            columns: layout[LAYOUT_COLUMNS],
        };
        let sizes = [product.rows, product.columns, product.inner, product.batch];
        multiply(stream, operation[0] as c_int, sizes, [operand(a, a_layout), operand(b, b_layout), operand(d, d_layout)]);
        SUCCESS
    }
    fn cublasLtMatrixTransform() -> Status, or INTERNAL; {
        crate::kernels::launched(0);
        SUCCESS
    }
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
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
    fn new(operation: &Operation, a: &Layout, d: &Layout) -> Self {
        let is_transposed = operation[TRANSPOSE_A] & 0xff != 0;
        Self {
            kind: a[LAYOUT_TYPE],
            rows: d[LAYOUT_ROWS],
            columns: d[LAYOUT_COLUMNS],
            inner: a[if is_transposed {
                LAYOUT_ROWS
            } else {
                LAYOUT_COLUMNS
            }],
            batch: d[LAYOUT_BATCH].max(1),
            turned: is_transposed,
        }
    }

    fn work(&self, operation: &Operation) -> clock::Product {
        let Self {
            rows: m,
            columns: n,
            inner: k,
            batch,
            ..
        } = *self;
        let kind = clock::Kind::new(self.kind as c_int, operation[0] as c_int);
        clock::Product {
            m,
            n,
            k,
            batch,
            kind,
            alignment: clock::ALIGNED,
        }
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
