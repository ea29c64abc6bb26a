//! The driver's private tables, which programs with the runtime linked in ask for by UUID.
//!
//! cuDNN and cuBLASLt carry such a runtime. It refuses to start unless the driver has four tables
//! and answers a keyed digest over who asks and what devices there are. What the tables hold is
//! known from public projects that stand in for the driver on other vendors' GPUs, and what
//! cuBLASLt asks beyond that from watching it ask. Slots that nobody was seen to call answer "not
//! supported". There are no tables unless the configuration says `driver_tables=1`; without them
//! such libraries make no handles.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};

use crate::device::machine;
use crate::driver::{self, Status};
use crate::md2::hmac_md2;
use crate::put;
use crate::runtime::{INVALID_VALUE, NOT_SUPPORTED, SUCCESS};
use crate::streams::opaque_handle;
use crate::sync::Mutex;

/// A table: words that are function pointers, or its size in bytes in the first one.
#[derive(Debug)]
#[repr(transparent)]
struct Table<const N: usize>([*const c_void; N]);

// SAFETY: constant words; nothing is behind them but code.
unsafe impl<const N: usize> Sync for Table<N> {}

impl<const N: usize> Table<N> {
    /// A table that begins with its size and whose other slots are not supported.
    const fn sized() -> Self {
        let mut slots = [unsupported as *const c_void; N];
        slots[0] = std::ptr::without_provenance(N * size_of::<usize>());
        Self(slots)
    }

    const fn with(mut self, slot: usize, function: *const c_void) -> Self {
        self.0[slot] = function;
        self
    }
}

extern "C" fn unsupported() -> Status {
    NOT_SUPPORTED
}

extern "C" fn nothing() -> Status {
    SUCCESS
}

/// A UUID as the tables are asked for by.
type Id = [u8; 16];

const fn id(value: u128) -> Id {
    value.to_be_bytes()
}

static RUNTIME: Table<14> = Table::<14>::sized()
    .with(1, module_of_image as *const c_void)
    .with(2, primary_context as *const c_void)
    .with(6, module_of_image as *const c_void)
    .with(7, nothing as *const c_void)
    .with(8, module_of_header as *const c_void)
    .with(12, nothing as *const c_void);

static TOOLS_STORAGE: Table<4> = Table::<4>::sized().with(2, tools_context as *const c_void);

static TOOLS_CONTEXTS: Table<32> = Table::<32>::sized().with(4, tools_context_id as *const c_void);

/// Which group of multiprocessors (GPC) each pair of them is in; cuBLASLt does without.
static TOOLS_TOPOLOGY: Table<32> = Table::<32>::sized();

static TOOLS_HOOKS: Table<7> = Table::<7>::sized()
    .with(2, callback_flags as *const c_void)
    .with(6, domain_flags as *const c_void);

/// This one has no size: three functions and a null.
static CONTEXT_STORAGE: Table<4> = Table([
    storage_put as *const c_void,
    storage_delete as *const c_void,
    storage_get as *const c_void,
    std::ptr::null(),
]);

static DIGEST: Table<3> = Table::<3>::sized().with(1, digest as *const c_void);

static CONTEXT_CHECKS: Table<4> = Table::<4>::sized()
    .with(2, check_context as *const c_void)
    .with(3, nothing as *const c_void);

/// Whether the user asked for the tables.
pub fn are_wanted() -> bool {
    machine().config.number("driver_tables", 0) != 0
}

/// The table with this UUID, if the user asked for the tables.
pub fn find(wanted: &Id) -> Option<*const c_void> {
    if !are_wanted() {
        return None;
    }
    let known: [(Id, *const c_void); 8] = [
        (
            id(0x6bd5_fb6c_5bf4_e74a_8987_d939_12fd_9df9),
            (&raw const RUNTIME).cast(),
        ),
        (
            id(0x42d8_5a81_23f6_cb47_8298_f6e7_8a3a_ecdc),
            (&raw const TOOLS_STORAGE).cast(),
        ),
        (
            id(0x2131_8c60_9714_3248_8ca6_41ff_7324_c8f2),
            (&raw const TOOLS_CONTEXTS).cast(),
        ),
        (
            id(0x1734_dc26_800d_4745_8726_c0f1_e7dd_8bca),
            (&raw const TOOLS_TOPOLOGY).cast(),
        ),
        (
            id(0xa094_798c_2e74_2e74_93f2_0800_200c_0a66),
            (&raw const TOOLS_HOOKS).cast(),
        ),
        (
            id(0xc693_336e_1121_df11_a8c3_68f3_55d8_9593),
            (&raw const CONTEXT_STORAGE).cast(),
        ),
        (
            id(0xd408_2055_bde6_704b_8d34_ba12_3c66_e1f2),
            (&raw const DIGEST).cast(),
        ),
        (
            id(0x263e_8860_7cd2_6143_92f6_bbd5_006d_fa7e),
            (&raw const CONTEXT_CHECKS).cast(),
        ),
    ];
    known
        .iter()
        .find(|(id, _)| id == wanted)
        .map(|&(_, table)| table)
}

