//! The installed packages that decide what a job needs: PyTorch, what it is built on, and what is built on it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use crate::host::Host;

/// The names and versions of the packages around `host` that matter to a job's memory. Of two that have one name, the first
/// counts, as for Python.
pub fn packages(host: &Host) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for place in &host.paths {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if let Some((name, version)) = name.to_str().and_then(distribution)
                && (is_base(&name) || requires_torch(&entry.path().join("METADATA")))
            {
                found.entry(name).or_insert(version);
            }
        }
    }
    found
}

/// The name and the version in the name of a `NAME-VERSION.dist-info`.
fn distribution(name: &str) -> Option<(String, String)> {
    let (name, version) = name.strip_suffix(".dist-info")?.rsplit_once('-')?;
    Some((name.to_lowercase().replace('-', "_"), version.to_owned()))
}

/// What PyTorch is, and is built on.
fn is_base(name: &str) -> bool {
    ["torch", "triton"].contains(&name) || name.starts_with("nvidia_")
}

/// Whether a package says that it needs PyTorch, always or for some of what it does.
fn requires_torch(metadata: &Path) -> bool {
    let Ok(file) = fs::File::open(metadata) else {
        return false;
    };
    BufReader::new(file)
        .lines()
        .map_while(Result::ok)
        // The description follows.
        .take_while(|line| !line.is_empty())
        .any(|line| {
            let needs = line.strip_prefix("Requires-Dist:").map(str::trim_start);
            needs.is_some_and(|needs| {
                let end = needs.find(|c: char| !(c.is_alphanumeric() || "-_.".contains(c)));
                needs[..end.unwrap_or(needs.len())].eq_ignore_ascii_case("torch")
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pytorch_is_built_on_and_what_is_built_on_it() {
        let place = tempfile::tempdir().unwrap();
        let site = place.path().join("lib/python3.12/site-packages");
        for (name, metadata) in [
            ("torch-2.11.0+cu130", "Name: torch\n"),
            ("nvidia_cudnn_cu13-9.1", ""),
            ("timm-1.0", "Requires-Dist: torch>=2\n"),
            (
                "transformers-5.1",
                "Requires-Dist: numpy\nRequires-Dist: torch ; extra == \"x\"\n",
            ),
            ("numpy-2.3", "Name: numpy\n\nRequires-Dist: torch\n"),
            ("torchless-1.0", "Requires-Dist: torchless-core\n"),
        ] {
            let info = site.join(format!("{name}.dist-info"));
            fs::create_dir_all(&info).unwrap();
            fs::write(info.join("METADATA"), metadata).unwrap();
        }
        // As in an image that has torch for all environments.
        let system = place.path().join("system");
        for name in ["torch-2.4.1", "triton-3.6.0"] {
            fs::create_dir_all(system.join(format!("{name}.dist-info"))).unwrap();
        }
        let host = Host {
            python: place.path().join("bin/python"),
            package: place.path().join("elsewhere/oomph"),
            paths: vec!["".into(), place.path().join("python312.zip"), site, system],
        };
        let found: Vec<_> = packages(&host).into_iter().collect();
        let expected = [
            ("nvidia_cudnn_cu13", "9.1"),
            ("timm", "1.0"),
            ("torch", "2.11.0+cu130"),
            ("transformers", "5.1"),
            ("triton", "3.6.0"),
        ];
        assert_eq!(found, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }
}
