//! The virtual GPU: a preloaded library that stands in for the CUDA runtime, the driver and the
//! libraries above them, so that PyTorch runs unmodified on a machine without a GPU.
//!
//! Kernels do nothing. Device memory is address space without pages behind it. What a program's
//! memory or control flow can depend on (sizes, addresses, properties, errors, statuses) is
//! modelled; everything else succeeds and is counted ([`ledger`]). An answer that matters and is
//! only guessed is reported as a named assumption.
//!
//! Rules of this crate, which is the only one that speaks C:
//! - every entry point is defined through [`export!`] or one of the macros in [`stubs`], which
//!   stop a panic from unwinding into C and count the call;
//! - pointers from the caller are written only where the vendor's header says they are outputs,
//!   and never when null;
//! - the library allocates bookkeeping only, never what it pretends to hold;
//! - no Python, no logging, no threads of its own.

pub mod board;
pub mod busy;
pub mod clock;
pub mod config;
pub mod context;
pub mod cublas;
pub mod cublaslt;
pub mod cudnn;
pub mod cudnn_costs;
pub mod device;
pub mod driver;
pub mod driver_base;
pub mod families;
pub mod graphs;
pub mod inner;
pub mod kernels;
pub mod ledger;
pub mod libraries;
pub mod loader;
pub mod meeting;
pub mod memory;
pub mod nccl;
pub mod nvml;
pub mod nvrtc;
pub mod reduce;
pub mod report;
pub mod runtime;
pub mod shared;
pub mod streams;
pub mod stubs;
pub mod sync;

/// Defines an exported C function: counts the call, and turns a panic into `$panic` instead of
/// letting it unwind into C.
#[macro_export]
macro_rules! export {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident : $ty:ty),* $(,)?) -> $ret:ty, or $panic:expr; $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            static CALLS: $crate::ledger::Counter = $crate::ledger::Counter::new(stringify!($name));
            CALLS.hit();
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| $body)).unwrap_or($panic)
        }
    )*};
}

/// Writes `value` to an output pointer of the caller, unless it is null.
///
/// # Safety
/// `out` must be null or valid for a write of `T`, as the vendor's header promises.
pub unsafe fn put<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: the caller's contract, above. Outputs may be packed in foreign structs.
        unsafe { out.write_unaligned(value) }
    }
}