// ---- the runtime's own needs ----

unsafe extern "C" fn module_of_image(out: *mut u64) -> Status {
    unsafe { put(out, opaque_handle()) };
    SUCCESS
}

unsafe extern "C" fn module_of_header(_image: *const c_void, out: *mut u64) -> Status {
    unsafe { put(out, opaque_handle()) };
    SUCCESS
}

unsafe extern "C" fn primary_context(out: *mut u64, device: c_int) -> Status {
    unsafe { driver::cuDevicePrimaryCtxRetain(out, device) }
}

// ---- hooks of profilers: nobody subscribes ----

/// One word a callback, more than any runtime has; all off.
static CALLBACKS: Table<1024> = Table([std::ptr::null(); 1024]);
static DOMAINS: Table<32> = Table([std::ptr::null(); 32]);

unsafe extern "C" fn callback_flags(out: *mut *const c_void, count: *mut usize) {
    unsafe {
        put(out, (&raw const CALLBACKS).cast());
        put(count, 1024)
    };
}

unsafe extern "C" fn domain_flags(out: *mut *const c_void, count: *mut usize) {
    unsafe {
        put(out, (&raw const DOMAINS).cast());
        put(count, 32)
    };
}

/// cuBLASLt keys its cache of heuristics by the identity of the current context.
unsafe extern "C" fn tools_context(out: *mut u64) -> Status {
    unsafe { put(out, driver::current_context()) };
    SUCCESS
}

unsafe extern "C" fn tools_context_id(context: u64, out: *mut u64) -> Status {
    unsafe { put(out, context) };
    SUCCESS
}

// ---- what libraries keep with a context ----

/// (context, key) → value.
static STORAGE: std::sync::LazyLock<Mutex<HashMap<(u64, u64), u64>>> =
    std::sync::LazyLock::new(|| Mutex::new(HashMap::new()));

fn context_or_current(context: u64) -> u64 {
    if context == 0 {
        driver::current_context()
    } else {
        context
    }
}

unsafe extern "C" fn storage_put(
    context: u64,
    key: u64,
    value: u64,
    _destroy: *const c_void,
) -> Status {
    STORAGE
        .lock()
        .insert((context_or_current(context), key), value);
    SUCCESS
}

unsafe extern "C" fn storage_delete(context: u64, key: u64) -> Status {
    STORAGE.lock().remove(&(context_or_current(context), key));
    SUCCESS
}

unsafe extern "C" fn storage_get(out: *mut u64, context: u64, key: u64) -> Status {
    match STORAGE.lock().get(&(context_or_current(context), key)) {
        Some(&value) => {
            unsafe { put(out, value) };
            SUCCESS
        }
        None => INVALID_HANDLE,
    }
}

const INVALID_HANDLE: Status = 400;

unsafe extern "C" fn check_context(
    _context: u64,
    flags: *mut c_uint,
    _more: *mut c_void,
) -> Status {
    unsafe { put(flags, 0) };
    SUCCESS
}

// ---- the digest ----

/// The key of the digest, as public projects give it.
const KEY: [u8; 16] = [
    0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52, 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f,
];

/// What the first two kinds of question are answered with.
const ANSWERS: [[u64; 2]; 2] = [
    [0x3341_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8],
    [0x1841_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8],
];

unsafe extern "C" fn digest(version: c_uint, seconds: u64, out: *mut [u64; 2]) -> Status {
    if out.is_null() {
        return INVALID_VALUE;
    }
    let kind = (version % 10) as usize;
    let answer = ANSWERS
        .get(kind)
        .copied()
        .unwrap_or_else(|| keyed_answer(version, seconds));
    unsafe { put(out, answer) };
    SUCCESS
}

fn keyed_answer(version: c_uint, seconds: u64) -> [u64; 2] {
    let machine = machine();
    let mut message = Vec::with_capacity(48 + 28 * machine.devices.len());
    message.extend(machine.config.int("driver_version", 13_000).to_ne_bytes());
    message.extend(version.to_ne_bytes());
    message.extend(std::process::id().to_ne_bytes());
    // SAFETY: always succeeds.
    message.extend((unsafe { libc::pthread_self() } as u32).to_ne_bytes());
    message.extend(((&raw const RUNTIME) as u64).to_ne_bytes());
    message.extend(((&raw const DIGEST) as u64).to_ne_bytes());
    message.extend((DIGEST.0[1] as u64).to_ne_bytes());
    message.extend(seconds.to_ne_bytes());
    for index in 0..machine.devices.len() as c_int {
        message.extend(driver::uuid(index));
        for field in driver::pci_address(index) {
            message.extend(field.to_ne_bytes());
        }
    }
    let bytes = hmac_md2(&KEY, &message);
    let half = |from: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[from..from + 8]);
        u64::from_ne_bytes(word)
    };
    [half(0), half(8)]
}
