//! Gives the library the driver's SONAME. PyTorch's NVRTC stub links `libcuda.so.1`, which a
//! machine without a GPU lacks; a preloaded library with that name satisfies it, so one file
//! stands in for the runtime, the driver and the libraries above them.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rerun-if-changed=build.rs");
}
