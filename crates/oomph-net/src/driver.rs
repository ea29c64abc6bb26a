//! The driver's functions that the net itself uses.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_int, c_uint, c_ulonglong, c_void};

use crate::gpu::{Gpu, Place, Refused, Way};
use crate::loader;

type Status = c_int;

macro_rules! functions {
    ($($field:ident: $name:literal, ($($argument:ty),*);)*) => {
        /// The functions, by the vendor's header.
        #[derive(Debug, Clone, Copy)]
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> Status,)*
        }

        impl Functions {
            /// All of them, or the name of one that the driver lacks.
            fn load() -> Result<Self, &'static CStr> {
                Ok(Self {
                    $($field: {
                        let found = loader::of_driver($name);
                        if found == 0 {
                            return Err($name);
                        }
                        // SAFETY: the driver's function of this name has this signature.
                        unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($argument),*) -> Status>(found) }
                    },)*
                })
            }
        }
    };
}

functions! {
    attribute: c"cuDeviceGetAttribute", (*mut c_int, c_int, c_int);
    current: c"cuCtxGetCurrent", (*mut u64);
    device: c"cuCtxGetDevice", (*mut c_int);
    push: c"cuCtxPushCurrent_v2", (u64);
    pop: c"cuCtxPopCurrent_v2", (*mut u64);
    synchronize: c"cuCtxSynchronize", ();
    info: c"cuMemGetInfo_v2", (*mut usize, *mut usize);
    reserve: c"cuMemAddressReserve", (*mut u64, usize, usize, u64, c_ulonglong);
    unreserve: c"cuMemAddressFree", (u64, usize);
    create: c"cuMemCreate", (*mut u64, usize, *const Properties, c_ulonglong);
    release: c"cuMemRelease", (u64);
    map: c"cuMemMap", (u64, usize, usize, u64, c_ulonglong);
    unmap: c"cuMemUnmap", (u64, usize);
    access: c"cuMemSetAccess", (u64, usize, *const Access, usize);
    granularity: c"cuMemGetAllocationGranularity", (*mut usize, *const Properties, c_int);
    copy: c"cuMemcpyAsync", (u64, u64, usize, u64);
    stream: c"cuStreamCreate", (*mut u64, c_uint);
    event: c"cuEventCreate", (*mut u64, c_uint);
    record: c"cuEventRecord", (u64, u64);
    await_event: c"cuEventSynchronize", (u64);
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Properties {
    kind: c_int,
    handles: c_int,
    location: Location,
    windows: *const c_void,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Access {
    location: Location,
    flags: c_int,
}

const DEVICE: c_int = 1;
const HOST_NUMA: c_int = 3;
const PINNED: c_int = 1;
const READ_AND_WRITE: c_int = 3;

// Attributes of a device.
const HAS_VIRTUAL_MEMORY: c_int = 102;
const HOST_NUMA_ID: c_int = 134;
const HAS_HOST_MEMORY: c_int = 141;

/// The driver of one GPU, for its primary context.
#[derive(Debug)]
pub struct Driver {
    call: Functions,
    context: u64,
    /// Which GPU.
    pub device: c_int,
    node: c_int,
    /// Made when first used.
    out: Cell<u64>,
    back: Cell<u64>,
    events: RefCell<Vec<u64>>,
}

/// A context of the driver.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    call: Functions,
    context: u64,
}

impl Context {
    /// Makes the context the thread's while `work` lasts.
    pub fn within<T>(self, work: impl FnOnce() -> T) -> T {
        let mut current = 0;
        // SAFETY: the driver writes into it.
        unsafe { (self.call.current)(&raw mut current) };
        if current == self.context {
            return work();
        }
        // SAFETY: a primary context, which lives as long as the process; what is pushed is popped.
        unsafe {
            (self.call.push)(self.context);
            let result = work();
            (self.call.pop)(&raw mut current);
            result
        }
    }
}

fn check(status: Status) -> Result<(), Refused> {
    if status == 0 { Ok(()) } else { Err(Refused) }
}

impl Driver {
    /// The driver of the calling thread's GPU, or why it cannot serve.
    pub fn open(granule: u64) -> Result<Self, String> {
        let call = Functions::load()
            .map_err(|name| format!("the driver has no {}", name.to_string_lossy()))?;
        let (mut context, mut device) = (0, 0);
        // SAFETY: the driver writes into both.
        let found =
            unsafe { (call.current)(&raw mut context) == 0 && (call.device)(&raw mut device) == 0 };
        if !found || context == 0 {
            return Err("this thread has no CUDA context".into());
        }
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: the driver writes into it.
            if unsafe { (call.attribute)(&raw mut value, which, device) } == 0 {
                value
            } else {
                0
            }
        };
        if attribute(HAS_VIRTUAL_MEMORY) == 0 {
            return Err("this GPU or driver has no virtual memory management".into());
        }
        if attribute(HAS_HOST_MEMORY) == 0 {
            return Err("this GPU or driver cannot put host memory behind device addresses".into());
        }
        let driver = Self {
            call,
            context,
            device,
            node: attribute(HOST_NUMA_ID).max(0),
            out: Cell::new(0),
            back: Cell::new(0),
            events: RefCell::default(),
        };
        for place in [Place::Device, Place::Host] {
            let mut size = 0;
            let properties = driver.properties(place);
            // SAFETY: the driver reads the one and writes into the other.
            let status = unsafe { (call.granularity)(&raw mut size, &raw const properties, 0) };
            if status != 0 || size == 0 || !granule.is_multiple_of(size as u64) {
                return Err(format!(
                    "the driver maps {place:?} memory in units of {size} bytes (status {status})"
                ));
            }
        }
        Ok(driver)
    }

    fn properties(&self, place: Place) -> Properties {
        let location = match place {
            Place::Device => Location {
                kind: DEVICE,
                id: self.device,
            },
            Place::Host => Location {
                kind: HOST_NUMA,
                id: self.node,
            },
        };
        Properties {
            kind: PINNED,
            handles: 0,
            location,
            windows: std::ptr::null(),
            flags: [0; 8],
        }
    }

    /// The context that all of it is done in.
    pub fn context(&self) -> Context {
        Context {
            call: self.call,
            context: self.context,
        }
    }

    /// Waits until nothing runs.
    pub fn drain(&self) -> Result<(), Refused> {
        // SAFETY: waits for the context's work.
        check(unsafe { (self.call.synchronize)() })
    }

    fn stream(&self, way: Way) -> Result<u64, Refused> {
        const NON_BLOCKING: c_uint = 1;
        let kept = match way {
            Way::Out => &self.out,
            Way::In => &self.back,
        };
        let mut stream = kept.get();
        if stream == 0 {
            // SAFETY: the driver writes into it.
            check(unsafe { (self.call.stream)(&raw mut stream, NON_BLOCKING) })?;
            kept.set(stream);
        }
        Ok(stream)
    }
}

