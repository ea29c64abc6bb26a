//! The machine: its virtual GPUs and their properties.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::clock::Rates;
use crate::config::Config;
use crate::context::ContextCosts;
use crate::memory::DeviceMemory;
use crate::sync::Mutex;

/// What the runtime reports of the GPU. Bytes, kHz and counts as in `cudaDeviceProp`.
#[derive(Debug)]
pub struct Properties {
    pub name: String,
    pub total_bytes: u64,
    pub major: i32,
    pub minor: i32,
    pub sm_count: i32,
    /// Multiprocessors in each group (GPC) that can run clusters of more than two blocks.
    pub groups: Vec<i32>,
    pub shared_per_block: u64,
    pub shared_per_block_optin: u64,
    pub shared_per_sm: u64,
    pub shared_reserved_per_block: u64,
    pub registers_per_block: i32,
    pub registers_per_sm: i32,
    pub max_threads_per_sm: i32,
    pub max_blocks_per_sm: i32,
    pub l2_bytes: i32,
    pub persisting_l2_bytes: i32,
    pub clock_khz: i32,
    pub memory_clock_khz: i32,
    pub memory_bus_bits: i32,
    pub copy_engines: i32,
    pub ecc: i32,
}

impl Properties {
    pub fn new(config: &Config) -> Self {
        let sm_count = config.int("sm_count", 132);
        Self {
            name: config.text("name", "NVIDIA H200").to_owned(),
            total_bytes: config.number("memory.total_bytes", 150_109_880_320),
            major: config.int("compute_capability.major", 9),
            minor: config.int("compute_capability.minor", 0),
            sm_count,
            groups: groups(config.text("sm_groups", ""), sm_count),
            shared_per_block: config.number("shared_memory.per_block_bytes", 49_152),
            shared_per_block_optin: config.number("shared_memory.per_block_optin_bytes", 232_448),
            shared_per_sm: config.number("shared_memory.per_sm_bytes", 233_472),
            shared_reserved_per_block: config
                .number("shared_memory.reserved_per_block_bytes", 1_024),
            registers_per_block: config.int("registers.per_block", 65_536),
            registers_per_sm: config.int("registers.per_sm", 65_536),
            max_threads_per_sm: config.int("threads.max_per_sm", 2_048),
            max_blocks_per_sm: config.int("blocks.max_per_sm", 32),
            l2_bytes: config.int("l2_bytes", 62_914_560),
            persisting_l2_bytes: config.int("persisting_l2_bytes", 39_321_600),
            clock_khz: config.int("clock.sm_khz", 1_980_000),
            memory_clock_khz: config.int("clock.memory_khz", 3_201_000),
            memory_bus_bits: config.int("memory.bus_bits", 6_016),
            copy_engines: config.int("copy_engines", 3),
            ecc: config.int("ecc", 1),
        }
    }

    /// The compute capability as one number: 90 for 9.0.
    pub const fn capability(&self) -> i32 {
        self.major * 10 + self.minor
    }
}

/// The groups of multiprocessors: as given; as an H200 has them; or 16 in each.
fn groups(given: &str, sm_count: i32) -> Vec<i32> {
    const H200: [i32; 8] = [18, 18, 16, 16, 16, 16, 16, 8];
    const USUAL: i32 = 16;
    let given: Vec<i32> = given
        .split(',')
        .filter_map(|text| text.trim().parse().ok())
        .collect();
    if !given.is_empty() {
        given
    } else if sm_count == 132 {
        H200.to_vec()
    } else {
        let rest = std::iter::once(sm_count % USUAL).filter(|&sms| sms > 0);
        std::iter::repeat_n(USUAL, (sm_count / USUAL) as usize)
            .chain(rest)
            .collect()
    }
}

/// One virtual GPU.
#[derive(Debug)]
pub struct Device {
    pub memory: Mutex<DeviceMemory>,
}

/// All virtual GPUs of this process; they are alike.
#[derive(Debug)]
pub struct Machine {
    pub config: Config,
    pub properties: Properties,
    /// How many GPUs the machine has, seen by this process or not.
    pub count: u32,
    /// Those that this process sees; the memory of each knows which of all it is.
    pub devices: Vec<Device>,
    pub costs: ContextCosts,
    /// How fast it computes and copies.
    pub rates: Rates,
    /// Host-to-device and device-to-device copies up to this many bytes move real bytes.
    pub copy_limit: u64,
    /// Whether the program is XLA, by JAX.
    pub is_xla: bool,
}

static MACHINE: OnceLock<Machine> = OnceLock::new();
/// Whether the process has used CUDA, not only looked at its GPUs through NVML.
static USED: AtomicBool = AtomicBool::new(false);
/// Set in a child that was forked after the GPU was in use: there, as on a real GPU, CUDA is
/// unusable, and no lock of the parent is ever touched.
static FORKED: AtomicBool = AtomicBool::new(false);

/// The machine, built on first use, for CUDA.
pub fn machine() -> &'static Machine {
    if !USED.load(Ordering::Relaxed) {
        USED.store(true, Ordering::Relaxed);
    }
    look()
}

