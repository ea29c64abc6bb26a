//! The command without Python around it, for measuring and for tests:
//! `cargo run --release -p oomph-cli --example oomph -- lint PATH`. Scripts are run by the `python3` of the
//! PATH.

use std::path::{Path, PathBuf};

fn main() {
    oomph_cli::host::set(oomph_cli::host::Host {
        python: PathBuf::from("python3"),
        package: Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/oomph"),
        paths: Vec::new(),
    });
    std::process::exit(oomph_cli::main(std::env::args_os().skip(1)).into());
}
