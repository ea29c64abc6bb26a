//! Functions that compile to the same code become one, which makes the wheel 2 % smaller. rustc links with LLD on this target alone.

fn main() {
    let target = ["ARCH", "OS"].map(|part| std::env::var(format!("CARGO_CFG_TARGET_{part}")));
    if target == [Ok("x86_64".to_owned()), Ok("linux".to_owned())] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--icf=all");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
