//! Whatever is typed, cut off or misnamed: the command says what is wrong and ends, it never panics.
//!
//! Random arguments for the command as a process, in a directory of files as people mistake them for each
//! other. `PROPTEST_CASES=10000 cargo test -p oomph-cli --test arguments` looks longer.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::{Index, select};

const CASES: u32 = 48;
/// So long one command may take. None of these works on anything large.
const LIMIT: Duration = Duration::from_mins(1);

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures")
        .join(name)
}

/// The command as an example of its crate, which `cargo test` builds beside the tests.
fn binary() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("examples/oomph")
}

/// A directory of files as they are mistaken for each other, and a `python3` that runs nothing.
fn directory() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let snapshot = fs::read(fixture("oom/loss_accumulate.pickle.xz")).unwrap();
    let trace = fs::read(fixture("plan/tiny_gpt/trace.oomph")).unwrap();
    let half = |bytes: &[u8]| bytes[..bytes.len() / 2].to_vec();
    let script =
        b"import torch\nlosses = []\nfor x in loader:\n    losses.append(model(x).sum())\n"
            .to_vec();
    for (name, text) in [
        ("train.py", script.clone()),
        ("cut.py", b"def main(\n    x = [1,\n".to_vec()),
        ("empty.py", Vec::new()),
        ("binary.py", vec![0, 159, 146, 150, 0, 255]),
        (
            "notebook.ipynb",
            b"{\"cells\": [{\"cell_type\": \"code\", \"source\": [\"%magic\"]}]}".to_vec(),
        ),
        ("cut.ipynb", b"{\"cells\": [{\"cell".to_vec()),
        ("cut.pickle.xz", half(&snapshot)),
        ("trace.oomph", trace.clone()),
        ("cut.oomph", half(&trace)),
        (
            "train.log",
            b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.".to_vec(),
        ),
        ("plan.toml", b"format = \"oomph.plan/1\"\n".to_vec()),
        ("config.json", b"{\"hidden_size\": 1".to_vec()),
        ("model.safetensors", vec![255; 64]),
        ("model.gguf", b"GGUF\x03\0\0\0".to_vec()),
        ("model.onnx", vec![8, 7, 18, 255, 255, 255, 255]),
    ] {
        fs::write(at(name), text).unwrap();
    }
    fs::write(place.path().join(OsStr::from_bytes(b"caf\xe9.py")), script).unwrap();
    for name in [
        "folder",
        "package.py",
        "oomph-report",
        "oomph-report/train-1",
        "bin",
    ] {
        fs::create_dir_all(at(name)).unwrap();
    }
    fs::write(at("oomph-report/train-1/.oomph-run"), "").unwrap();
    fs::write(at("oomph-report/train-1/summary.json"), "{\"peak\": 3}").unwrap();
    fs::write(at("secret.py"), "x = 1\n").unwrap();
    fs::set_permissions(at("secret.py"), fs::Permissions::from_mode(0o000)).unwrap();
    symlink("nowhere", at("dangling.py")).unwrap();
    symlink("loop.py", at("loop.py")).unwrap();
    fs::write(at("bin/python3"), "#!/bin/sh\nexit 0\n").unwrap();
    fs::set_permissions(at("bin/python3"), fs::Permissions::from_mode(0o755)).unwrap();
    place
}

