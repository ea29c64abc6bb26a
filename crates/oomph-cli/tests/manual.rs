//! The manual pages in `python/oomph.data` are those of the command; written anew with `OOMPH_UPDATE_DOCS`.

use std::fs;
use std::path::Path;

#[test]
fn the_manual_pages_are_those_of_the_command() {
    let place =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/oomph.data/data/share/man/man1");
    let update = std::env::var_os("OOMPH_UPDATE_DOCS").is_some();
    if update {
        fs::remove_dir_all(&place).unwrap();
        fs::create_dir_all(&place).unwrap();
    }
    let pages = oomph_cli::manual::pages().unwrap();
    for (name, page) in &pages {
        let path = place.join(name);
        if update {
            fs::write(&path, page).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == *page,
            "{name} is not up to date: OOMPH_UPDATE_DOCS=1 cargo test -p oomph-cli --test manual"
        );
    }
    let kept = fs::read_dir(&place).unwrap().count();
    assert_eq!(
        kept,
        pages.len(),
        "there are pages of commands that are gone"
    );
}
