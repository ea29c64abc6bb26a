//! Which PyTorch a project asks for: what a newer one brought is no advice for it.

/// The newest PyTorch that a project allows: major and minor version, the greatest numbers if it names no end.
pub type Newest = (u32, u32);

/// Whether a file of this name may say which packages a project needs.
pub fn may_pin(name: &str) -> bool {
    let extension = extension(name);
    matches!(
        name,
        "setup.py" | "setup.cfg" | "pyproject.toml" | "Pipfile" | "runtime.txt" | ".python-version"
    ) || matches!(extension, Some("yml" | "yaml"))
        || extension == Some("txt") && names_an_environment(name)
        || is_prose(name)
}

/// Whether a file says it among other things: installation in a README or a Dockerfile.
fn is_prose(name: &str) -> bool {
    name.starts_with("Dockerfile")
        || name.to_ascii_lowercase().ends_with(".dockerfile")
        || name.to_ascii_lowercase().starts_with("readme")
        || name.to_ascii_lowercase().starts_with("install")
        || matches!(extension(name), Some("sh" | "bash")) && names_an_environment(name)
}

/// Whether a file's name says that it makes an environment: `requirements-gpu.txt`, `create_env.sh`.
fn names_an_environment(name: &str) -> bool {
    ["install", "require", "setup", "env", "conda"]
        .iter()
        .any(|word| name.contains(word))
}

fn extension(name: &str) -> Option<&str> {
    name.rsplit_once('.').map(|(_, extension)| extension)
}

/// The newest PyTorch that such a file allows; nothing if it does not say.
pub fn newest_torch(name: &str, text: &str) -> Option<Newest> {
    // Any settings may be YAML; an environment of conda has these.
    if matches!(extension(name), Some("yml" | "yaml")) && !text.contains("dependencies:") {
        return None;
    }
    if is_prose(name) {
        let mut said = None;
        // What a section about installation names, it asks for.
        let mut asked = false;
        for line in text.lines().map(str::to_ascii_lowercase) {
            if line.starts_with('#') {
                asked = asks(&line);
            }
            said = said.max(newest_in_prose(&line, asked));
        }
        return said.filter(|newest| *newest != ANY);
    }
    let lines = || {
        text.lines()
            .map(|line| line.split('#').next().unwrap_or_default())
    };
    let torch = lines().filter_map(newest_in).max();
    // A torchvision goes with one PyTorch, and a Python has a last one.
    let beside = lines().filter_map(torch_of_vision).max();
    let python = lines().filter_map(|line| newest_for_python(python_of(name, line)?));
    [torch, beside, python.max()].into_iter().flatten().min()
}

/// The newest Python that a line allows: `- python<3.8`, `python_requires=">=3.6,<3.8"`, `requires-python = "==3.7.*"`,
/// `python_version = "3.7"`, `python-3.7.9`.
fn python_of(name: &str, line: &str) -> Option<Newest> {
    const FIELDS: &[&str] = &[
        "python_requires",
        "requires-python",
        "python_version",
        "python",
    ];
    let line = line.trim().trim_start_matches(['-', ' ', '"', '\'']);
    let spec = match name {
        ".python-version" => line,
        "runtime.txt" => line.strip_prefix("python-")?,
        _ => {
            // A call's arguments may stand on one line.
            let (at, field) = FIELDS
                .iter()
                .find_map(|field| Some((line.find(field)?, field)))?;
            let begins = at == 0 || *field == "python_requires";
            line.get(at + field.len()..).filter(|_| begins)?
        }
    };
    let spec = spec.trim_start();
    // `python = ">=3.6"` has an equals sign of its own.
    let inside = spec
        .strip_prefix('=')
        .map(str::trim_start)
        .and_then(|rest| rest.strip_prefix(['"', '\'']))
        .and_then(|rest| rest.split(['"', '\'']).next());
    let is_spec = spec.starts_with(['=', '<', '>', '~', '!'])
        || matches!(name, ".python-version" | "runtime.txt");
    let spec = inside.or_else(|| is_spec.then_some(spec))?;
    let spec = match name {
        // `python_requires = >=3.6, <3.8`
        "setup.cfg" => spec.strip_prefix("= ").unwrap_or(spec),
        _ => spec,
    };
    spec.split(',')
        .filter_map(|clause| newest_of(clause.trim().trim_matches(['"', '\''])))
        .min()
}

