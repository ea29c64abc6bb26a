//! cuDNN: plans and sizes come from the installed library, which never computes anything.
//!
//! Its backend API needs no handle: descriptors accept a device-property descriptor in place of
//! one. The older API, which wants a handle, is modelled.
//!
//! If the installed library can create handles on the virtual driver (`cudnn_handles=1`), it answers
//! every call that launches no work; cuDNN 9 cannot.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::arguments::{Out, put_text};
use crate::context::Charge;
use crate::device::{self, machine};
use crate::inner;
use crate::recurrent::{Layer, Pass};
use crate::streams::opaque_handle;
use crate::sync::Mutex;
use crate::{cudnn_costs, cudnn_plans, export, ledger};

pub type Status = c_int;
const SUCCESS: Status = 0;
const NOT_INITIALIZED: Status = 1001;
const BAD_PARAM: Status = 2000;
const INTERNAL: Status = 4000;

// ---- the backend API, passed through ----

/// Attributes and types of `cudnn_graph.h` that are rewritten on the way.
const TYPE_HANDLE: c_int = 0;
const TYPE_BACKEND_DESCRIPTOR: c_int = 15;
const TYPE_CHAR: c_int = 24;
const ENGINE_DESCRIPTOR: c_int = 2;
const HEURISTICS_DESCRIPTOR: c_int = 4;
const PLAN_DESCRIPTOR: c_int = 5;
const DEVICE_DESCRIPTOR: c_int = 38;
const HEURISTICS_DEVICE: c_int = 204;
const PLAN_DEVICE: c_int = 407;
const ENGINE_DEVICE: c_int = 1307;
const DEVICE_JSON: c_int = 2702;

/// The stream of each handle that was given one.
static STREAMS: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

fn stream_of(handle: u64) -> u64 {
    STREAMS.lock().get(&handle).copied().unwrap_or(0)
}

type CreateFn = unsafe extern "C" fn(c_int, *mut u64) -> Status;
type DestroyFn = unsafe extern "C" fn(u64) -> Status;
type SetFn = unsafe extern "C" fn(u64, c_int, c_int, i64, *const c_void) -> Status;
type GetFn = unsafe extern "C" fn(u64, c_int, c_int, i64, *mut i64, *mut c_void) -> Status;
type VersionFn = unsafe extern "C" fn() -> usize;

/// The functions of the installed library.
#[derive(Debug)]
struct Real {
    create: CreateFn,
    destroy: DestroyFn,
    finalize: DestroyFn,
    set: SetFn,
    get: GetFn,
    version: VersionFn,
    /// The finalized device-property descriptor of the virtual GPU.
    device: u64,
}

/// What each open descriptor is, for the kinds that need the device.
static KINDS: std::sync::LazyLock<Mutex<HashMap<u64, c_int>>> =
    std::sync::LazyLock::new(|| Mutex::new(HashMap::new()));

/// The library that PyTorch has loaded, or the one the loader finds.
fn library() -> Option<*mut c_void> {
    static OPENED: OnceLock<usize> = OnceLock::new();
    let opened = *OPENED.get_or_init(|| {
        let flags = [libc::RTLD_LAZY | libc::RTLD_NOLOAD, libc::RTLD_LAZY];
        let handles = flags.into_iter().map(|flags| {
            // SAFETY: the name is a C string; what this library does when it is loaded is the vendor's.
            (unsafe { libc::dlopen(c"libcudnn.so.9".as_ptr(), flags) }) as usize
        });
        handles.into_iter().find(|&handle| handle != 0).unwrap_or(0)
    });
    (opened != 0).then_some(opened as *mut c_void)
}

/// The installed library's definition of a function, never the one of this library.
fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: `library` is open and never closed.
    let found = unsafe { crate::loader::symbol_of(library()?, name) };
    (!found.is_null()).then_some(found)
}

/// A handle created to find out whether the library can, and its device.
static SPARE: Mutex<Option<(u32, u64)>> = Mutex::new(None);

/// Makes a handle of the installed library.
fn create_handle() -> Option<u64> {
    type Create = unsafe extern "C" fn(*mut u64) -> Status;
    let create = find(c"cudnnCreate")?;
    let mut handle = 0;
    // SAFETY: `cudnnCreate` has this signature in every cuDNN.
    let status = inner::call(|| unsafe {
        std::mem::transmute::<*mut c_void, Create>(create)(&raw mut handle)
    });
    (status == SUCCESS && handle != 0).then_some(handle)
}

/// Whether the installed library makes handles on the virtual driver. cuDNN 9 does not: the runtime
/// inside it accepts the vendor's driver only. `cudnn_handles=1` asks one that might.
fn has_handles() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let wanted = machine().config.number("cudnn_handles", 0) != 0;
        let handle = if wanted { create_handle() } else { None };
        *SPARE.lock() = handle.map(|handle| (device::current(), handle));
        handle.is_some()
    })
}

/// The installed library's definition, if this call is its to answer: it has handles, or it is
/// the library itself that calls.
fn installed(cache: &OnceLock<usize>, name: &CStr) -> Option<*mut c_void> {
    if !inner::is_inside() && !has_handles() {
        return None;
    }
    let found = *cache.get_or_init(|| find(name).map_or(0, |found| found as usize));
    (found != 0).then_some(found as *mut c_void)
}

/// Functions that the installed library answers where it has handles. The body is the model for
/// where it has none.
macro_rules! forwarded {
    ($(fn $name:ident($($arg:ident : $ty:ty),* $(,)?) $model:block)*) => { export! {$(
        unsafe fn $name($($arg: $ty),*) -> Status, or INTERNAL; {
            type Function = unsafe extern "C" fn($($ty),*) -> Status;
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
            static FOUND: OnceLock<usize> = OnceLock::new();
            if let Some(found) = installed(&FOUND, NAME) {
                // SAFETY: the vendor's signature, and the caller's arguments passed on.
                return inner::call(|| unsafe { std::mem::transmute::<*mut c_void, Function>(found)($($arg),*) });
            }
            $model
        }
    )*} };
}

fn real() -> Option<&'static Real> {
    static REAL: OnceLock<Option<Real>> = OnceLock::new();
    REAL.get_or_init(load).as_ref()
}

