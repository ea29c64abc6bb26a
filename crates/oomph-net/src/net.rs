//! The net of this process: segments, the watch on what is launched, and moving between the two.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::arena::{Arena, Full, Limits};
use crate::course::{Orders, Watch};
use crate::driver::Driver;
use crate::gate;
use crate::gpu::Place;
use crate::settings::{self, Mode};
use crate::{hooks, loader, say};

/// Segments are multiples of this, and smaller requests are left to the driver, in bytes.
pub const GRANULE: u64 = 2 << 20;
/// Device memory that is left to the driver: it loads kernels late, and libraries make their handles.
const SPARE: u64 = 192 << 20;
/// So many units are copied to the host at a time: mappings wait for copies that way (unet's step at 75 % took 71 ms so, and 77 with all at once).
const AHEAD: usize = 2;
/// So many requests fail at first, so that PyTorch empties its cache and needs no more than it needs. Later
/// ones are served at once: PyTorch would empty it in each step, and ask for all of it again.
const LET_FAIL: u32 = 3;
/// What a small request of another library gets room with.
const ROOM: u64 = 64 << 20;

/// Work that is about to be put on the GPU, by its arguments.
#[derive(Debug, Clone, Copy)]
pub enum Work {
    /// A kernel: its arguments one by one (`void **`), or packed (`void **` of keys and values).
    Kernel {
        function: usize,
        arguments: usize,
        packed: usize,
    },
    Graph(usize),
    Copy([usize; 2]),
}

/// Whether launches are to be shown to the net.
static WATCHING: AtomicBool = AtomicBool::new(false);
/// Whether the launch that was shown is being timed.
static PROBING: AtomicBool = AtomicBool::new(false);
/// How many streams are being captured: nothing may wait for the GPU then.
static CAPTURES: AtomicI32 = AtomicI32::new(0);

pub fn is_probing() -> bool {
    PROBING.load(Ordering::Relaxed)
}

pub fn is_watching() -> bool {
    WATCHING.load(Ordering::Relaxed)
}

/// A capture began, or ended.
pub fn captures(change: i32) {
    CAPTURES.fetch_add(change, Ordering::SeqCst);
}

fn is_capturing() -> bool {
    CAPTURES.load(Ordering::SeqCst) > 0
}

#[derive(Debug)]
pub struct Net {
    arena: Arena<Driver>,
    watch: Watch,
    mode: Mode,
    is_virtual: bool,
    /// The size of the request that failed last: PyTorch empties its cache and asks again.
    failed: Option<u64>,
    /// How many requests have failed.
    failures: u32,
    /// Segments that were freed while a graph was captured.
    freed: Vec<u64>,
    functions: HashMap<u64, Function>,
    addresses: Vec<u64>,
    random: u64,
    /// The launch that is being timed.
    probe: Option<(usize, Instant)>,
    /// Whether the user knows that something lies on the host.
    told: bool,
    costs: Costs,
}

/// What moving has cost.
#[derive(Debug, Default)]
struct Costs {
    exchanges: u64,
    moved: u64,
    took: Duration,
}

/// What is known of a kernel.
#[derive(Debug, Clone, Default)]
struct Function {
    /// The sizes of its arguments, in bytes.
    arguments: Vec<usize>,
    /// Whether it reads its input more than once, by its name: products, convolutions and attention.
    rereads: bool,
}

static NET: OnceLock<Option<Mutex<Net>>> = OnceLock::new();

/// The net, if it is wanted and can be had; opened when memory is first asked for.
pub fn get() -> Option<MutexGuard<'static, Net>> {
    let net = NET.get_or_init(|| {
        settings::get()?;
        match open() {
            Ok(net) => Some(Mutex::new(net)),
            Err(why) => {
                say(&format!("it steps aside: {why}"));
                None
            }
        }
    });
    net.as_ref()
        .map(|net| net.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The net, if it is open.
pub fn opened() -> Option<MutexGuard<'static, Net>> {
    let net = NET.get()?.as_ref()?;
    Some(net.lock().unwrap_or_else(PoisonError::into_inner))
}

