//! Which PyTorch a project asks for: what a newer one brought is no advice for it.

/// The newest PyTorch that a project allows: major and minor version, the greatest numbers if it names no end.
pub type Newest = (u32, u32);

/// Whether a file of this name may say which packages a project needs.
pub fn may_pin(name: &str) -> bool {
    let extension = extension(name);
    matches!(name, "setup.py" | "setup.cfg" | "pyproject.toml")
        || matches!(extension, Some("yml" | "yaml"))
        || extension == Some("txt") && name.starts_with("require")
        || is_prose(name)
}

/// Whether a file says it among other things: installation in a README or a Dockerfile.
fn is_prose(name: &str) -> bool {
    name.starts_with("Dockerfile") || name.to_ascii_lowercase().starts_with("readme")
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
    if is_prose(name) {
        let lines = text.lines().map(str::to_ascii_lowercase);
        let said = lines.filter_map(|line| newest_in_prose(&line)).max();
        return said.filter(|newest| *newest != ANY);
    }
    let lines = || {
        text.lines()
            .map(|line| line.split('#').next().unwrap_or_default())
    };
    let torch = lines().filter_map(|line| newest_in(line, is_list)).max();
    // A torchvision goes with one PyTorch.
    let beside = lines().filter_map(torch_of_vision).max();
    match (torch, beside) {
        (Some(torch), Some(beside)) => Some(torch.min(beside)),
        (torch, beside) => torch.or(beside),
    }
}

/// All versions are allowed.
const ANY: Newest = (u32::MAX, u32::MAX);

/// The PyTorch that a line asks for by its torchvision: `torchvision==0.12.0` is made for 1.11.
fn torch_of_vision(line: &str) -> Option<Newest> {
    let (_, rest) = line.split_once("torchvision")?;
    let version = rest
        .trim_start()
        .strip_prefix("==")
        .or_else(|| rest.strip_prefix('='))?;
    match newest_of(version.trim())? {
        (0, minor @ 3..=14) => Some((1, minor - 1)),
        (0, minor @ 15..=99) => Some((2, minor - 15)),
        _ => None,
    }
}

/// What a line of text asks for: `pip install torch==1.12.1`, `- PyTorch 1.9`. Text that only mentions a version asks for
/// nothing.
fn newest_in_prose(line: &str) -> Option<Newest> {
    const MOST_OF_AN_ITEM: usize = 40;
    let trimmed = line.trim_start();
    // A line of its own is one as well: `PyTorch 1.6.0`, `Python 3.7, PyTorch 1.6`.
    let begins = trimmed.starts_with(['-', '*', '+', '|'])
        || ["pytorch", "torch", "python"]
            .iter()
            .any(|name| trimmed.starts_with(name));
    let is_item = begins && trimmed.len() <= MOST_OF_AN_ITEM;
    line.match_indices("torch")
        .filter_map(|(at, name)| {
            let before = line[..at].strip_suffix("py").unwrap_or(&line[..at]);
            if before.ends_with(|each: char| each.is_alphanumeric() || "-_./".contains(each)) {
                return None;
            }
            let rest = line[at + name.len()..].trim_start_matches([' ', '*', '`', '(', ':']);
            let version = rest.trim_start_matches(['=', '<', '>', '~', ' ', 'v']);
            let operator = rest[..rest.len() - version.len()].trim_matches([' ', 'v']);
            let end = version.find(|each: char| !each.is_ascii_digit() && each != '.');
            let (version, after) = version.split_at(end.unwrap_or(version.len()));
            let (major, minor) = newest_of(version.trim_end_matches('.'))?;
            // There is no 2.20: it is 2.2.0 that is meant.
            let newest = match (major, minor) {
                (1 | 2, 20..=99) => (major, minor / 10),
                other => other,
            };
            match operator {
                "=" | "==" | "<=" => Some(newest),
                "" if is_item && minor != u32::MAX => {
                    let goes_on = [
                        "+", "and", "or", "above", "later", "newer", "high", ">", "≥",
                    ]
                    .iter()
                    .any(|word| after.contains(word));
                    Some(if goes_on { ANY } else { newest })
                }
                ">" | ">=" | "~=" => Some(ANY),
                _ => None,
            }
        })
        .max()
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
        (is_list || is_bounded_below).then_some(ANY)
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
    fn a_readme_asks_for_a_version_where_it_says_what_to_install() {
        for (line, newest) in [
            (
                "    pip install torch==1.12.1+cu116 --extra-index-url https://x",
                Some((1, 12)),
            ),
            (
                "conda install pytorch==2.1.1 torchvision==0.16.1 -c pytorch",
                Some((2, 1)),
            ),
            ("* Pytorch ==2.20 ", Some((2, 2))),
            ("- PyTorch 1.9.0", Some((1, 9))),
            ("PyTorch 1.6.0", Some((1, 6))),
            ("Python 3.7, PyTorch 1.6", Some((1, 6))),
            ("PyTorch 1.6 or later", None),
            ("| torch | 1.9.0 |", None),
            ("- PyTorch 1.9.0 or newer", None),
            ("- PyTorch >= 1.7.0", None),
            ("We use `torch.compile` of PyTorch 2.0.", None),
            ("Code for PyTorch, see https://pytorch.org/1.7.0/", None),
            ("pip install torch", None),
        ] {
            assert!(may_pin("README.md"));
            assert_eq!(newest_torch("README.md", line), newest, "{line}");
            assert_eq!(newest_torch("Dockerfile", line), newest, "{line}");
        }
        let both = "pip install torch==1.4\n- PyTorch >= 1.4\n";
        assert_eq!(newest_torch("README", both), None);
    }

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
            ("torchvision==0.12", Some((1, 11))),
            ("torchvision==0.17.2", Some((2, 2))),
            ("torchvision>=0.12", None),
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
        let conda = "channels:\n  - pytorch\ndependencies:\n  - pytorch=1.11.0=py3.7_cuda11.3\n  - torchvision=0.12.0=py37_cu113\n";
        for (name, text, newest) in [
            ("environment.yml", conda, Some((1, 11))),
            (
                "environment.yml",
                "dependencies:\n  - torchvision=0.12.0=py37_cu113\n",
                Some((1, 11)),
            ),
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