/// The last PyTorch for the Python that a README asks for: `- Python 3.6`, `conda create -n env python=3.7`. Nothing if it
/// names none, or one of which newer ones will do as well.
pub fn newest_torch_for_python(name: &str, text: &str) -> Option<Newest> {
    const MOST_OF_AN_ITEM: usize = 60;
    if !is_prose(name) {
        return None;
    }
    let lines = text.lines().map(str::to_ascii_lowercase);
    let newest = lines.filter_map(|line| {
        let line = line.trim_start_matches(|each: char| " \t-*+|>`".contains(each));
        let version = if line.starts_with("python") && line.len() <= MOST_OF_AN_ITEM {
            line.strip_prefix("python")?
        } else if let Some(version) = line.strip_prefix("from python:") {
            version
        } else if line.contains("conda create") || line.contains("conda install") {
            return Some(newest_for_python(python_of_conda(line)?));
        } else {
            return None;
        };
        let version = version.trim_start_matches([' ', '=', ':', '*', '`', '|', 'v', '(']);
        let end = version.find(|each: char| !each.is_ascii_digit() && each != '.');
        let (version, after) = version.split_at(end.unwrap_or(version.len()));
        let near = after.trim_start_matches([' ', '*', '`', ')']);
        let up_to = near
            .strip_prefix('-')
            .is_some_and(|to| to.starts_with(|each: char| each.is_ascii_digit()));
        let goes_on = up_to
            || ["+", "~", "<", ">", "/", "or ", "to ", "and "]
                .iter()
                .any(|word| near.starts_with(word))
            || ["above", "later", "newer", "higher", "greater"]
                .iter()
                .any(|word| after.contains(word));
        let is_name =
            after.starts_with(|each: char| each == '_' || each.is_alphabetic() && each != 'x');
        // Of `3` alone any will do.
        let is_one = version.trim_end_matches('.').contains('.') && !goes_on && !is_name;
        is_one.then(|| newest_for_python(newest_of(version)?))
    });
    // One that has no last PyTorch yet allows any.
    newest.map(|newest| newest.unwrap_or(ANY)).max()
}

/// The newest Python that a command of conda's asks for: `conda create -n env "python<3.8"`.
fn python_of_conda(line: &str) -> Option<Newest> {
    const ENDS: [char; 4] = [' ', '"', '\'', '`'];
    line.match_indices("python").find_map(|(at, name)| {
        let spec = line[at + name.len()..].split(ENDS).next()?;
        let begins = line[..at].ends_with(ENDS) && spec.starts_with(['=', '<', '>', '~']);
        let clauses = spec.split(',').filter_map(newest_of);
        begins.then(|| clauses.min())?
    })
}