fn open() -> Result<Net, String> {
    let settings = settings::get().ok_or("it is not asked for")?;
    let gpu = Driver::open(GRANULE)?;
    let limits = Limits {
        granule: GRANULE,
        unit: settings.unit.next_multiple_of(GRANULE),
        device: settings.device,
        host: settings.host,
        spare: SPARE,
        ahead: AHEAD,
    };
    crate::log!("open on device {}, {limits:?}", gpu.device);
    // A virtual GPU has no bytes to move.
    let is_virtual = loader::of_driver(c"oomph_vgpu_interface") != 0;
    let mode = if is_virtual {
        Mode::Blind
    } else {
        settings.mode
    };
    if mode == Mode::Stress {
        WATCHING.store(true, Ordering::Relaxed);
    }
    Ok(Net {
        arena: Arena::new(gpu, limits),
        watch: Watch::default(),
        mode,
        is_virtual,
        failed: None,
        failures: 0,
        freed: Vec::new(),
        functions: HashMap::new(),
        addresses: Vec::new(),
        random: 1,
        probe: None,
        told: false,
        costs: Costs::default(),
    })
}

/// The process begins to use CUDA: says so if its memory will not come from `cudaMalloc`.
pub fn look_for_other_ways() {
    static LOOKED: Once = Once::new();
    LOOKED.call_once(|| {
        for name in oomph_allocator::VARIABLES {
            let value = std::env::var(name).unwrap_or_default();
            if let Some(way) = oomph_allocator::other_than_cuda_malloc(&value) {
                say(&format!(
                    "it steps aside: {name} has {way}, and so PyTorch gets memory in another way"
                ));
            }
        }
    });
}

/// The least and the end of addresses that a launch may be given.
fn within(range: (u64, u64), word: u64) -> bool {
    word >= range.0 && word < range.1
}

impl Net {
    /// Whether the calling thread's memory is of the GPU that the net serves.
    pub fn serves(&self, device: c_int) -> bool {
        self.arena.gpu.device == device
    }

    pub fn holds(&self, at: u64) -> bool {
        self.arena.holds(at)
    }

    /// Says, once, why the driver gave no handle for the memory at `at`, if that is the net's.
    pub fn explain_no_handle(&self, at: u64) {
        static SAID: Once = Once::new();
        if self.holds(at) {
            SAID.call_once(|| {
                say(
                    "the job gives a tensor to another process by a CUDA handle, which this memory has not: leave --net out, or give --no-net beside --fit",
                );
            });
        }
    }

    /// The most that lay on the host at once, in bytes.
    pub fn most_on_host(&self) -> u64 {
        self.arena.most_on_host
    }

    /// `size` bytes; the first request that finds no room on the GPU fails, and its repetition gets host memory.
    pub fn allocate(&mut self, size: u64) -> Option<u64> {
        let again = self.failed.take() == Some(size);
        let may_spill = again || self.failures >= LET_FAIL;
        let before = self.arena.on_host();
        let began = Instant::now();
        let found = arena_within(&mut self.arena, |arena| arena.allocate(size, may_spill));
        crate::log!(
            "{} MiB{}: {found:x?}, {} of {} MiB on the host, {:.1} ms",
            size >> 20,
            if again { " again" } else { "" },
            self.arena.on_host() >> 20,
            self.arena.size() >> 20,
            began.elapsed().as_secs_f64() * 1e3
        );
        match found {
            Ok(at) => {
                if self.arena.on_host() > before {
                    self.spilled();
                }
                if self.arena.on_host() > 0 && self.mode == Mode::Rhythm {
                    self.watch.learn_again();
                }
                Some(at)
            }
            Err(_) if !again => {
                // PyTorch empties its cache and asks again.
                self.failed = Some(size);
                self.failures += 1;
                None
            }
            Err(full) => {
                let why = match full {
                    Full::HostLimit | Full::Device => {
                        "host memory is used up too, as far as the net may use it"
                    }
                    Full::HostRefused => "the system gives no more pinned host memory",
                    Full::Driver => "the driver refuses the mapping",
                };
                say(&format!(
                    "PyTorch's error stands: {} MiB more are needed, and {why}",
                    size >> 20
                ));
                None
            }
        }
    }

