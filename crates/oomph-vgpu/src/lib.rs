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
//! - the types of arguments say what the vendor's header promises ([`arguments`]), and outputs are
//!   never written when null; an entry point is `unsafe` where types cannot say it, and each unsafe
//!   block says why it may do what it does;
//! - the library allocates bookkeeping only, never what it pretends to hold;
//! - no Python, no logging, no threads of its own.

mod arguments;
mod board;
mod busy;
mod card;
mod clock;
mod config;
mod context;
mod cublas;
mod cublaslt;
mod cudnn;
mod cudnn_costs;
mod cudnn_plans;
mod cufft;
mod curand;
mod cusolver;
mod cusparse;
mod device;
mod driver;
mod driver_base;
mod driver_graphs;
mod families;
mod graphs;
mod inner;
mod kernels;
mod ledger;
mod libraries;
mod linked_in;
mod loader;
mod meeting;
mod memory;
mod mersenne;
mod modules;
mod moved;
mod nccl;
mod nvml;
mod nvrtc;
mod philox;
mod pools;
mod recurrent;
mod reduce;
mod reductions;
mod report;
mod runtime;
mod shared;
mod streams;
mod stubs;
mod sync;
mod tables;
mod walks;
mod watchdog;
mod work;

/// Defines exported C functions: each counts its calls and turns a panic into `$panic` instead of
/// letting it unwind into C. A function is `unsafe` if its arguments promise more than their types
/// say (see [`arguments`]).
#[macro_export]
macro_rules! export {
    ($($(#[$meta:meta])* $($words:ident)+ ($($arg:ident : $ty:ty),* $(,)?) -> $ret:ty, or $panic:expr; $body:block)*) => {$(
        $crate::entry! { [$($words)+] $(#[$meta])* ($($arg: $ty),*) -> $ret, or $panic; $body }
    )*};
}

/// One function of [`export!`].
#[macro_export]
macro_rules! entry {
    ([fn $name:ident] $($rest:tt)*) => { $crate::entry! { [extern "C" fn $name] $name $($rest)* } };
    ([unsafe fn $name:ident] $($rest:tt)*) => { $crate::entry! { [unsafe extern "C" fn $name] $name $($rest)* } };
    ([$($signature:tt)+] $name:ident $(#[$meta:meta])* ($($arg:ident : $ty:ty),*) -> $ret:ty, or $panic:expr; $body:block) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub $($signature)+($($arg: $ty),*) -> $ret {
            static CALLS: $crate::ledger::Counter = $crate::ledger::Counter::new(stringify!($name));
            CALLS.hit();
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| $body)).unwrap_or($panic)
        }
    };
}
