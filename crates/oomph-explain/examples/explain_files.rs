//! Explains snapshots, one line each.

fn main() -> std::io::Result<()> {
    for path in std::env::args_os().skip(1).map(std::path::PathBuf::from) {
        match oomph_trace::snapshot::read(std::fs::File::open(&path)?, &path) {
            Ok((trace, _)) => {
                let begin = std::time::Instant::now();
                let found = oomph_explain::explain(&trace, &oomph_explain::Options::default());
                println!(
                    "{} ({:.3} s, {} steps)\n   {}",
                    path.display(),
                    begin.elapsed().as_secs_f64(),
                    found.steps.len(),
                    found.verdict
                );
                for cause in &found.causes {
                    println!("     {} {}: {}", cause.id, cause.confidence, cause.verdict);
                }
                for category in &found.peak.categories {
                    println!(
                        "       {} {}",
                        category.category,
                        oomph_trace::Bytes(category.bytes)
                    );
                }
            }
            Err(error) => println!("error: {error}"),
        }
    }
    Ok(())
}