fn load() -> Option<Real> {
    // SAFETY: these functions have these signatures in every cuDNN 9.
    let mut real = unsafe {
        Real {
            create: std::mem::transmute::<*mut c_void, CreateFn>(find(
                c"cudnnBackendCreateDescriptor",
            )?),
            destroy: std::mem::transmute::<*mut c_void, DestroyFn>(find(
                c"cudnnBackendDestroyDescriptor",
            )?),
            finalize: std::mem::transmute::<*mut c_void, DestroyFn>(find(c"cudnnBackendFinalize")?),
            set: std::mem::transmute::<*mut c_void, SetFn>(find(c"cudnnBackendSetAttribute")?),
            get: std::mem::transmute::<*mut c_void, GetFn>(find(c"cudnnBackendGetAttribute")?),
            version: std::mem::transmute::<*mut c_void, VersionFn>(find(c"cudnnGetVersion")?),
            device: 0,
        }
    };
    let json = machine().config.text("cudnn_json", "").to_owned();
    if json.is_empty() {
        return Some(real);
    }
    // SAFETY: arguments as the vendor's header wants them; `json` outlives the calls.
    unsafe {
        let mut device = 0;
        let made = (real.create)(DEVICE_DESCRIPTOR, &raw mut device) == SUCCESS
            && (real.set)(
                device,
                DEVICE_JSON,
                TYPE_CHAR,
                json.len() as i64,
                json.as_ptr().cast(),
            ) == SUCCESS
            && (real.finalize)(device) == SUCCESS;
        if made {
            let version = (real.version)();
            if !complete_device(device, &json) {
                ledger::assume("cuDNN", NOT_COMPLETED);
            } else if !COMPARED.contains(&version) {
                ledger::assume("cuDNN", OTHER_VERSION);
            }
            real.device = device;
        } else {
            ledger::assume("cuDNN", NO_DEVICE);
        }
    }
    Some(real)
}

/// The integer of `key` in a flat JSON object.
fn json_number(json: &str, key: &str) -> Option<i32> {
    let (_, rest) = json.split_once(&format!("\"{key}\":"))?;
    let digits = rest.trim_start();
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// The version of cuDNN whose work spaces were compared with those of a GPU, and its patches.
const COMPARED: std::ops::Range<usize> = 91_900..92_000;

/// The assumption about workspaces, depending on the installed version.
const OTHER_VERSION: &str = "work spaces of convolutions were compared with those of a GPU for \
     cuDNN 9.19; this is another version, and they may differ";
const NO_DEVICE: &str = "this version of cuDNN does not take the description of a GPU; work spaces \
     of convolutions are estimates";
const NOT_COMPLETED: &str = "this version of cuDNN keeps the description of a GPU in a place that \
     is not known; work spaces of convolutions may differ";

/// Where the description of a device keeps what its JSON leaves out, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Missing {
    /// Groups of multiprocessors.
    groups: usize,
    /// How many clusters of each size run at once; older versions do not keep it.
    clusters: Option<usize>,
}

impl Missing {
    const GROUPS: usize = 24;
    const SIZES: usize = 16;

    /// Finds it between the versions of GPU and driver and the GPU's name, as cuDNN 9.10, 9.19 and
    /// 9.26 have it. `None` if anything else is there.
    fn find(words: &[i32], l2: i32, architecture: i32, driver: i32, name: &str) -> Option<Self> {
        let start = name.as_bytes().get(..4)?;
        let start = i32::from_ne_bytes(start.try_into().ok()?);
        let versions = words
            .windows(4)
            .position(|window| window == [l2, 0, architecture, driver])?
            + 4;
        // From 9.26 on, one more word comes before.
        let groups = versions
            + usize::from(words.get(versions) == Some(&0) && words.get(versions + 1) != Some(&0));
        let name_at = groups
            + words
                .get(groups..)?
                .iter()
                .position(|&word| word == start)?;
        let clusters = groups + Self::GROUPS;
        if words
            .get(groups + 1..clusters)?
            .iter()
            .any(|&word| word != 0)
        {
            return None;
        }
        match name_at.checked_sub(clusters)? {
            0 => Some(Self {
                groups,
                clusters: None,
            }),
            // 9.26 keeps as many words more, which stay as they are.
            room if room == Self::SIZES || room == 2 * Self::SIZES => {
                // It works them out as if there were one group.
                let one = *words.get(groups)?;
                let found = words.get(clusters..clusters + Self::SIZES)?;
                let is_known = found.iter().all(|&word| word == 0)
                    || found
                        .iter()
                        .zip(1..)
                        .all(|(&word, size)| word == one / size);
                is_known.then_some(Self {
                    groups,
                    clusters: Some(clusters),
                })
            }
            _ => None,
        }
    }
}

