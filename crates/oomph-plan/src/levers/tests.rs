//! What holds for all levers; a lever's own facets are tested in its file.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use oomph_run::record::Module;
use oomph_trace::{Category, Phase};

use super::*;
use crate::PlanFile;
use crate::model::{Call, Event, Tensor, Work};

/// A plan with every lever, as files have had it since the format's first version.
const EVERY: &str = include_str!("../../tests/every_lever.toml");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(super) fn every() -> Vec<Lever> {
    PlanFile::parse(EVERY).unwrap().levers
}

#[test]
fn plan_files_are_read_and_written_as_before() {
    let plan = PlanFile::parse(EVERY).unwrap();
    let names: Vec<&str> = plan.levers.iter().map(Lever::name).collect();
    assert_eq!(names, NAMES);
    assert_eq!(plan.to_toml(), EVERY);
    // What is not said of several GPUs has a default, and is not written.
    let shard: Lever = serde_json::from_str(r#"{"name": "shard", "gpus": 2}"#).unwrap();
    assert_eq!(shard, data_parallel(2));
    let written = serde_json::to_string(&shard).unwrap();
    assert_eq!(written, r#"{"name":"shard","gpus":2}"#);
}

#[test]
fn unknown_parameters_are_refused() {
    for lever in every() {
        let mut value = serde_json::to_value(&lever).unwrap();
        value["paramter"] = 1.into();
        let error = serde_json::from_value::<Lever>(value).unwrap_err();
        assert!(
            error.to_string().contains("unknown field `paramter`"),
            "{error}"
        );
    }
}

#[test]
fn each_lever_is_a_file_on_each_side() {
    let names = |folder: &str, end: &str| {
        let files = fs::read_dir(root().join(folder)).unwrap();
        let mut names: Vec<String> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .filter_map(|name| Some(name.strip_suffix(end)?.to_owned()))
            .filter(|name| !["mod", "tests", "__init__"].contains(&name.as_str()))
            .collect();
        names.sort();
        names
    };
    let mut known: Vec<&str> = NAMES.to_vec();
    known.sort_unstable();
    assert_eq!(names("crates/oomph-plan/src/levers", ".rs"), known);
    assert_eq!(names("python/oomph/levers", ".py"), known);
}

#[test]
fn each_lever_says_what_it_is() {
    let mut labels: Vec<String> = Vec::new();
    for mut lever in every() {
        let label = lever.to_string();
        assert!(!label.is_empty() && !labels.contains(&label), "{label}");
        labels.push(label);
        assert!(!lever.facets().snippet().is_empty(), "{lever:?}");
        // Modules that are known stand in what is said of them, and can be left out of the plan.
        let named = serde_json::to_value(&lever)
            .unwrap()
            .get("modules")
            .is_some();
        assert_eq!(lever.modules_mut().is_some(), named, "{lever:?}");
    }
}

#[test]
fn what_is_further_outside_steps_in_first() {
    let order = application_order();
    assert_eq!(order.len(), NAMES.len());
    let at = |name: &str| order.iter().position(|other| *other == name).unwrap();
    for (outside, inside) in [
        ("split_batch", "split_forward"),
        ("split_forward", "micro_batch"),
        ("micro_batch", "shard"),
        ("shard", "mixed_precision"),
        ("mixed_precision", "set_to_none"),
        ("int8_linear", "half_weights"),
        ("load_on_cpu", "half_weights"),
        ("offload_activations", "checkpoint"),
        ("checkpoint", "recompute"),
        ("recompute", "fused_attention"),
        ("recompute", "fused_modules"),
        ("fused_modules", "compile"),
    ] {
        assert!(at(outside) < at(inside), "{outside} {inside}");
    }
}

#[test]
fn training_loops_may_apply_what_needs_no_other_script() {
    let found: Vec<&str> = midway().collect();
    assert_eq!(
        found,
        ["checkpoint", "offload_activations", "optimizer_on_cpu"]
    );
}

#[test]
fn what_explain_advises_can_be_allowed() {
    for lever in oomph_explain::lever::ALL {
        assert!(NAMES.contains(&lever.name()), "{}", lever.name());
    }
}

/// Whether a text has a lever's name as a string of its own or in a path of imports, or its type. What a
/// sentence says of a lever does not count.
fn has_name(text: &str, name: &str, class: &str) -> bool {
    /// Types that are words of other subjects, too.
    const WORDS: [&str; 8] = [
        "Allocator",
        "Attention",
        "Checkpoint",
        "Compile",
        "Net",
        "OptimizerStep",
        "Shard",
        "Tf32",
    ];
    /// Names of other things, too: operators, a cause, a function of PyTorch, a hook of Lightning, a keyword, a type,
    /// a setting of Accelerate's, a crate.
    const NAMES: [&str; 9] = [
        "attention",
        "checkpoint",
        "fused_attention",
        "kv_cache",
        "mixed_precision",
        "optimizer_step",
        "set_to_none",
        "tf32",
        "net",
    ];
    let inside = |character: char| character.is_alphanumeric() || character == '_';
    let typed = text.match_indices(class).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + class.len()..]);
        let is_word = !before.ends_with(inside) && !after.starts_with(inside);
        is_word && (!WORDS.contains(&class) || before.ends_with("Lever::"))
    });
    let quoted = format!("\"{name}\"");
    let paths = [format!("levers.{name} "), format!("levers::{name}::")];
    let is_quoted = !NAMES.contains(&name) && text.contains(&quoted);
    typed || is_quoted || paths.iter().any(|path| text.contains(path))
}