    /// Something came to lie on the host.
    fn spilled(&mut self) {
        if !std::mem::replace(&mut self.told, true) {
            say(&format!(
                "GPU memory ran out, and the job goes on with {} MiB in host memory; `oomph fit` looks for a cheaper way",
                self.arena.on_host() >> 20
            ));
            extern "C" fn at_exit() {
                if let Some(net) = NET
                    .get()
                    .and_then(Option::as_ref)
                    .and_then(|net| net.try_lock().ok())
                {
                    net.end();
                }
            }
            // SAFETY: a function without arguments, of a library that is never unloaded.
            unsafe { libc::atexit(at_exit) };
        }
        if self.mode == Mode::Rhythm && hooks::sees_all() {
            WATCHING.store(true, Ordering::Relaxed);
        }
    }

    /// What it was, at the end.
    fn end(&self) {
        let Costs {
            exchanges,
            moved,
            took,
        } = self.costs;
        say(&format!(
            "up to {} MiB lay in host memory; {:.1} GiB were moved in {exchanges} pauses, {:.1} s in all; `oomph fit` looks for a cheaper way",
            self.arena.most_on_host >> 20,
            moved as f64 / f64::from(1 << 30),
            took.as_secs_f64()
        ));
    }

    /// Frees the segment at `at`.
    pub fn free(&mut self, at: u64) {
        self.freed.push(at);
        if is_capturing() {
            return;
        }
        let freed = std::mem::take(&mut self.freed);
        let had_host = self.arena.on_host() > 0;
        // As `cudaFree` does: what was put on the GPU may still use it. What comes now may not.
        arena_within(&mut self.arena, |arena| {
            if arena.gpu.drain().is_ok() {
                for at in &freed {
                    arena.free(*at);
                }
            }
        });
        if had_host && self.mode == Mode::Rhythm {
            self.watch.learn_again();
        }
    }

    /// Makes room on the GPU for a request that the net does not serve itself; false if there is none.
    pub fn make_room(&mut self) -> bool {
        if is_capturing() || self.is_virtual || !hooks::sees_all() {
            return false;
        }
        let mut sum = 0;
        let out: Vec<u64> = self
            .arena
            .units()
            .filter(|&(_, _, place)| place == Place::Device)
            .take_while(|&(_, size, _)| {
                let wanted = sum < ROOM;
                sum += size;
                wanted
            })
            .map(|(at, _, _)| at)
            .collect();
        let before = self.arena.on_host();
        self.exchange(&Orders {
            out,
            back: Vec::new(),
        });
        self.quietly(Arena::give_back_spares);
        if self.arena.on_host() > before {
            self.spilled();
        }
        self.arena.on_host() > before
    }

    /// Does `change` while nothing runs on the GPU.
    fn quietly(&mut self, change: impl FnOnce(&mut Arena<Driver>)) {
        arena_within(&mut self.arena, |arena| {
            let _closed = gate::close();
            if arena.gpu.drain().is_ok() {
                change(arena);
            }
        });
    }

    fn exchange(&mut self, orders: &Orders) {
        let began = Instant::now();
        let mut moved = crate::arena::Moved::default();
        let mut quiet = Duration::ZERO;
        self.quietly(|arena| {
            quiet = began.elapsed();
            moved = arena.exchange(&orders.out, &orders.back);
        });
        let took = began.elapsed();
        self.costs.exchanges += 1;
        self.costs.moved += moved.out + moved.back;
        self.costs.took += took.saturating_sub(quiet);
        if self.costs.exchanges < 400 {
            crate::log!(
                "moved {} of {} out, {} of {} back: {} and {} MiB, quiet after {:.2} ms, {:.2} ms",
                moved.out / GRANULE,
                orders.out.len(),
                moved.back / GRANULE,
                orders.back.len(),
                moved.out >> 20,
                moved.back >> 20,
                quiet.as_secs_f64() * 1e3,
                took.saturating_sub(quiet).as_secs_f64() * 1e3
            );
        }
    }