/// Fills in what a device's JSON leaves out: its groups of multiprocessors, and how many clusters
/// of each size run at once. Kernels with clusters are split differently by them, so without them
/// one work space in five is another than with a handle.
///
/// The library keeps both behind the other properties. False if they are not where they are known
/// to be: then nothing is done.
fn complete_device(device: u64, json: &str) -> bool {
    const BYTES: usize = 512;
    let gpu = &machine().properties;
    if gpu.major < 9 {
        return true; // it has no clusters
    }
    let numbers = ["l2CacheSize", "deviceVer", "driverVer"].map(|key| json_number(json, key));
    let [Some(l2), Some(architecture), Some(driver)] = numbers else {
        return false;
    };
    // Read by way of the system, which refuses what is not mapped.
    let mut bytes = [0_u8; BYTES];
    let read = std::fs::File::open("/proc/self/mem")
        .and_then(|memory| std::os::unix::fs::FileExt::read_at(&memory, &mut bytes, device));
    let words: Vec<i32> = bytes[..read.unwrap_or(0)]
        .chunks_exact(4)
        .map(|word| i32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
        .collect();
    let Some(missing) = Missing::find(&words, l2, architecture, driver, &gpu.name) else {
        return false;
    };
    // Pairs of multiprocessors that are in no group that takes larger clusters come last.
    let mut groups = gpu.groups.clone();
    let paired = gpu.sm_count - groups.iter().sum::<i32>();
    groups.extend((0..paired.max(0) / 2).map(|_| 2));
    groups.resize(Missing::GROUPS, 0);
    let sizes = 1..=Missing::SIZES as c_int;
    let clusters: Vec<i32> = sizes.map(crate::kernels::clusters_of_largest).collect();
    let write = |at: usize, values: &[i32]| {
        // SAFETY: words of a live object, which `find` has just seen.
        unsafe {
            std::ptr::copy_nonoverlapping(
                values.as_ptr(),
                (device as *mut i32).add(at),
                values.len(),
            );
        }
    };
    write(missing.groups, &groups);
    if let Some(at) = missing.clusters {
        write(at, &clusters);
    }
    true
}

/// Sets the device on a descriptor that has no handle.
fn attach_device(real: &Real, descriptor: u64, kind: c_int) {
    let attribute = match kind {
        HEURISTICS_DESCRIPTOR => HEURISTICS_DEVICE,
        PLAN_DESCRIPTOR => PLAN_DEVICE,
        ENGINE_DESCRIPTOR => ENGINE_DEVICE,
        _ => return,
    };
    if real.device != 0 {
        // SAFETY: a live descriptor and one element, as the vendor's header wants them.
        unsafe {
            (real.set)(
                descriptor,
                attribute,
                TYPE_BACKEND_DESCRIPTOR,
                1,
                (&raw const real.device).cast(),
            );
        }
    }
}

export! {
    unsafe fn cudnnBackendCreateDescriptor(kind: c_int, out: *mut u64) -> Status, or INTERNAL; {
        let Some(real) = real() else { return NOT_INITIALIZED };
        if !inner::is_inside() && real.device == 0 && !has_handles() && let Some(own) = cudnn_plans::create(kind) {
            cudnn_costs::created(own, kind);
            // SAFETY: the caller's place for a descriptor.
            unsafe { out.write(own) };
            return SUCCESS;
        }
        // SAFETY: the caller's arguments, passed on.
        let status = inner::call(|| unsafe { (real.create)(kind, out) });
        if status == SUCCESS && !inner::is_inside() {
            // SAFETY: the library succeeded, so it has written a descriptor here.
            let made = unsafe { out.read() };
            cudnn_costs::created(made, kind);
            if !has_handles() && matches!(kind, HEURISTICS_DESCRIPTOR | PLAN_DESCRIPTOR | ENGINE_DESCRIPTOR) {
                KINDS.lock().insert(made, kind);
            }
        }
        status
    }
    unsafe fn cudnnBackendDestroyDescriptor(descriptor: u64) -> Status, or INTERNAL; {
        let Some(real) = real() else { return NOT_INITIALIZED };
        KINDS.lock().remove(&descriptor);
        cudnn_costs::forgotten(descriptor);
        if cudnn_plans::destroy(descriptor) {
            return SUCCESS;
        }
        // SAFETY: the caller's descriptor, passed on.
        inner::call(|| unsafe { (real.destroy)(descriptor) })
    }
    unsafe fn cudnnBackendSetAttribute(descriptor: u64, attribute: c_int, kind: c_int, count: i64, values: *const c_void) -> Status, or INTERNAL; {
        let Some(real) = real() else { return NOT_INITIALIZED };
        // Do not pass on the fake handle; set the device instead.
        if kind == TYPE_HANDLE && !inner::is_inside() && !has_handles() {
            return SUCCESS;
        }
        if !inner::is_inside() {
            // SAFETY: `values` are `count` elements of `kind`, by the vendor's header.
            unsafe { cudnn_costs::described(descriptor, attribute, kind, count, values) };
            if cudnn_plans::is_own(descriptor) {
                // SAFETY: as above.
                unsafe { cudnn_plans::set(descriptor, kind, count, values) };
                return SUCCESS;
            }
        }
        // SAFETY: the caller's arguments, passed on.
        inner::call(|| unsafe { (real.set)(descriptor, attribute, kind, count, values) })
    }
    unsafe fn cudnnBackendFinalize(descriptor: u64) -> Status, or INTERNAL; {
        let Some(real) = real() else { return NOT_INITIALIZED };
        let kind = KINDS.lock().get(&descriptor).copied();
        if let Some(kind) = kind {
            attach_device(real, descriptor, kind);
        }
        let status = if cudnn_plans::is_own(descriptor) {
            SUCCESS
        } else {
            // SAFETY: the caller's descriptor, passed on.
            inner::call(|| unsafe { (real.finalize)(descriptor) })
        };
        if status == SUCCESS && !inner::is_inside() {
            cudnn_costs::finalized(&machine().rates, descriptor, machine().is_xla);
        }
        status
    }
    unsafe fn cudnnBackendGetAttribute(descriptor: u64, attribute: c_int, kind: c_int, room: i64, count: *mut i64, values: *mut c_void) -> Status, or INTERNAL; {
        let Some(real) = real() else { return NOT_INITIALIZED };
        if cudnn_plans::is_own(descriptor) {
            // SAFETY: the caller's arguments, as the vendor's header wants them.
            unsafe { cudnn_plans::get(descriptor, attribute, kind, room, count, values) };
            return SUCCESS;
        }
        // SAFETY: the caller's arguments, passed on.
        inner::call(|| unsafe { (real.get)(descriptor, attribute, kind, room, count, values) })
    }
    fn cudnnBackendExecute(handle: u64, plan: u64, _pack: u64) -> Status, or INTERNAL; {
        cudnn_costs::note(plan);
        crate::kernels::enqueued(stream_of(handle), cudnn_costs::time(plan));
        SUCCESS
    }
    /// Adds a plan's work to a graph, as one node.
    fn cudnnBackendPopulateCudaGraph(_handle: u64, plan: u64, _pack: u64, graph: u64) -> Status, or INTERNAL; {
        const KERNEL: c_int = 0;
        match crate::graphs::add(graph, KERNEL, cudnn_costs::time(plan), &[]) {
            Some(_) => SUCCESS,
            None => BAD_PARAM,
        }
    }
    /// A graph that was made by the above gets other addresses.
    fn cudnnBackendUpdateCudaGraph(_handle: u64, _plan: u64, _pack: u64, _graph: u64) -> Status, or INTERNAL; { SUCCESS }
    fn cudnnGetVersion() -> usize, or 0; {
        // SAFETY: `version` is the installed library's function of this signature; it takes nothing.
        real().map_or(0, |real| unsafe { (real.version)() })
    }
    fn cudnnGetCudartVersion() -> usize, or 0; { crate::device::look().config.number("cuda_version", 13_000) as usize }
    fn cudnnGetProperty(which: c_int, value: Out<c_int>) -> Status, or INTERNAL; {
        let version = cudnnGetVersion() as c_int;
        let parts = [version / 10_000, version / 100 % 100, version % 100];
        let part = usize::try_from(which).ok().and_then(|which| parts.get(which));
        value.put(part.copied().unwrap_or(0));
        SUCCESS
    }
    fn cudnnGetErrorString(status: Status) -> *const c_char, or std::ptr::null(); {
        match status {
            SUCCESS => c"CUDNN_STATUS_SUCCESS",
            NOT_INITIALIZED => c"CUDNN_STATUS_NOT_INITIALIZED",
            BAD_PARAM => c"CUDNN_STATUS_BAD_PARAM",
            3000..4000 => c"CUDNN_STATUS_NOT_SUPPORTED",
            _ => c"CUDNN_STATUS_INTERNAL_ERROR",
        }.as_ptr()
    }
    unsafe fn cudnnGetLastErrorString(text: *mut c_char, size: usize) -> (), or (); {
        // SAFETY: `text` has room for `size` bytes by the vendor's header.
        unsafe { put_text(text, size, "") };
    }
    fn cudnnCreate(out: Out<u64>) -> Status, or INTERNAL; {
        if device::active().is_none() {
            return NOT_INITIALIZED;
        }
        machine().costs.charge(device::current(), Charge::CudnnHandle);
        let handle = if has_handles() {
            let spare = SPARE.lock().take_if(|(device, _)| *device == device::current());
            match spare.map(|(_, handle)| handle).or_else(create_handle) {
                Some(handle) => handle,
                None => return NOT_INITIALIZED,
            }
        } else {
            opaque_handle()
        };
        out.put(handle);
        SUCCESS
    }
    fn cudnnSetStream(handle: u64, stream: u64) -> Status, or INTERNAL; {
        STREAMS.lock().insert(handle, stream);
        SUCCESS
    }
    fn cudnnGetStream(handle: u64, stream: Out<u64>) -> Status, or INTERNAL; {
        stream.put(stream_of(handle));
        SUCCESS
    }
}

// ---- descriptors of the older API ----

/// The most dimensions a cuDNN tensor has.
const MAX_DIMS: usize = 8;

/// A tensor or filter.
#[derive(Debug, Clone, Default)]
struct Tensor {
    kind: c_int,
    format: c_int,
    dims: Vec<c_int>,
    strides: Vec<c_int>,
}

impl Tensor {
    fn elements(&self) -> u64 {
        self.dims.iter().map(|&dim| dim.max(0) as u64).product()
    }
}

/// A recurrent network, as `cudnnSetRNNDescriptor_v8` was given it.
#[derive(Debug, Clone, Copy, Default)]
struct Rnn {
    algorithm: c_int,
    cell: c_int,
    bias: c_int,
    direction: c_int,
    kind: c_int,
    input: u64,
    hidden: u64,
    projection: u64,
    layers: u64,
    dropout: bool,
    /// Sequences come padded to the longest, and not packed.
    padded: bool,
}

/// A batch of sequences.
#[derive(Debug, Clone, Default)]
struct Sequences {
    /// Of the longest.
    steps: u64,
    /// Of each; a packed batch has different ones.
    lengths: Vec<u64>,
}

impl Sequences {
    fn batch(&self) -> u64 {
        self.lengths.len() as u64
    }

    /// Rows of all steps together.
    fn rows(&self) -> u64 {
        self.lengths.iter().sum()
    }
}

#[derive(Debug, Default)]
struct Descriptors {
    tensors: HashMap<u64, Tensor>,
    rnns: HashMap<u64, Rnn>,
    sequences: HashMap<u64, Sequences>,
    dropouts: HashMap<u64, f32>,
    longest_labels: HashMap<u64, u64>,
}

impl Descriptors {
    /// The three dimensions of a tensor that has as many.
    fn sizes(&self, tensor: u64) -> Option<[u64; 3]> {
        let dims = &self.tensors.get(&tensor)?.dims;
        let dims: [c_int; 3] = dims.as_slice().try_into().ok()?;
        Some(dims.map(|dim| dim.max(0) as u64))
    }
}

static DESCRIPTORS: std::sync::LazyLock<Mutex<Descriptors>> =
    std::sync::LazyLock::new(|| Mutex::new(Descriptors::default()));

fn data_bytes(kind: c_int) -> u64 {
    match kind {
        1 => 8,
        2 | 9 => 2,
        3 | 7 | 8 => 1,
        _ => 4,
    }
}

unsafe fn ints(from: *const c_int, count: c_int) -> Vec<c_int> {
    let count = usize::try_from(count).unwrap_or(0).min(MAX_DIMS);
    if from.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's array has `count` elements by the vendor's header.
    unsafe { std::slice::from_raw_parts(from, count) }.to_vec()
}

unsafe fn put_ints(to: *mut c_int, from: &[c_int], room: c_int) {
    if to.is_null() {
        return;
    }
    for (index, &value) in from
        .iter()
        .take(usize::try_from(room).unwrap_or(0))
        .enumerate()
    {
        // SAFETY: the caller gives room for `room` elements.
        unsafe { to.add(index).write(value) }
    }
}

forwarded! {
    fn cudnnSetTensorNdDescriptor(descriptor: u64, kind: c_int, count: c_int, dims: *const c_int, strides: *const c_int) {
        // SAFETY: both arrays have `count` elements by the vendor's header.
        let tensor = unsafe { Tensor { kind, format: 0, dims: ints(dims, count), strides: ints(strides, count) } };
        DESCRIPTORS.lock().tensors.insert(descriptor, tensor);
        SUCCESS
    }
    fn cudnnSetFilterNdDescriptor(descriptor: u64, kind: c_int, format: c_int, count: c_int, dims: *const c_int) {
        // SAFETY: the array has `count` elements by the vendor's header.
        let tensor = unsafe { Tensor { kind, format, dims: ints(dims, count), strides: Vec::new() } };
        DESCRIPTORS.lock().tensors.insert(descriptor, tensor);
        SUCCESS
    }
    fn cudnnGetTensorNdDescriptor(descriptor: u64, room: c_int, kind: Out<c_int>, count: Out<c_int>, dims: *mut c_int, strides: *mut c_int) {
        let descriptors = DESCRIPTORS.lock();
        let Some(tensor) = descriptors.tensors.get(&descriptor) else { return BAD_PARAM };
        kind.put(tensor.kind);
        count.put(tensor.dims.len() as c_int);
        // SAFETY: both arrays have room for `room` elements by the vendor's header.
        unsafe {
            put_ints(dims, &tensor.dims, room);
            put_ints(strides, &tensor.strides, room);
        }
        SUCCESS
    }
    fn cudnnGetFilterNdDescriptor(descriptor: u64, room: c_int, kind: Out<c_int>, format: Out<c_int>, count: Out<c_int>, dims: *mut c_int) {
        let descriptors = DESCRIPTORS.lock();
        let Some(tensor) = descriptors.tensors.get(&descriptor) else { return BAD_PARAM };
        kind.put(tensor.kind);
        format.put(tensor.format);
        count.put(tensor.dims.len() as c_int);
        // SAFETY: the array has room for `room` elements by the vendor's header.
        unsafe { put_ints(dims, &tensor.dims, room) };
        SUCCESS
    }
    fn cudnnDestroyTensorDescriptor(descriptor: u64) {
        DESCRIPTORS.lock().tensors.remove(&descriptor);
        SUCCESS
    }
    fn cudnnDestroyFilterDescriptor(descriptor: u64) {
        DESCRIPTORS.lock().tensors.remove(&descriptor);
        SUCCESS
    }
    fn cudnnSetDropoutDescriptor(descriptor: u64, handle: u64, probability: f32, states: *mut c_void, size: usize, seed: u64) {
        DESCRIPTORS.lock().dropouts.insert(descriptor, probability);
        SUCCESS
    }
    fn cudnnRestoreDropoutDescriptor(descriptor: u64, handle: u64, probability: f32, states: *mut c_void, size: usize, seed: u64) {
        DESCRIPTORS.lock().dropouts.insert(descriptor, probability);
        SUCCESS
    }
    fn cudnnDropoutGetStatesSize(handle: u64, size: Out<usize>) {
        // One generator state per resident thread.
        let gpu = &machine().properties;
        let threads = gpu.sm_count as u64 * gpu.max_threads_per_sm as u64;
        size.put((threads * DROPOUT_STATE_BYTES) as usize);
        SUCCESS
    }
}

/// Batch normalization of each channel on its own: one value for each. Per activation: one for each
/// but of the samples.
const PER_ACTIVATION: c_int = 0;

forwarded! {
    fn cudnnDeriveBNTensorDescriptor(derived: u64, from: u64, mode: c_int) {
        let mut descriptors = DESCRIPTORS.lock();
        let Some(tensor) = descriptors.tensors.get(&from) else { return BAD_PARAM };
        let dims: Vec<c_int> = tensor
            .dims
            .iter()
            .enumerate()
            .map(|(at, &dim)| if at == 1 || (at > 1 && mode == PER_ACTIVATION) { dim } else { 1 })
            .collect();
        let mut strides: Vec<c_int> = dims
            .iter()
            .rev()
            .scan(1, |step: &mut c_int, &dim| {
                let stride = *step;
                *step = step.saturating_mul(dim.max(1));
                Some(stride)
            })
            .collect();
        strides.reverse();
        // Statistics of 16-bit tensors are in fp32.
        let kind = if data_bytes(tensor.kind) < 4 { 0 } else { tensor.kind };
        let tensor = Tensor { kind, format: 0, dims, strides };
        descriptors.tensors.insert(derived, tensor);
        SUCCESS
    }
}

/// Bytes of generator state per thread that a dropout descriptor keeps.
const DROPOUT_STATE_BYTES: u64 = 24;

macro_rules! descriptors {
    ($($create:ident $destroy:ident)*) => { forwarded! {$(
        fn $create(out: Out<u64>) {
            out.put(opaque_handle());
            SUCCESS
        }
        fn $destroy(descriptor: u64) { SUCCESS }
    )*} };
}

descriptors! {
    cudnnCreateActivationDescriptor cudnnDestroyActivationDescriptor
    cudnnCreateCTCLossDescriptor cudnnDestroyCTCLossDescriptor
    cudnnCreateConvolutionDescriptor cudnnDestroyConvolutionDescriptor
    cudnnCreateDropoutDescriptor cudnnDestroyDropoutDescriptor
    cudnnCreateLRNDescriptor cudnnDestroyLRNDescriptor
    cudnnCreatePoolingDescriptor cudnnDestroyPoolingDescriptor
    cudnnCreateRNNDataDescriptor cudnnDestroyRNNDataDescriptor
    cudnnCreateRNNDescriptor cudnnDestroyRNNDescriptor
    cudnnCreateReduceTensorDescriptor cudnnDestroyReduceTensorDescriptor
    cudnnCreateSpatialTransformerDescriptor cudnnDestroySpatialTransformerDescriptor
}

forwarded! {
    fn cudnnDestroy(handle: u64) { SUCCESS }
    fn cudnnCreateTensorDescriptor(out: Out<u64>) {
        out.put(opaque_handle());
        SUCCESS
    }
    fn cudnnCreateFilterDescriptor(out: Out<u64>) {
        out.put(opaque_handle());
        SUCCESS
    }
    fn cudnnSetActivationDescriptor(descriptor: u64, mode: c_int, nan: c_int, coefficient: f64) { SUCCESS }
    fn cudnnSetCTCLossDescriptorEx(descriptor: u64, kind: c_int, normalization: c_int, gradient: c_int) { SUCCESS }
    fn cudnnSetConvolutionGroupCount(descriptor: u64, count: c_int) { SUCCESS }
    fn cudnnSetConvolutionMathType(descriptor: u64, math: c_int) { SUCCESS }
    fn cudnnSetConvolutionNdDescriptor(descriptor: u64, count: c_int, padding: *const c_int, strides: *const c_int, dilation: *const c_int, mode: c_int, kind: c_int) { SUCCESS }
    fn cudnnSetLRNDescriptor(descriptor: u64, count: c_uint, alpha: f64, beta: f64, k: f64) { SUCCESS }
    fn cudnnSetPoolingNdDescriptor(descriptor: u64, mode: c_int, nan: c_int, count: c_int, window: *const c_int, padding: *const c_int, strides: *const c_int) { SUCCESS }
    fn cudnnSetReduceTensorDescriptor(descriptor: u64, operation: c_int, kind: c_int, nan: c_int, indices: c_int, index: c_int) { SUCCESS }
    fn cudnnGetReductionIndicesSize(handle: u64, reduction: u64, from: u64, to: u64, size: Out<usize>) {
        ledger::assume("cudnnGetReductionIndicesSize", "reductions are assumed to keep no indices");
        size.put(0);
        SUCCESS
    }
    fn cudnnGetReductionWorkspaceSize(handle: u64, reduction: u64, from: u64, to: u64, size: Out<usize>) {
        ledger::assume("cudnnGetReductionWorkspaceSize", "reductions are assumed to need no workspace");
        size.put(0);
        SUCCESS
    }
    fn cudnnSetPooling2dDescriptor(descriptor: u64, mode: c_int, nan: c_int, height: c_int, width: c_int, top: c_int, left: c_int, down: c_int, right: c_int) { SUCCESS }
    fn cudnnSetSpatialTransformerNdDescriptor(descriptor: u64, sampler: c_int, kind: c_int, count: c_int, dims: *const c_int) { SUCCESS }
}

// ---- recurrent networks ----

const ALGORITHM_STANDARD: c_int = 0;
const KIND_BF16: c_int = 9;
const RNN_PADDED: c_int = 1;
const MODE_LSTM: c_int = 2;
const MODE_GRU: c_int = 3;
const NO_BIAS: c_int = 0;
const SINGLE_BIASES: [c_int; 2] = [1, 3];

impl Rnn {
    fn gates(&self) -> u64 {
        match self.cell {
            MODE_LSTM => 4,
            MODE_GRU => 3,
            _ => 1,
        }
    }

    /// Whether one kernel computes all steps. There is none for bfloat16.
    fn is_persistent(&self) -> bool {
        self.algorithm != ALGORITHM_STANDARD && self.kind != KIND_BF16
    }

    fn directions(&self) -> u64 {
        if self.direction == 1 { 2 } else { 1 }
    }

    fn pseudo_layers(&self) -> u64 {
        self.layers * self.directions()
    }

    /// Size of the hidden state that the next layer and step see.
    fn output(&self) -> u64 {
        if self.projection > 0 {
            self.projection
        } else {
            self.hidden
        }
    }

    fn has_projection(&self) -> bool {
        self.cell == MODE_LSTM && self.projection > 0 && self.projection < self.hidden
    }

    /// Columns of the input matrices of pseudo-layer `layer`.
    fn input_of(&self, layer: u64) -> u64 {
        if layer < self.directions() {
            self.input
        } else {
            self.output() * self.directions()
        }
    }

    /// Elements of all matrices of a pseudo-layer.
    fn matrices(&self, layer: u64) -> u64 {
        let projection = if self.has_projection() {
            self.hidden * self.projection
        } else {
            0
        };
        self.gates() * self.hidden * (self.input_of(layer) + self.output()) + projection
    }

    fn biases_per_layer(&self) -> u64 {
        let sets = match self.bias {
            NO_BIAS => 0,
            single if SINGLE_BIASES.contains(&single) => 1,
            _ => 2,
        };
        sets * self.gates() * self.hidden
    }

    fn weight_bytes(&self) -> u64 {
        let layers = self.pseudo_layers();
        let matrices: u64 = (0..layers).map(|layer| self.matrices(layer)).sum();
        (matrices + layers * self.biases_per_layer()) * data_bytes(self.kind)
    }

    /// Where matrix and bias `id` of a pseudo-layer lie: matrix (offset, rows, columns) and bias
    /// offset, in elements. All matrices come first, then all biases.
    fn place(&self, layer: u64, id: u64) -> (Option<(u64, u64, u64)>, Option<u64>) {
        let gates = self.gates();
        let (input, output) = (self.input_of(layer), self.output());
        let before: u64 = (0..layer).map(|earlier| self.matrices(earlier)).sum();
        let matrix = if id < gates {
            Some((before + id * self.hidden * input, self.hidden, input))
        } else if id < 2 * gates {
            let at = before + gates * self.hidden * input + (id - gates) * self.hidden * output;
            Some((at, self.hidden, output))
        } else if self.has_projection() {
            let at = before + gates * self.hidden * (input + output);
            Some((at, self.projection, self.hidden))
        } else {
            None
        };
        let sets = if gates == 0 {
            0
        } else {
            self.biases_per_layer() / (gates * self.hidden).max(1)
        };
        let bias = (id < sets * gates).then(|| {
            let all: u64 = (0..self.pseudo_layers())
                .map(|each| self.matrices(each))
                .sum();
            all + layer * self.biases_per_layer() + id * self.hidden
        });
        (matrix, bias)
    }
}

forwarded! {
    fn cudnnSetRNNDescriptor_v8(descriptor: u64, algorithm: c_int, cell: c_int, bias: c_int, direction: c_int, input_mode: c_int, kind: c_int, precision: c_int, math: c_int, input: c_int, hidden: c_int, projection: c_int, layers: c_int, dropout: u64, flags: c_int) {
        let mut descriptors = DESCRIPTORS.lock();
        let dropout = descriptors.dropouts.get(&dropout).is_some_and(|&p| p > 0.0);
        descriptors.rnns.insert(descriptor, Rnn {
            algorithm, cell, bias, direction, kind,
            input: input as u64, hidden: hidden as u64, projection: projection as u64, layers: layers as u64,
            dropout,
            padded: flags & RNN_PADDED != 0,
        });
        SUCCESS
    }
    fn cudnnSetRNNDataDescriptor(descriptor: u64, kind: c_int, layout: c_int, length: c_int, batch: c_int, vector: c_int, lengths: *const c_int, fill: *mut c_void) {
        let lengths = (0..batch.max(0) as usize)
            // SAFETY: cuDNN reads as many lengths as the batch has sequences, on the host.
            .map(|at| if lengths.is_null() { length } else { unsafe { *lengths.add(at) } })
            .map(|length| length.max(0) as u64)
            .collect();
        DESCRIPTORS.lock().sequences.insert(descriptor, Sequences { steps: length.max(0) as u64, lengths });
        SUCCESS
    }
    fn cudnnGetRNNWeightSpaceSize(handle: u64, descriptor: u64, size: Out<usize>) {
        let descriptors = DESCRIPTORS.lock();
        let Some(rnn) = descriptors.rnns.get(&descriptor) else { return BAD_PARAM };
        size.put(rnn.weight_bytes() as usize);
        SUCCESS
    }
    fn cudnnGetRNNWeightParams(handle: u64, descriptor: u64, layer: c_int, size: usize, space: u64, id: c_int, matrix: u64, matrix_at: Out<u64>, bias: u64, bias_at: Out<u64>) {
        let mut descriptors = DESCRIPTORS.lock();
        let Some(rnn) = descriptors.rnns.get(&descriptor).copied() else { return BAD_PARAM };
        let bytes = data_bytes(rnn.kind);
        let (matrix_place, bias_place) = rnn.place(layer as u64, id as u64);
        let tensor = |dims: Vec<c_int>| {
            let strides = vec![dims[1] * dims[2], dims[2], 1];
            Tensor { kind: rnn.kind, format: 0, dims, strides }
        };
        if let Some((_, rows, columns)) = matrix_place {
            descriptors.tensors.insert(matrix, tensor(vec![1, rows as c_int, columns as c_int]));
        }
        if bias_place.is_some() {
            descriptors.tensors.insert(bias, tensor(vec![1, rnn.hidden as c_int, 1]));
        }
        matrix_at.put(matrix_place.map_or(0, |(at, ..)| space + at * bytes));
        bias_at.put(bias_place.map_or(0, |at| space + at * bytes));
        SUCCESS
    }
    fn cudnnGetRNNTempSpaceSizes(handle: u64, descriptor: u64, training: c_int, data: u64, work: Out<usize>, reserve: Out<usize>) {
        let descriptors = DESCRIPTORS.lock();
        let (Some(rnn), Some(sequences)) = (descriptors.rnns.get(&descriptor), descriptors.sequences.get(&data)) else {
            return BAD_PARAM;
        };
        let (work_bytes, reserve_bytes) = rnn_temporaries(rnn, sequences, training != 0);
        ledger::assume("cudnnGetRNNTempSpaceSizes", "the workspace of recurrent layers follows a model of cuDNN 9");
        work.put(work_bytes as usize);
        reserve.put(reserve_bytes as usize);
        SUCCESS
    }
}

export! {
    fn cudnnRNNForward(handle: u64, descriptor: u64, _mode: c_int, _lengths: u64, data: u64) -> Status, or INTERNAL; {
        recur(handle, descriptor, data, Pass::Forward);
        SUCCESS
    }
    fn cudnnRNNBackwardData_v8(handle: u64, descriptor: u64, _lengths: u64, data: u64) -> Status, or INTERNAL; {
        recur(handle, descriptor, data, Pass::Data);
        SUCCESS
    }
    fn cudnnRNNBackwardWeights_v8(handle: u64, descriptor: u64, _add: c_int, _lengths: u64, data: u64) -> Status, or INTERNAL; {
        recur(handle, descriptor, data, Pass::Weights);
        SUCCESS
    }
}

/// Notes a pass through a recurrent network. The virtual clock counts a launch.
fn recur(handle: u64, descriptor: u64, data: u64, pass: Pass) {
    crate::kernels::launched(stream_of(handle));
    let descriptors = DESCRIPTORS.lock();
    let (Some(rnn), Some(sequences)) = (
        descriptors.rnns.get(&descriptor),
        descriptors.sequences.get(&data),
    ) else {
        return;
    };
    let half = data_bytes(rnn.kind) == 2;
    for layer in 0..rnn.pseudo_layers() {
        let layer = Layer {
            gates: rnn.gates(),
            input: rnn.input_of(layer),
            hidden: rnn.hidden,
            half,
            alone: rnn.directions() == 1,
            projects: rnn.has_projection(),
        };
        let work = layer.work(pass, sequences.steps, sequences.rows(), sequences.batch());
        work.into_iter().for_each(crate::work::note);
    }
}

/// Bytes that every product of a pseudo-layer keeps for cuBLAS.
const RNN_PRODUCT_BYTES: u64 = 8 << 20;
/// Steps that a network of one direction computes the inputs of at once.
const RNN_STEPS: u64 = 256;

/// Work and reserve space of a recurrent network, as cuDNN 9 asks for them; found by varying one
/// parameter at a time. The forward and the backward pass share the work space.
fn rnn_temporaries(rnn: &Rnn, sequences: &Sequences, training: bool) -> (u64, u64) {
    let (steps, batch) = (sequences.steps, sequences.batch());
    let rows = sequences.rows();
    let rows_of = |steps: u64| rows.min(steps * batch);
    let (layers, directions, gates) = (rnn.layers, rnn.directions(), rnn.gates());
    let (hidden, input, output) = (rnn.hidden, rnn.input, rnn.output());
    let bytes = data_bytes(rnn.kind);
    let (both, cells) = (directions == 2, rnn.cell == MODE_LSTM);
    let state = batch * hidden;
    let all_states = rows * hidden;
    let weights: u64 = (0..rnn.pseudo_layers())
        .map(|layer| rnn.matrices(layer))
        .sum();
    let fixed = RNN_PRODUCT_BYTES * rnn.pseudo_layers() + 256;
    // Sequences of different lengths are unpacked, and their states sorted.
    let sorted = directions * if cells { 4 } else { 2 };
    let (padding, lengths) = if rnn.padded {
        (all_states + rows * input, (8 * batch).next_multiple_of(32))
    } else {
        (0, 0)
    };
    let padded = u64::from(rnn.padded);

    let (in_flight, kept) = match (both, rnn.is_persistent()) {
        (true, false) => (
            all_states * (gates * 2 + 4 + padded),
            state * (gates * 2 + 4),
        ),
        (false, false) => (gates * rows_of(RNN_STEPS) * hidden, state * gates),
        (true, true) => (all_states * (gates * 6 + 4 + padded), state * 6),
        (false, true) => (all_states * gates * 5, state * 2),
    };
    let kept = kept + state * (if cells { 2 * directions } else { 0 } + padded * sorted);
    let dropped = if rnn.dropout && !both { all_states } else { 0 };
    // Projected states are smaller, and are there beside the others.
    let (projections, narrower) = if rnn.has_projection() {
        (
            directions * rows * output,
            padded * 2 * directions * (state - batch * output),
        )
    } else {
        (0, 0)
    };
    let kept = kept - narrower;
    let forward = in_flight + padding + dropped + projections + layers * kept;
    if !training {
        return ((forward + weights) * bytes + fixed + lengths, 0);
    }

    let widest = directions * directions * rows * hidden.max(input);
    let between = if both {
        (2 + u64::from(layers > 1) * 2) * all_states
    } else if layers == 1 {
        all_states
    } else if rnn.is_persistent() {
        2 * all_states
    } else {
        rows_of(rnn_chunk(layers, steps, batch)) * hidden
    };
    let between = match rnn.cell {
        _ if !rnn.is_persistent() => between,
        MODE_LSTM => between + 12 * all_states,
        MODE_GRU => between + 14 * all_states,
        _ => between + 9 * all_states,
    };
    let unpacked = padded * (2 * directions * all_states + 2 * rows * input);
    let kept = match (cells, both) {
        (false, false) => 1 + u64::from(rnn.is_persistent()),
        (false, true) => 6,
        (true, false) => 3 + u64::from(rnn.is_persistent()),
        (true, true) => 10,
    } + padded * directions * if cells { 8 } else { 4 };
    let unprojected = if rnn.has_projection() && (both || layers == 1) {
        directions * all_states
    } else {
        0
    };
    let backward = widest + between + unpacked + unprojected + layers * kept * state;
    let work = (forward.max(backward) + weights) * bytes + fixed + lengths;

    let per_layer = match rnn.cell {
        MODE_LSTM => 5,
        MODE_GRU => 6,
        _ => 1,
    };
    let projected = if rnn.has_projection() {
        layers * (all_states + rows * output)
    } else {
        0
    };
    let saved = directions * (all_states * (layers * per_layer + layers - 1) + projected);
    let mask = if rnn.dropout {
        (layers - 1)
            * directions
            * (steps * batch * output * directions)
                .div_ceil(8)
                .next_multiple_of(8)
    } else {
        0
    };
    (work, saved * bytes + 256 + mask)
}

/// Steps of all layers that are in flight where layers and steps overlap.
fn rnn_chunk(layers: u64, steps: u64, batch: u64) -> u64 {
    const LEAST: u64 = 8;
    let chunk = match batch {
        0..=1 => 32,
        2..=8 => 16,
        9..=16 => 8,
        17..=96 => 4,
        _ => 2,
    };
    let chunk = if steps >= 128 {
        chunk.max(LEAST)
    } else {
        chunk
    };
    steps.min(chunk * layers + chunk.max(LEAST))
}

// ---- batch normalization ----

const PERSISTENT: c_int = 2;

forwarded! {
    fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(handle: u64, mode: c_int, ops: c_int, x: u64, z: u64, y: u64, scale: u64, activation: u64, size: Out<usize>) {
        size.put(batch_norm_space(mode, x, true) as usize);
        SUCCESS
    }
    fn cudnnGetBatchNormalizationBackwardExWorkspaceSize(handle: u64, mode: c_int, ops: c_int, x: u64, y: u64, dy: u64, dz: u64, dx: u64, scale: u64, activation: u64, size: Out<usize>) {
        size.put(batch_norm_space(mode, x, false) as usize);
        SUCCESS
    }
    fn cudnnGetBatchNormalizationTrainingExReserveSpaceSize(handle: u64, mode: c_int, ops: c_int, activation: u64, x: u64, size: Out<usize>) {
        // Only the fused activations keep something.
        size.put(0);
        SUCCESS
    }
}

/// Batch normalization in training reads what it is given for the sums and again for the result: its
/// time is that of moving it so often (ResNet-50 in `bench/gpu/results/h200_operators.json`).
const BATCH_NORM_FORWARD: f64 = 5.0;
const BATCH_NORM_BACKWARD: f64 = 11.0;

export! {
    fn cudnnBatchNormalizationForwardTrainingEx(handle: u64, _mode: c_int, _ops: c_int, _alpha: u64, _beta: u64, x: u64) -> Status, or INTERNAL; {
        batch_norm(handle, x, BATCH_NORM_FORWARD);
        SUCCESS
    }
    fn cudnnBatchNormalizationBackwardEx(handle: u64, _mode: c_int, _ops: c_int, _alpha: u64, _beta: u64, _alpha_parameters: u64, _beta_parameters: u64, x: u64) -> Status, or INTERNAL; {
        batch_norm(handle, x, BATCH_NORM_BACKWARD);
        SUCCESS
    }
}

/// Accounts a normalization that takes as long as moving the tensor described by `x` so often.
fn batch_norm(handle: u64, x: u64, passes: f64) {
    let mut work = None;
    let bytes = DESCRIPTORS.lock().tensors.get(&x).map_or(0.0, |tensor| {
        // fp16 and bf16 among cuDNN's types.
        let element = if matches!(tensor.kind, 2 | 9) {
            2.0
        } else {
            4.0
        };
        let bytes = tensor.elements() as f64 * element;
        work = Some(crate::work::Work::BatchNorm {
            bytes: bytes as u64,
            channels: tensor
                .dims
                .get(1)
                .map_or(1, |&channels| channels.max(1) as u64),
            last: tensor.strides.get(1) == Some(&1),
            backward: passes > BATCH_NORM_FORWARD,
            element: element as u8,
        });
        bytes
    });
    if let Some(work) = work {
        crate::work::note(work);
    }
    crate::kernels::enqueued(stream_of(handle), machine().rates.moving(passes * bytes));
}

/// Work space of batch normalization. Only the persistent kernels, which are for channels last,
/// need any: each block of channels and rows keeps two sums, and forward a flag.
fn batch_norm_space(mode: c_int, x: u64, forward: bool) -> u64 {
    let descriptors = DESCRIPTORS.lock();
    let Some(tensor) = descriptors.tensors.get(&x) else {
        return 0;
    };
    let channels = tensor.dims.get(1).map_or(0, |&dim| dim.max(0) as u64);
    if mode != PERSISTENT || channels == 0 || tensor.strides.get(1) != Some(&1) {
        return 0;
    }
    let rows = tensor.elements() / channels;
    let (width, longer) = match channels {
        _ if channels.is_multiple_of(8) => (64, 1),
        0..=4 => (4, 4),
        _ => (16, 1),
    };
    let (height, flag, fixed) = match (forward, data_bytes(tensor.kind)) {
        (true, 2) => (160, 4, 1072),
        (true, _) => (64, 4, 1072),
        (false, _) => (96, 0, 1056),
    };
    let blocks = rows.div_ceil(height * longer);
    channels.div_ceil(width) * (blocks * (8 * width + flag) + 4) + fixed
}

// ---- convolutions by the older API, which PyTorch uses only on request ----

/// The start of `cudnnConvolutionFwdAlgoPerf_t` and its twins.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AlgorithmPerf {
    algorithm: c_int,
    status: c_int,
    time: f32,
    memory: usize,
    determinism: c_int,
    math: c_int,
    reserved: [c_int; 3],
}