/// The sources of the product without tests, comments and what belongs to one lever's file only.
fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    const LEFT_OUT: [&str; 5] = ["tests", "tests.rs", "examples", "lint", "oomph-lint"];
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        // Helpers of a lever's file in Python; rules of the linter, which have names of their own.
        if LEFT_OUT.contains(&name) || name == "_shared" {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else if path
            .extension()
            .is_some_and(|end| end == "rs" || end == "py")
        {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let is_code = |line: &&str| !line.trim_start().starts_with("//");
            let lines: Vec<&str> = code.lines().filter(is_code).collect();
            found.push((path, lines.join("\n")));
        }
    }
}

/// What is generated from the levers lies in the repository, and is as it would be generated now:
/// `OOMPH_UPDATE_DOCS=1 cargo test -p oomph-plan` writes it anew.
fn is_generated(path: &str, text: &str) {
    let path = root().join(path);
    if std::env::var_os("OOMPH_UPDATE_DOCS").is_some() {
        fs::write(&path, text).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == text,
        "{}: run OOMPH_UPDATE_DOCS=1 cargo test -p oomph-plan",
        path.display()
    );
}

#[test]
fn the_table_in_the_documents_is_of_these_levers() {
    const BEGIN: &str =
        "<!-- OOMPH_UPDATE_DOCS=1 cargo test -p oomph-plan writes this table. -->\n";
    const END: &str = "<!-- End of the table. -->\n";
    let page = fs::read_to_string(root().join("docs/levers.md")).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let schema = serde_json::to_value(schemars::schema_for!(Lever)).unwrap();
    let of = |name: &str| {
        let mut all = schema["oneOf"].as_array().unwrap().iter();
        all.find(|one| one["properties"]["name"]["const"] == name)
            .unwrap()
    };
    let mut table = "| lever | parameters | results |\n| --- | --- | --- |\n".to_owned();
    for name in NAMES {
        let one = of(name);
        let parameters = one["properties"].as_object().unwrap().keys();
        let parameters: Vec<String> = parameters
            .filter(|key| *key != "name")
            .map(|key| format!("`{key}`"))
            .collect();
        let mut results: Vec<Results> = every()
            .iter()
            .filter(|lever| lever.name() == *name)
            .map(Lever::results)
            .collect();
        if *name == data_parallel(2).name() {
            results.insert(0, data_parallel(2).results());
        }
        let results: Vec<&str> = results
            .iter()
            .map(|results| match results {
                Results::Exact => "exact",
                Results::Rounding => "rounding",
                Results::Numerics => "numerics",
            })
            .collect();
        let has_section = after.contains(&format!("\n## {name}\n"));
        let section = if has_section {
            format!("#{name}")
        } else {
            "inference.md#the-levers".to_owned()
        };
        let _ = writeln!(
            table,
            "| [`{name}`]({section}) | {} | {} |",
            parameters.join(", "),
            results.join("; in 16 bits ")
        );
    }
    is_generated(
        "docs/levers.md",
        &format!("{before}{BEGIN}{table}{END}{after}"),
    );
}