    fn before(&mut self, work: &Work) {
        let range = self.arena.range();
        let mut addresses = std::mem::take(&mut self.addresses);
        addresses.clear();
        let capturing = is_capturing();
        let wanted = self.watch.is_learning() || capturing;
        let (signature, rereads) = match *work {
            Work::Kernel {
                function,
                arguments,
                packed,
            } => {
                self.functions
                    .entry(function as u64)
                    .or_insert_with(|| Function::of(function as u64));
                if wanted {
                    self.scan(function as u64, arguments, packed, range, &mut addresses);
                }
                (
                    function as u64,
                    self.functions
                        .get(&(function as u64))
                        .is_some_and(|known| known.rereads),
                )
            }
            Work::Graph(graph) => (graph as u64, true),
            Work::Copy(words) => {
                addresses.extend(
                    words
                        .map(|word| word as u64)
                        .iter()
                        .filter(|&&word| within(range, word)),
                );
                if capturing {
                    self.watch.captured(&addresses);
                } else {
                    self.watch.touched(&addresses);
                }
                self.addresses = addresses;
                return;
            }
        };
        let orders = if capturing {
            self.watch.captured(&addresses);
            None
        } else if self.mode == Mode::Stress {
            self.shuffle()
        } else {
            let is_graph = matches!(work, Work::Graph(_));
            self.watch.launched(
                &self.arena,
                signature,
                &addresses,
                rereads,
                is_graph,
                Instant::now(),
            )
        };
        self.addresses = addresses;
        if let Some(orders) =
            orders.filter(|orders| !orders.out.is_empty() || !orders.back.is_empty())
        {
            self.exchange(&orders);
        }
        if let Some(launch) = self.watch.probed().filter(|_| !capturing) {
            let quiet = arena_within(&mut self.arena, |arena| arena.gpu.drain());
            self.probe = quiet.is_ok().then(|| (launch, Instant::now()));
            PROBING.store(true, Ordering::Relaxed);
        }
    }

    /// The work that was shown last has been put on the GPU.
    fn after(&mut self) {
        PROBING.store(false, Ordering::Relaxed);
        let Some((launch, began)) = self.probe.take() else {
            return;
        };
        if !is_capturing() && arena_within(&mut self.arena, |arena| arena.gpu.drain()).is_ok() {
            self.watch.took(launch, began.elapsed(), &self.arena);
        }
    }

    /// Now and then: some units to move, at random.
    fn shuffle(&mut self) -> Option<Orders> {
        let mut next = || {
            // xorshift64
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.random
        };
        if !next().is_multiple_of(256) {
            return None;
        }
        let mut orders = Orders::default();
        for (at, _, place) in self.arena.units() {
            match place {
                Place::Device if next().is_multiple_of(16) => orders.out.push(at),
                Place::Host if next().is_multiple_of(2) => orders.back.push(at),
                _ => {}
            }
        }
        Some(orders)
    }

    /// The addresses among a kernel's arguments.
    fn scan(
        &mut self,
        function: u64,
        arguments: usize,
        packed: usize,
        range: (u64, u64),
        found: &mut Vec<u64>,
    ) {
        let mut words = |at: usize, size: usize| {
            for offset in (0..size / 8).map(|word| word * 8) {
                // SAFETY: inside an argument, whose address and size the program and the driver gave.
                let word = unsafe { ((at + offset) as *const u64).read_unaligned() };
                if within(range, word) && self.arena.covers(word) {
                    found.push(word);
                }
            }
        };
        if arguments != 0 {
            let known = self
                .functions
                .entry(function)
                .or_insert_with(|| Function::of(function));
            for (index, &size) in known.arguments.iter().enumerate() {
                // SAFETY: one address for each argument of the kernel, by the vendor's header.
                let at = unsafe { *(arguments as *const usize).add(index) };
                if at != 0 {
                    words(at, size);
                }
            }
        } else if packed != 0 {
            const END: usize = 0;
            const BUFFER: usize = 1;
            const SIZE: usize = 2;
            let (mut buffer, mut size) = (0, 0);
            for pair in 0..4 {
                // SAFETY: keys and values until the key that ends them, by the vendor's header.
                unsafe {
                    let pair = (packed as *const usize).add(2 * pair);
                    match *pair {
                        END => break,
                        BUFFER => buffer = *pair.add(1),
                        SIZE => size = *(*pair.add(1) as *const usize),
                        _ => {}
                    }
                }
            }
            if buffer != 0 {
                words(buffer, size);
            }
        }
    }
}