macro_rules! old_convolutions {
    ($($get:ident $find:ident $size:ident),*) => { export! {$(
        fn $find(_handle: u64, _x: u64, _px: u64, _w: u64, _pw: u64, _c: u64, _y: u64, _py: u64, _wanted: c_int, count: Out<c_int>, results: Out<AlgorithmPerf>, _work: u64, _size: usize) -> Status, or INTERNAL; {
            one_algorithm(count, results)
        }
    )*} forwarded! {$(
        fn $get(handle: u64, a: u64, b: u64, c: u64, d: u64, wanted: c_int, count: Out<c_int>, results: Out<AlgorithmPerf>) {
            one_algorithm(count, results)
        }
        fn $size(handle: u64, a: u64, b: u64, c: u64, d: u64, algorithm: c_int, size: Out<usize>) {
            ledger::assume(stringify!($size), "the older convolution interface is assumed to need no workspace");
            size.put(0);
            SUCCESS
        }
    )*} };
}

old_convolutions!(
    cudnnGetConvolutionForwardAlgorithm_v7 cudnnFindConvolutionForwardAlgorithmEx cudnnGetConvolutionForwardWorkspaceSize,
    cudnnGetConvolutionBackwardDataAlgorithm_v7 cudnnFindConvolutionBackwardDataAlgorithmEx cudnnGetConvolutionBackwardDataWorkspaceSize,
    cudnnGetConvolutionBackwardFilterAlgorithm_v7 cudnnFindConvolutionBackwardFilterAlgorithmEx cudnnGetConvolutionBackwardFilterWorkspaceSize
);