fn oomph(place: &Path, words: &[OsString]) -> Output {
    let mut child = Command::new(binary())
        .args(words)
        .current_dir(place)
        .env_clear()
        .env("PATH", place.join("bin"))
        .stdin(Stdio::null())
        .stdout(fs::File::create(place.join(".out")).unwrap())
        .stderr(fs::File::create(place.join(".err")).unwrap())
        .spawn()
        .unwrap();
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > LIMIT {
            child.kill().unwrap();
            break child.wait().unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Output {
        status,
        stdout: fs::read(place.join(".out")).unwrap(),
        stderr: fs::read(place.join(".err")).unwrap(),
    }
}

const PLACES: &[&str] = &[
    "train.py",
    "cut.py",
    "empty.py",
    "binary.py",
    "notebook.ipynb",
    "cut.ipynb",
    "cut.pickle.xz",
    "trace.oomph",
    "cut.oomph",
    "train.log",
    "plan.toml",
    "config.json",
    "model.safetensors",
    "model.gguf",
    "model.onnx",
    "folder",
    "package.py",
    "oomph-report",
    "oomph-report/train-1",
    "oomph-report/latest",
    "secret.py",
    "dangling.py",
    "loop.py",
    "missing.py",
    "train.py/inside",
    ".",
    "",
    "-",
];

const VALUES: &[&str] = &[
    "10",
    "10GiB",
    "10G",
    "1e9GB",
    "-5GiB",
    "99999999999999999999TiB",
    "0",
    "1",
    "-1",
    "4294967296",
    "3.5",
    "NaN",
    "rtx-3060",
    "t4:2",
    "t4:0",
    "t4:",
    ":",
    "h100-80gb:99",
    "rtx-4009",
    "30s",
    "5",
    "-3m",
    "1e30h",
    "half",
    "auto",
    "exact",
    "OOM101",
    "missing_no_grad",
    "ALL",
    "batch=16",
    "batch",
    "int4",
    "2.11",
    "bash",
    "perfetto",
    "sarif",
    "expandable_segments:True",
    "max_split_size_mb:nonsense",
    "\u{1b}[31mred",
    "a\nb",
    "ünïcödé",
    "--",
    "-",
    "torchrun",
    "python",
    "-m",
    "checkpoint",
    "no_such_lever",
];

/// A word: an option of some command, one that is misspelt, a value or a place.
fn word() -> impl Strategy<Value = OsString> {
    let options: Vec<String> = oomph_cli::command()
        .get_subcommands()
        .flat_map(clap::Command::get_arguments)
        .filter_map(|argument| Some(format!("--{}", argument.get_long()?)))
        .collect();
    let misspelt = (select(options.clone()), any::<Index>()).prop_map(|(mut option, at)| {
        option.remove(at.index(option.len()));
        option
    });
    let joined = (select(options.clone()), select(VALUES))
        .prop_map(|(option, value)| format!("{option}={value}"));
    prop_oneof![
        4 => select(options).prop_map(OsString::from),
        1 => misspelt.prop_map(OsString::from),
        1 => joined.prop_map(OsString::from),
        4 => select(VALUES).prop_map(OsString::from),
        6 => select(PLACES).prop_map(OsString::from),
        1 => proptest::collection::vec(1_u8.., 1..12).prop_map(|bytes| OsStr::from_bytes(&bytes).to_owned()),
        1 => Just(OsStr::from_bytes(b"caf\xe9.py").to_owned()),
    ]
}

fn line() -> impl Strategy<Value = Vec<OsString>> {
    let commands: Vec<String> = oomph_cli::command()
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .chain(["help", "rnu", ""].map(str::to_owned))
        .collect();
    (select(commands), proptest::collection::vec(word(), 0..7)).prop_map(|(command, words)| {
        std::iter::once(OsString::from(command))
            .chain(words)
            .collect()
    })
}

fn check(output: &Output) -> Result<(), TestCaseError> {
    let err = String::from_utf8_lossy(&output.stderr);
    let code = output.status.code();
    prop_assert!(matches!(code, Some(0..=5)), "{:?}: {err}", output.status);
    prop_assert!(
        !err.contains("panicked") && !err.contains("Traceback"),
        "{err}"
    );
    if code == Some(2) {
        let said = !output.stderr.is_empty() || !output.stdout.is_empty();
        prop_assert!(said, "nothing says what is wrong");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(CASES),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_line_has_an_answer(words in line()) {
        let place = directory();
        check(&oomph(place.path(), &words))?;
    }
}

/// A number below zero is a wrong number, and not an unknown option.
#[test]
fn a_negative_number_is_said_to_be_wrong() {
    let place = directory();
    for (option, value) in [("--steps", "-1"), ("--memory", "-5GiB"), ("--grace", "-3")] {
        let output = oomph(
            place.path(),
            &["run", option, value, "train.py"].map(OsString::from),
        );
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(
            err.contains(&format!("invalid value '{value}' for '{option} ")),
            "{err}"
        );
    }
}

/// What stands for a script and is none: one line on stderr, and status 2.
#[test]
fn what_is_no_script_is_said_in_a_line() {
    let place = directory();
    let long = "x".repeat(5000);
    for command in ["run", "fit", "drift"] {
        for script in [
            "empty.py",
            "folder",
            "package.py",
            "missing.py",
            "dangling.py",
            "loop.py",
            "train.py/inside",
            &long,
        ] {
            let plan = place.path().join("good.toml");
            fs::write(&plan, "format = \"oomph.plan/1\"\n[job]\nscript = \"x\"\n").unwrap();
            let options: &[&str] = if command == "drift" {
                &["--plan", "good.toml"]
            } else {
                &["--gpu", "t4"]
            };
            let words: Vec<OsString> = [&[command], options, &[script]]
                .concat()
                .iter()
                .map(OsString::from)
                .collect();
            let output = oomph(place.path(), &words);
            let err = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{command} {script}: {err}");
            assert_eq!(err.lines().count(), 1, "{command} {script}: {err}");
            assert!(err.starts_with("error: "), "{err}");
        }
    }
}

/// What is typed almost right is answered with what it should be.
#[test]
fn slips_are_answered_with_what_was_meant() {
    let place = directory();
    for (line, meant) in [
        ("rnu train.py", "'run'"),
        ("fti train.py", "'fit'"),
        ("explian train.log", "'explain'"),
        ("run --memroy 10G train.py", "'--memory'"),
        ("run --gpu t4 --step 3 train.py", "'--steps'"),
        ("fit --max-tiem 3s train.py", "'--max-time'"),
        ("run --gpu rtx-4009 train.py", "rtx-4090"),
        ("run --gpu t4 --memory 10 train.py", "10GiB"),
        ("fit --gpu t4 --forbid chekpoint train.py", "checkpoint"),
        (
            "run --gpu t4 --steps many train.py",
            "expected a whole number",
        ),
        ("run --gpu t4 --unknown hlaf train.py", "half"),
        ("lint --select OOMX", "--list-rules"),
        ("run --gpu t4,a100 train.py", "NAME:COUNT"),
        ("check jobs.toml", "--config jobs.toml"),
        ("estimate somebody/model", "hf download somebody/model"),
    ] {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let output = oomph(place.path(), &words);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {err}");
        assert!(err.contains(meant), "{line}: {err}");
    }
}

#[test]
fn clean_takes_runs_and_the_link_to_them_and_nothing_else() {
    let place = directory();
    let reports = place.path().join("oomph-report");
    let run = |name: &str| {
        fs::create_dir_all(reports.join(name)).unwrap();
        fs::write(reports.join(name).join(".oomph-run"), "").unwrap();
        fs::write(reports.join(name).join("index.html"), "12345").unwrap();
    };
    let clean = |words: &[&str]| {
        let words: Vec<OsString> = ["clean"].iter().chain(words).map(OsString::from).collect();
        let output = oomph(place.path(), &words);
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    };
    run("train-2");
    fs::create_dir(reports.join("mine")).unwrap();
    fs::write(reports.join("mine/index.html"), "theirs").unwrap();
    symlink("train-2", reports.join("latest")).unwrap();
    assert!(clean(&["--dry-run"]).contains("would remove 2 directories"));
    let said = clean(&["oomph-report/train-2"]);
    assert_eq!(
        said,
        "       5 B oomph-report/train-2\nremoved 1 directory, 5 B\n"
    );
    assert!(
        reports.join("latest").symlink_metadata().is_err(),
        "it leads nowhere"
    );
    assert!(clean(&[]).contains("removed 1 directory"));
    assert!(clean(&[]).contains("nothing to remove"));
    assert_eq!(
        fs::read(reports.join("mine/index.html")).unwrap(),
        b"theirs"
    );
    fs::remove_dir_all(reports.join("mine")).unwrap();
    run("train-3");
    clean(&[]);
    assert!(!reports.exists());
}

#[test]
fn colours_are_kept_in_a_pipe_on_request_only() {
    let place = directory();
    let gpus = |words: &[&str]| {
        let words: Vec<OsString> = ["gpus", "t4"]
            .iter()
            .chain(words)
            .map(OsString::from)
            .collect();
        oomph(place.path(), &words).stdout.contains(&0x1b)
    };
    assert!(gpus(&["--color=always"]) && gpus(&["--color", "always"]));
    assert!(!gpus(&[]) && !gpus(&["--color", "never"]));
    // What is wrong with the words is said in colours, too.
    let wrong = ["gpus", "--color=always", "--nonsense"].map(OsString::from);
    assert!(oomph(place.path(), &wrong).stderr.contains(&0x1b));
}