#[test]
fn a_lever_stands_in_its_two_files_and_hardly_anywhere_else() {
    /// Its two files, the list of all levers, and one that knows it by name.
    const MOST: usize = 4;
    let mut all = Vec::new();
    for folder in ["crates", "python"] {
        sources(&root().join(folder), &mut all);
    }
    let midway: Vec<&str> = midway().collect();
    for lever in every() {
        let (name, debug) = (lever.name(), format!("{lever:?}"));
        let class = debug.split('(').next().unwrap();
        let is_home = |path: &Path| {
            let folder = path
                .parent()
                .is_some_and(|folder| folder.ends_with("levers"));
            folder && path.file_stem().is_some_and(|stem| stem == name)
        };
        let files: Vec<&PathBuf> = all
            .iter()
            .filter(|(path, text)| is_home(path) || has_name(text, name, class))
            .map(|(path, _)| path)
            .collect();
        // What a training loop applies itself, it knows by name.
        let most = MOST + usize::from(midway.contains(&name));
        assert!(files.len() <= most, "{name}: {files:#?}");
    }
}

#[test]
fn what_is_written_by_hand_is_python() {
    for lever in every() {
        let snippet = lever.facets().snippet();
        let code = snippet.split_once('\n').map_or("", |(_, code)| code);
        let parsed = oomph_python_source::Module::parse(code);
        assert!(parsed.is_ok(), "{}:\n{code}", lever.name());
    }
}

/// Three blocks of 100 MiB and a head that is trained; `computing` nanoseconds of forward and of backward work in each block.
pub(super) fn job(computing: f64, backward: bool) -> Model {
    let mut model = Model {
        trains: true,
        calls: vec![Call::default()],
        ..Model::default()
    };
    for (name, parameters, trained) in [
        ("Net.blocks", 0, 0),
        ("Net.blocks.0", 0, 0),
        ("Net.blocks.0.fc", 1, 0),
        ("Net.blocks.1", 0, 0),
        ("Net.blocks.1.fc", 1, 0),
        ("Net.blocks.2", 0, 0),
        ("Net.blocks.2.fc", 1, 0),
        ("Net.head", 1, 1),
    ] {
        model.modules.push(Module {
            name: name.to_owned(),
            container: name == "Net.blocks",
            parameters,
            trained,
            ..Module::default()
        });
        let number = model.template.tensors.len() as u32;
        if parameters > 0 {
            model.parameters.push((name.to_owned(), number));
            let sizes = model.parameter_sizes.entry(name.to_owned());
            sizes.or_default().push(100 << 20);
            model.template.setup.push(Event::Alloc(number));
            model.template.tensors.push(Tensor {
                bytes: 100 << 20,
                stream: 0,
                category: Category::Parameter,
                phase: Phase::Load,
                call: 0,
                op: 0,
                scope: 0,
                batched: false,
            });
        }
        model.calls.push(Call {
            module: name.to_owned(),
            ..Call::default()
        });
        for phase in [Phase::Forward, Phase::Backward] {
            if name.ends_with("fc") && (backward || phase == Phase::Forward) {
                model.work.push(Work {
                    call: model.calls.len() as u32 - 1,
                    phase,
                    op: 0,
                    busy: computing,
                    halved: computing,
                    tf32: computing,
                    launches: 1.0,
                });
            }
        }
    }
    model
}
