//! The command without Python around it, for development.

fn main() {
    std::process::exit(oomph_cli::main(std::env::args_os().skip(1)));
}
