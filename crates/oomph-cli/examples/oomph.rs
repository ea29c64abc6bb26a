//! The command without Python around it, for measuring and for tests:
//! `cargo run --release -p oomph-cli --example oomph -- lint PATH`.

fn main() {
    std::process::exit(oomph_cli::main(std::env::args_os().skip(1)).into());
}