/// The machine, for who only looks: a process that is forked afterwards may still use CUDA.
pub fn look() -> &'static Machine {
    MACHINE.get_or_init(|| {
        let config = Config::from_environment();
        let properties = Properties::new(&config);
        let total = properties.total_bytes;
        let limit = config.number("memory.limit_bytes", total);
        let count = config.number("count", 1) as u32;
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let devices = visible_of(visible.as_deref(), count)
            .into_iter()
            .map(|index| {
                let mut memory = DeviceMemory::new(index, total, limit);
                memory.others = config.number("memory.other_processes_bytes", 0);
                Device {
                    memory: Mutex::new(memory),
                }
            })
            .collect();
        let costs = ContextCosts::new(&config);
        let rates = Rates::new(&config, &properties);
        let copy_limit = config.number("copy_limit_bytes", 64 << 10);
        let is_xla = config.text("framework", "") == "jax";
        // SAFETY: registers a handler that only stores to an atomic.
        unsafe {
            libc::pthread_atfork(None, None, Some(mark_forked));
        }
        Machine {
            config,
            properties,
            count,
            devices,
            costs,
            rates,
            copy_limit,
            is_xla,
        }
    })
}

/// Which of `count` GPUs `CUDA_VISIBLE_DEVICES` shows, in its order: numbers, up to the first that is
/// none of a GPU, or that comes twice. All without the variable.
fn visible_of(variable: Option<&str>, count: u32) -> Vec<u32> {
    let Some(text) = variable else {
        return (0..count).collect();
    };
    let mut found: Vec<u32> = Vec::new();
    for word in text.split(',') {
        let named = (0..count).find(|&index| {
            let whole = u128::from_be_bytes(crate::driver::uuid(index as i32));
            let name = word
                .trim()
                .strip_prefix("GPU-")
                .map(|hex| hex.replace('-', ""));
            word.trim().parse() == Ok(index)
                || name.is_some_and(|hex| u128::from_str_radix(&hex, 16) == Ok(whole))
        });
        match named {
            Some(index) if !found.contains(&index) => found.push(index),
            _ => break,
        }
    }
    found
}

/// Which of the machine's GPUs the process's device `ordinal` is.
pub fn physical(ordinal: i32) -> i32 {
    usize::try_from(ordinal)
        .ok()
        .and_then(|index| machine().devices.get(index))
        .map_or(ordinal, |device| device.memory.lock().index() as i32)
}

unsafe extern "C" fn mark_forked() {
    crate::card::forget();
    if USED.load(Ordering::Relaxed) {
        FORKED.store(true, Ordering::Relaxed);
    }
}

/// Whether this process is a fork of one that had used the GPU.
pub fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

thread_local! {
    static CURRENT: Cell<u32> = const { Cell::new(0) };
    static CONTEXT_SEEN: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread's device.
pub fn current() -> u32 {
    CURRENT.get()
}

/// Makes `device` the calling thread's; false if there is no such device.
pub fn set_current(device: i32) -> bool {
    let known = usize::try_from(device).is_ok_and(|index| index < machine().devices.len());
    if known {
        CURRENT.set(device as u32);
        CONTEXT_SEEN.set(false);
    }
    known
}

/// Whether anything has started the driver in this process.
static STARTED: AtomicBool = AtomicBool::new(false);

/// `cuInit`, or a call of the runtime that begins with it.
pub fn start() {
    STARTED.store(true, Ordering::Relaxed);
}

/// Whether the driver answers: before `cuInit` it does not.
pub fn is_started() -> bool {
    STARTED.load(Ordering::Relaxed)
}

/// The calling thread's device, with its context created; `None` if there is no such device, or no
/// room for the context.
pub fn active() -> Option<&'static Device> {
    let machine = machine();
    let index = current();
    let device = machine.devices.get(index as usize)?;
    if !CONTEXT_SEEN.get() {
        if !machine.costs.create(index) {
            return None;
        }
        CONTEXT_SEEN.set(true);
        start();
    }
    Some(device)
}

/// The device whose address space holds `addr`.
pub fn owner(addr: u64) -> Option<(u32, &'static Device)> {
    (0u32..)
        .zip(&machine().devices)
        .find(|(_, device)| device.memory.lock().owns(addr))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_are_those_of_the_variable() {
        assert_eq!(visible_of(None, 3), [0, 1, 2]);
        assert_eq!(visible_of(Some("2,0"), 3), [2, 0]);
        assert_eq!(visible_of(Some("1, 7, 0"), 3), [1]);
        assert_eq!(visible_of(Some("1,1"), 3), [1]);
        assert_eq!(visible_of(Some(""), 3), Vec::<u32>::new());
        assert_eq!(visible_of(Some("-1"), 3), Vec::<u32>::new());
        let hex = format!("{:032x}", u128::from_be_bytes(crate::driver::uuid(2)));
        let name = format!("GPU-{}-{}", &hex[..8], &hex[8..]);
        assert_eq!(visible_of(Some(&name), 3), [2]);
    }
}
