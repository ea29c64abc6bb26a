//! The command without Python around it, as `cargo install` has it: it reads files, and runs no script.

fn main() {
    std::process::exit(oomph_cli::main(std::env::args_os().skip(1)).into());
}