/// `work` with the context of the arena's GPU.
fn arena_within<T>(arena: &mut Arena<Driver>, work: impl FnOnce(&mut Arena<Driver>) -> T) -> T {
    let context = arena.gpu.context();
    context.within(|| work(arena))
}

impl Function {
    /// Asks the driver.
    fn of(function: u64) -> Self {
        type ParamInfo = unsafe extern "C" fn(u64, usize, *mut usize, *mut usize) -> c_int;
        type Name = unsafe extern "C" fn(*mut *const c_char, u64) -> c_int;
        let mut arguments = Vec::new();
        for name in [c"cuFuncGetParamInfo", c"cuKernelGetParamInfo"] {
            let found = loader::of_driver(name);
            if found == 0 {
                continue;
            }
            // SAFETY: the driver's function of this name; it refuses handles of another kind.
            let info = unsafe { std::mem::transmute::<usize, ParamInfo>(found) };
            let (mut offset, mut size) = (0, 0);
            while arguments.len() < 1024 {
                // SAFETY: the driver writes into both.
                if unsafe { info(function, arguments.len(), &raw mut offset, &raw mut size) } != 0 {
                    break;
                }
                arguments.push(size);
            }
            if !arguments.is_empty() {
                break;
            }
        }
        let mut name = String::new();
        for getter in [c"cuFuncGetName", c"cuKernelGetName"] {
            let found = loader::of_driver(getter);
            let mut text = std::ptr::null();
            // SAFETY: the driver's function of this name, which writes the address of a C string.
            let named = found != 0
                && unsafe { std::mem::transmute::<usize, Name>(found)(&raw mut text, function) }
                    == 0
                && !text.is_null();
            if named {
                // SAFETY: a C string of the driver's.
                name = unsafe { CStr::from_ptr(text) }
                    .to_string_lossy()
                    .to_lowercase();
                break;
            }
        }
        if name.contains("nccl") {
            hold_still();
        }
        let rereads = REREADING.iter().any(|part| name.contains(part));
        crate::log!(
            "{} {rereads} {arguments:?}",
            name.get(..90).unwrap_or(&name)
        );
        Self { arguments, rereads }
    }
}

/// Parts of the names of kernels that read their input more than once.
const REREADING: [&str; 12] = [
    "gemm",
    "cutlass",
    "xmma",
    "nvjet",
    "conv",
    "grad_engine",
    "fmha",
    "flash",
    "attention",
    "cudnn",
    "mma",
    "gemv",
];

/// Kernels that wait for other processes, as NCCL's do, may be waiting for what the net would hold back.
fn hold_still() {
    if WATCHING.swap(false, Ordering::Relaxed) {
        say("NCCL is in use, so what lies in host memory stays there and slows the job down");
    }
}

/// Work is about to be put on the GPU.
pub fn before(work: &Work) {
    guarded(|net| net.before(work));
}

/// The work that was shown last has been put on the GPU, and is being timed.
pub fn after() {
    guarded(Net::after);
}

fn guarded(step: impl FnOnce(&mut Net)) {
    let done = catch_unwind(AssertUnwindSafe(|| {
        if let Some(mut net) = opened() {
            step(&mut net);
        }
    }));
    if done.is_err() {
        WATCHING.store(false, Ordering::Relaxed);
        say("an error of its own; nothing moves any more");
    }
}
