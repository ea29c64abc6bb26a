//! Which PyTorch a project asks for: what a newer one brought is no advice for it.

/// The newest PyTorch that a project allows: major and minor version, the greatest numbers if it names no end.
pub type Newest = (u32, u32);

/// Whether a file of this name may say which packages a project needs.
pub fn may_pin(name: &str) -> bool {
    let extension = extension(name);
    matches!(name, "setup.py" | "setup.cfg" | "pyproject.toml")
        || matches!(extension, Some("yml" | "yaml"))
        || extension == Some("txt") && name.starts_with("require")
}

fn extension(name: &str) -> Option<&str> {
    name.rsplit_once('.').map(|(_, extension)| extension)
}

/// The newest PyTorch that such a file allows; nothing if it does not say.
pub fn newest_torch(name: &str, text: &str) -> Option<Newest> {
    let is_list = extension(name) == Some("txt");
    // Any settings may be YAML; an environment of conda has these.
    if matches!(extension(name), Some("yml" | "yaml")) && !text.contains("dependencies:") {
        return None;
    }
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    lines.filter_map(|line| newest_in(line, is_list)).max()
}

/// What one line allows. In a list of requirements, a bare name allows all; elsewhere it may be a channel or a package.
fn newest_in(line: &str, is_list: bool) -> Option<Newest> {
    let belongs = |each: char| each.is_alphanumeric() || "-_./".contains(each);
    let (at, _) = line.match_indices("torch").find(|(at, name)| {
        let before = line[..*at].strip_suffix("py").unwrap_or(&line[..*at]);
        !before.ends_with(belongs) && !line[at + name.len()..].starts_with(belongs)
    })?;
    let rest = line[at + "torch".len()..].trim_start_matches(['"', '\'', ' ', '\t']);
    let (spec, _) = rest
        .split_once([';', '"', '\''])
        .map_or((rest, ""), |parts| {
            // `torch = "^1.13"`
            match (parts.0.trim(), parts.1) {
                ("=", inside) => (inside.split(['"', '\'']).next().unwrap_or_default(), ""),
                _ => parts,
            }
        });
    let allowed = spec
        .split(',')
        .filter_map(|clause| newest_of(clause.trim()))
        .min();
    allowed.or_else(|| {
        let is_bounded_below = spec.starts_with('>') || spec.starts_with('!');
        (is_list || is_bounded_below).then_some((u32::MAX, u32::MAX))
    })
}

/// The newest version that one clause allows: `==1.13.1`, `<2`, `~=1.8`. Nothing if it names no end.
fn newest_of(clause: &str) -> Option<Newest> {
    let digits = clause.trim_start_matches(['=', '<', '>', '~', '^', '!', ' ']);
    let operator = clause[..clause.len() - digits.len()].trim();
    let mut parts = digits
        .split(['.', '=', '+'])
        .map_while(|part| part.trim().parse::<u32>().ok());
    let major = parts.next()?;
    let minor = parts.next();
    let patch = parts.next();
    match operator {
        "" | "=" | "==" | "===" | "<=" => Some((major, minor.unwrap_or(u32::MAX))),
        "^" => Some((major, u32::MAX)),
        "~=" | "~" if patch.is_none() => Some((major, u32::MAX)),
        "~=" | "~" => Some((major, minor?)),
        // `<2`, `<2.0`, `<1.9`, `<1.9.1`
        "<" => Some(match (minor, patch) {
            (Some(minor), Some(1..)) => (major, minor),
            (Some(minor @ 1..), _) => (major, minor - 1),
            _ => (major.checked_sub(1)?, u32::MAX),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: u32 = u32::MAX;

    #[test]
    fn a_requirement_names_the_newest_version_that_it_allows() {
        for (line, newest) in [
            ("torch==1.13.1", Some((1, 13))),
            ("torch == 1.1.0", Some((1, 1))),
            (
                "torch==1.13.1+cu117 ; python_version < '3.11'",
                Some((1, 13)),
            ),
            ("torch>=1.7,<2", Some((1, ANY))),
            ("torch<2.0", Some((1, ANY))),
            ("torch<1.9", Some((1, 8))),
            ("torch<=2.1", Some((2, 1))),
            ("torch~=1.8", Some((1, ANY))),
            ("torch~=1.8.1", Some((1, 8))),
            ("torch==2.*", Some((2, ANY))),
            ("torch", Some((ANY, ANY))),
            ("torch>=1.8", Some((ANY, ANY))),
            ("# torch==1.8", None),
            ("torchvision==0.12", None),
            ("torch-geometric==2.0", None),
            ("pytorch-lightning==1.5", None),
            (
                "--extra-index-url https://download.pytorch.org/whl/cu113",
                None,
            ),
        ] {
            assert_eq!(newest_torch("requirements.txt", line), newest, "{line}");
        }
        let both =
            "torch==1.8.0; sys_platform == 'darwin'\ntorch==2.1.0; sys_platform != 'darwin'\n";
        assert_eq!(newest_torch("requirements-gpu.txt", both), Some((2, 1)));
    }

    #[test]
    fn environments_and_packages_say_it_in_their_own_ways() {
        let conda = "channels:\n  - pytorch\ndependencies:\n  - pytorch=1.11.0=py3.7_cuda11.3\n  - torchvision=0.12\n";
        for (name, text, newest) in [
            ("environment.yml", conda, Some((1, 11))),
            (
                "net.yaml",
                "dependencies:\n  - pip:\n    - torch==1.4\n",
                Some((1, 4)),
            ),
            ("config.yaml", "torch: 1.4\n", None),
            (
                "environment.yml",
                "channels:\n- pytorch\ndependencies:\n- python\n",
                None,
            ),
            (
                "setup.py",
                "import torch\nsetup(install_requires=['torch==1.7.1', 'numpy'])\n",
                Some((1, 7)),
            ),
            (
                "setup.py",
                "setup(install_requires=[\"torch>=1.6\"])\n",
                Some((ANY, ANY)),
            ),
            (
                "setup.cfg",
                "install_requires =\n    torch>=1.9,<2\n",
                Some((1, ANY)),
            ),
            ("pyproject.toml", "torch = \"^1.13\"\n", Some((1, ANY))),
            ("pyproject.toml", "torch = \"1.13.1\"\n", Some((1, 13))),
            (
                "pyproject.toml",
                "dependencies = [\"torch~=2.2.0\", \"numpy\"]\n",
                Some((2, 2)),
            ),
        ] {
            assert!(may_pin(name), "{name}");
            assert_eq!(newest_torch(name, text), newest, "{text}");
        }
        assert!(!may_pin("notes.txt") && !may_pin("train.py"));
    }
}
