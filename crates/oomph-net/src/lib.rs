//! The net: a preloaded library that lets an untouched PyTorch job go on when GPU memory runs out.
//!
//! PyTorch gets its segments from `cudaMalloc` of the dynamic CUDA runtime, which [`runtime`] stands in front
//! of: segments are ranges of addresses, and what lies behind each part of them is device memory or host
//! memory ([`arena`]). All programs and libraries find the driver's functions by name; [`hooks`] stands in front
//! of those that put work on the GPU. So the net knows when nothing runs, and from the arguments of kernels it
//! learns what a step touches when ([`rhythm`], [`placement`], [`course`]).
//!
//! Results never depend on what it learned: an access finds its bytes wherever they lie, and what lies behind
//! an address changes only while all work that was put on the GPU is done and new work is held back.
//!
//! Rules of this crate, which speaks C like `oomph-vgpu`:
//! - nothing happens unless `OOMPH_NET` is set, and nothing before the process uses CUDA;
//! - each unsafe block says why it may do what it does, and no panic unwinds into C;
//! - where the library cannot be sure, it steps aside and says so in one line.

mod arena;
mod course;
mod demand;
mod driver;
mod gate;
mod gpu;
mod hooks;
mod known;
mod loader;
mod net;
mod placement;
mod rhythm;
mod runtime;
mod settings;

/// A line for the user.
fn say(text: &str) {
    // Not `eprintln!`, which panics when nobody reads standard error.
    let line = format!("oomph: net: {text}\n");
    // SAFETY: the line's bytes and their count.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
    }
}

/// A line for the file that `log=` names, if it names one.
#[macro_export]
macro_rules! log {
    ($($text:tt)*) => {
        if let Some(file) = $crate::settings::get().and_then(|settings| settings.log.as_ref()) {
            let line = format!("{}\n", format_args!($($text)*));
            // What cannot be written is not worth a failure.
            let _ = std::io::Write::write_all(&mut &*file, line.as_bytes());
        }
    };
}