fn one_algorithm(count: Out<c_int>, results: Out<AlgorithmPerf>) -> Status {
    count.put(1);
    results.put(AlgorithmPerf {
        algorithm: 1,
        status: SUCCESS,
        time: 1.0,
        memory: 0,
        determinism: 1,
        math: 0,
        reserved: [0; 3],
    });
    SUCCESS
}

forwarded! {
    fn cudnnSetCTCLossDescriptor_v9(descriptor: u64, kind: c_int, normalization: c_int, gradient: c_int, longest: c_int) {
        DESCRIPTORS.lock().longest_labels.insert(descriptor, longest.max(0) as u64);
        SUCCESS
    }
    fn cudnnGetCTCLossWorkspaceSize(handle: u64, probabilities: u64, gradients: u64, labels: u64, label_lengths: *const c_int, input_lengths: u64, algorithm: c_int, descriptor: u64, size: Out<usize>) {
        let descriptors = DESCRIPTORS.lock();
        let Some([steps, batch, classes]) = descriptors.sizes(probabilities) else { return BAD_PARAM };
        if label_lengths.is_null() {
            return BAD_PARAM;
        }
        // SAFETY: one length a sample, on the host, by the vendor's header.
        let lengths = unsafe { std::slice::from_raw_parts(label_lengths, batch as usize) };
        let lengths = || lengths.iter().map(|&length| length.max(0) as u64);
        let copied = 4 * lengths().sum::<u64>() + 8 * batch;
        let bytes = ctc_space(steps, batch, classes, lengths().max().unwrap_or(0)) + copied;
        size.put(bytes as usize);
        SUCCESS
    }
    fn cudnnGetCTCLossWorkspaceSize_v8(handle: u64, algorithm: c_int, descriptor: u64, probabilities: u64, gradients: u64, size: Out<usize>) {
        let descriptors = DESCRIPTORS.lock();
        let Some([steps, batch, classes]) = descriptors.sizes(probabilities) else { return BAD_PARAM };
        let longest = descriptors.longest_labels.get(&descriptor).copied().unwrap_or(0);
        size.put(ctc_space(steps, batch, classes, longest) as usize);
        SUCCESS
    }
}