impl Gpu for Driver {
    fn create(&self, place: Place, size: u64) -> Result<u64, Refused> {
        let mut handle = 0;
        let properties = self.properties(place);
        // SAFETY: the driver reads the one and writes into the other.
        check(unsafe {
            (self.call.create)(&raw mut handle, size as usize, &raw const properties, 0)
        })?;
        Ok(handle)
    }

    fn release(&self, handle: u64) {
        // SAFETY: a handle of `create`, which is used no more.
        unsafe { (self.call.release)(handle) };
    }

    fn reserve(&self, size: u64) -> Result<u64, Refused> {
        let mut at = 0;
        // SAFETY: the driver writes into it.
        check(unsafe { (self.call.reserve)(&raw mut at, size as usize, 0, 0, 0) })?;
        Ok(at)
    }

    fn unreserve(&self, at: u64, size: u64) {
        // SAFETY: a range of `reserve`, with nothing behind it.
        unsafe { (self.call.unreserve)(at, size as usize) };
    }

    fn map(&self, at: u64, size: u64, handle: u64) -> Result<(), Refused> {
        let access = Access {
            location: Location {
                kind: DEVICE,
                id: self.device,
            },
            flags: READ_AND_WRITE,
        };
        // SAFETY: addresses of `reserve` with nothing behind them, and memory of this size.
        unsafe {
            check((self.call.map)(at, size as usize, 0, handle, 0))?;
            check((self.call.access)(at, size as usize, &raw const access, 1)).inspect_err(|_| {
                (self.call.unmap)(at, size as usize);
            })
        }
    }

    fn unmap(&self, at: u64, size: u64) -> Result<(), Refused> {
        // SAFETY: exactly what `map` mapped; nothing runs that could use it.
        check(unsafe { (self.call.unmap)(at, size as usize) })
    }

    fn copy(&self, to: u64, from: u64, size: u64, way: Way) -> Result<(), Refused> {
        let stream = self.stream(way)?;
        // SAFETY: both ranges are mapped, and stay so until the caller has waited.
        check(unsafe { (self.call.copy)(to, from, size as usize, stream) })
    }

    fn mark(&self, way: Way) -> Result<u64, Refused> {
        const WITHOUT_TIME: c_uint = 2;
        let stream = self.stream(way)?;
        let mut event = self.events.borrow_mut().pop().unwrap_or(0);
        // SAFETY: an event of this context, or the place for one.
        unsafe {
            if event == 0 {
                check((self.call.event)(&raw mut event, WITHOUT_TIME))?;
            }
            check((self.call.record)(event, stream))?;
        }
        Ok(event)
    }

    fn wait(&self, mark: u64) -> Result<(), Refused> {
        // SAFETY: an event of `mark`.
        let status = unsafe { (self.call.await_event)(mark) };
        self.events.borrow_mut().push(mark);
        check(status)
    }

    fn free(&self) -> u64 {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes into both.
        unsafe { (self.call.info)(&raw mut free, &raw mut total) };
        free as u64
    }
}