/// The last PyTorch that was built for a Python.
fn newest_for_python(python: Newest) -> Option<Newest> {
    match python {
        (2, _) => Some((1, 4)),
        (3, 0..=5) => Some((1, 5)),
        (3, 6) => Some((1, 10)),
        (3, 7) => Some((1, 13)),
        (3, 8) => Some((2, 4)),
        _ => None,
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

/// Whether a line is about what a program needs or was tried with.
fn asks(line: &str) -> bool {
    const WORDS: &[&str] = &[
        "install",
        "tested",
        "develop",
        "require",
        "depend",
        "environment",
        "version",
        "python 2",
        "python 3",
        "python2",
        "python3",
        "cuda ",
    ];
    WORDS.iter().any(|word| line.contains(word))
}

/// What a line of text asks for: `pip install torch==1.12.1`, `- PyTorch 1.9`, `tested with PyTorch 1.0`. Text that only
/// mentions a version asks for nothing.
fn newest_in_prose(line: &str, asked: bool) -> Option<Newest> {
    const MOST_OF_AN_ITEM: usize = 40;
    let trimmed = line.trim_start();
    // A line of its own is one as well: `PyTorch 1.6.0`, `Python 3.7, PyTorch 1.6`.
    let begins = trimmed.starts_with(['-', '*', '+', '|'])
        || ["pytorch", "torch", "python"]
            .iter()
            .any(|name| trimmed.starts_with(name));
    let is_image = trimmed.starts_with("from ") && trimmed.contains("torch:");
    if let Some((_, tag)) = trimmed.split_once("nvcr.io/nvidia/pytorch:") {
        return torch_of_nvidia(tag);
    }
    // Wheels of an extension are made for one: `-f https://…/whl/torch-1.6.0.html`.
    if let Some((_, made_for)) = trimmed.split_once("/whl/torch-") {
        return version_in(made_for).map(|(newest, _)| newest);
    }
    let is_asked = asked || is_image || asks(line) || begins && trimmed.len() <= MOST_OF_AN_ITEM;
    line.match_indices("torch")
        .filter_map(|(at, name)| {
            let before = line[..at].strip_suffix("py").unwrap_or(&line[..at]);
            // `FROM pytorch/pytorch:1.4-cuda10.1`
            let is_part = |each: char| each.is_alphanumeric() || "-_./".contains(each);
            if before.ends_with(is_part) && !is_image {
                return None;
            }
            let rest = &line[at + name.len()..];
            // `[PyTorch](https://pytorch.org/) 1.0`
            let rest = rest
                .strip_prefix("](")
                .and_then(|link| link.split_once(')'))
                .map_or(rest, |(_, after)| after);
            let rest = rest.trim_start_matches([' ', '*', '`', '(', ':', '|', '[']);
            let rest = rest.strip_prefix("version").unwrap_or(rest);
            let version = rest.trim_start_matches(['=', '<', '>', '~', ' ', 'v', ':', '≥', '≤']);
            let operator = rest[..rest.len() - version.len()].trim_matches([' ', 'v', ':']);
            let (newest, after) = version_in(version)?;
            match operator {
                "=" | "==" | "<=" | "≤" => Some(newest),
                "" if is_asked && newest.1 != u32::MAX => {
                    // `1.0 and 1.7`: both will do.
                    let mut newest = newest;
                    let mut after = after;
                    while let Some((other, rest)) = ["and", "or", "to", "/", ",", "-", "~", "&"]
                        .iter()
                        .find_map(|word| after.trim_start().strip_prefix(word))
                        .and_then(|rest| version_in(rest.trim_start_matches([' ', 'v'])))
                    {
                        newest = newest.max(other);
                        after = rest;
                    }
                    let near = after.split([',', ';']).next().unwrap_or_default();
                    let near = near.split(" python").next().unwrap_or_default();
                    let goes_on = ["above", "later", "newer", "high", "latest", ">", "≥"]
                        .iter()
                        .any(|word| near.contains(word))
                        || near
                            .trim_start_matches(['*', '`', 'x', '.'])
                            .starts_with('+')
                            && !near.contains("+c")
                        || line.contains("at least");
                    Some(if goes_on { ANY } else { newest })
                }
                ">" | ">=" | "~=" | "≥" => Some(ANY),
                _ => None,
            }
        })
        .max()
}

/// The PyTorch in an image of NVIDIA's, by its year and month: `20.12-py3`.
fn torch_of_nvidia(tag: &str) -> Option<Newest> {
    const FIRST: [((u32, u32), Newest); 13] = [
        ((19, 1), (1, 0)),
        ((19, 5), (1, 1)),
        ((19, 8), (1, 2)),
        ((19, 10), (1, 3)),
        ((20, 1), (1, 4)),
        ((20, 3), (1, 5)),
        ((20, 6), (1, 6)),
        ((20, 8), (1, 7)),
        ((20, 11), (1, 8)),
        ((21, 4), (1, 9)),
        ((21, 7), (1, 10)),
        ((21, 11), (1, 11)),
        ((22, 3), (1, 12)),
    ];
    let made = newest_of(tag.split('-').next()?)?;
    // Later ones have 1.13 or newer.
    if made >= (22, 7) {
        return Some((2, u32::MAX));
    }
    FIRST
        .iter()
        .rev()
        .find(|(first, _)| made >= *first)
        .map(|(_, torch)| *torch)
}

/// The version that a text begins with, and what follows it.
fn version_in(text: &str) -> Option<(Newest, &str)> {
    let end = text.find(|each: char| !each.is_ascii_digit() && each != '.');
    let (version, after) = text.split_at(end.unwrap_or(text.len()));
    let newest = match newest_of(version.trim_end_matches('.'))? {
        // There is no 2.20: it is 2.2.0 that is meant.
        (major @ (1 | 2), minor @ 20..=99) => (major, minor / 10),
        // A year, a month, a point of a list.
        (3.., _) => return None,
        other => other,
    };
    Some((newest, after))
}

/// What one line allows. A bare name says nothing: a README may name the version.
fn newest_in(line: &str) -> Option<Newest> {
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
        is_bounded_below.then_some(ANY)
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
            ("| torch | 1.9.0 |", Some((1, 9))),
            ("- PyTorch 1.9.0 or newer", None),
            ("- PyTorch >= 1.7.0", None),
            (
                "1. Install [PyTorch 1.0](https://pytorch.org/) and Python 3.6.",
                Some((1, 0)),
            ),
            (
                "Then install [PyTorch](https://pytorch.org/) 1.0 and other dependencies",
                Some((1, 0)),
            ),
            (
                "This code was developed and tested with pytorch version 1.0.1",
                Some((1, 0)),
            ),
            (
                "The code is developed with CUDA 8.0, ***Python 2.7***, ***PyTorch 0.3***",
                Some((0, 3)),
            ),
            (
                "Tested with PyTorch 1.0 and 1.7, and with Python 3.6+.",
                Some((1, 7)),
            ),
            ("Requires PyTorch 1.4+.", None),
            ("Requires PyTorch (1.4 or later).", None),
            ("It needs PyTorch 2.1.", None),
            ("## Requirements\nWe use PyTorch 1.4 here.", Some((1, 4))),
            ("| PyTorch | 1.4 |", Some((1, 4))),
            (
                "pip install torch==1.10.1+cu111 -f https://download.pytorch.org/whl/torch_stable.html",
                Some((1, 10)),
            ),
            (
                "FROM pytorch/pytorch:1.4-cuda10.1-cudnn7-devel",
                Some((1, 4)),
            ),
            (
                "pip install torch-scatter -f https://x.org/whl/torch-1.6.0+cu101.html",
                Some((1, 6)),
            ),
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
    fn a_readme_asks_for_the_last_pytorch_of_its_python() {
        for (line, newest) in [
            ("* Python 3.6", Some((1, 10))),
            ("- Python 3.7.4", Some((1, 13))),
            ("- Python == 3.8, CUDA 11", Some((2, 4))),
            ("conda create -n env python=3.6 -y", Some((1, 10))),
            ("- Python 3.6+", None),
            ("- Python 3.6.x", Some((1, 10))),
            ("- Python 3.6 or later", None),
            ("- Python 3.6-3.8", None),
            ("- Python >= 3.6", None),
            ("- Python 3", None),
            ("We use Python 3.6 for the plots.", None),
            ("python 3.6_tools.py", None),
            ("- Python 3.12", Some((ANY, ANY))),
            ("FROM python:3.7-slim", Some((1, 13))),
            ("conda install -y python=3.6 pip", Some((1, 10))),
            ("conda create -n python_env \"python<3.8\"", Some((1, 13))),
            ("conda create -n env 'python>=3.6,<3.7' pip", Some((1, 10))),
            ("conda create -n env \"python>=3.6\"", None),
        ] {
            assert_eq!(newest_torch_for_python("README.md", line), newest, "{line}");
            assert_eq!(newest_torch_for_python("notes.txt", line), None, "{line}");
        }
        let either = "- Python 3.6\n- Python 3.12\n";
        assert_eq!(newest_torch_for_python("README", either), Some((ANY, ANY)));
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
            ("torch", None),
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
                "dependencies:\n  - python=3.7.4\n  - pytorch\n",
                Some((1, 13)),
            ),
            ("environment.yml", "dependencies:\n  - python>=3.7\n", None),
            (
                "environment.yml",
                "dependencies:\n  - python>=3.6,<3.8\n",
                Some((1, 13)),
            ),
            (
                "conda_env.yaml",
                "dependencies:\n  - python=3.6.*\n",
                Some((1, 10)),
            ),
            (
                "setup.py",
                "setup(name='a', python_requires='>=3.5, <3.7')\n",
                Some((1, 10)),
            ),
            ("setup.py", "setup(python_requires=\">=3.6\")\n", None),
            (
                "setup.cfg",
                "[options]\npython_requires = >=3.6, <3.8\n",
                Some((1, 13)),
            ),
            (
                "pyproject.toml",
                "requires-python = \"==3.7.*\"\n",
                Some((1, 13)),
            ),
            ("pyproject.toml", "python = \"^3.6\"\n", None),
            ("Pipfile", "python_version = \"3.7\"\n", Some((1, 13))),
            ("runtime.txt", "python-3.6.9\n", Some((1, 10))),
            (".python-version", "3.7.12\n", Some((1, 13))),
            (
                "create_env.sh",
                "conda create -n a python=3.8\npip install torch==1.6.0 torchvision\n",
                Some((1, 6)),
            ),
            (
                "train.dockerfile",
                "FROM nvcr.io/nvidia/pytorch:20.12-py3\n",
                Some((1, 8)),
            ),
            (
                "Dockerfile.gpu",
                "FROM pytorch/pytorch:1.6.0-cuda10.1-cudnn7-runtime\n",
                Some((1, 6)),
            ),
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