/// Work space of the CTC loss where the labels are on the GPU: probabilities, and both passes over
/// the labels with blanks between them.
fn ctc_space(steps: u64, batch: u64, classes: u64, longest: u64) -> u64 {
    batch * (steps * (4 * classes + 16 * longest + 8) + 8 * longest + 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a description as a version of cuDNN makes them: those before the groups,
    /// those of the first cluster sizes, and those up to the name.
    fn words(extra: usize, clusters: &[i32], room: usize) -> Vec<i32> {
        let mut words = vec![7, 8, 50_000, 0, 900, 13_000];
        words.extend(vec![0; extra]);
        words.push(18);
        words.extend([0; Missing::GROUPS - 1]);
        words.extend(clusters);
        words.resize(words.len() + room - clusters.len(), 0);
        words.push(i32::from_ne_bytes(*b"NVID"));
        words
    }

    fn find(words: &[i32]) -> Option<Missing> {
        Missing::find(words, 50_000, 900, 13_000, "NVIDIA H200")
    }

    #[test]
    fn the_missing_words_are_found_where_each_version_keeps_them_and_nowhere_else() {
        let by_one: Vec<i32> = (1..=16).map(|size| 18 / size).collect();
        let at = |groups, clusters| Some(Missing { groups, clusters });
        assert_eq!(find(&words(0, &[], 0)), at(6, None));
        assert_eq!(find(&words(0, &[], 16)), at(6, Some(30)));
        assert_eq!(find(&words(1, &by_one, 32)), at(7, Some(31)));
        assert_eq!(find(&words(0, &[], 8)), None);
        assert_eq!(find(&words(1, &[5, 5], 16)), None);
        assert_eq!(find(&words(0, &[], 16)[..20]), None);
        let mut taken = words(0, &[], 16);
        taken[10] = 3;
        assert_eq!(find(&taken), None);
    }
}
