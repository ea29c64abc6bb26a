//! `docs/schemas`: the schemas of all documents that state a format, from the types that write and read them. Written anew with
//! `OOMPH_UPDATE_DOCS`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::commands::{check, explain, run};

/// A document that states its format.
struct Document {
    /// The format.
    format: &'static str,
    /// Where it comes from.
    from: &'static str,
    /// Its schema.
    schema: Value,
}

/// A document that oomph writes.
fn written<T: JsonSchema>(format: &'static str, from: &'static str) -> Document {
    document::<T>(format, from, SchemaSettings::draft2020_12().for_serialize())
}

/// A document that oomph reads: what has a default may be absent.
fn read<T: JsonSchema>(format: &'static str, from: &'static str) -> Document {
    document::<T>(
        format,
        from,
        SchemaSettings::draft2020_12().for_deserialize(),
    )
}

fn document<T: JsonSchema>(
    format: &'static str,
    from: &'static str,
    settings: SchemaSettings,
) -> Document {
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut schema = schema.to_value();
    schema["$id"] = json!(format!(
        "{}/raw/main/{}",
        env!("CARGO_PKG_REPOSITORY"),
        place(format)
    ));
    schema["title"] = json!(format);
    schema["properties"]["format"] = json!({ "const": format });
    Document {
        format,
        from,
        schema,
    }
}

/// The file of a format's schema, from the root of the repository.
fn place(format: &str) -> String {
    let name = format.trim_start_matches("oomph.").replace('/', "-");
    format!("docs/schemas/{name}.json")
}

/// All that have a schema.
fn documents() -> Vec<Document> {
    vec![
        written::<run::Output>(
            oomph_run::summary::FORMAT,
            "`oomph run --json`, `summary.json` of a run",
        ),
        written::<oomph_plan::result::Fit>(oomph_plan::result::FORMAT, "`oomph fit --json`"),
        read::<oomph_plan::PlanFile>(oomph_plan::FORMAT, "plan files (TOML)"),
        written::<oomph_run::serving::Search>(
            oomph_run::serving::FORMAT,
            "`oomph serve-fit --json`",
        ),
        written::<check::Checked>(check::FORMAT, "`oomph check --json`"),
        written::<oomph_report::drift::Drift>(oomph_report::drift::FORMAT, "`oomph drift --json`"),
        written::<explain::Whole>(oomph_explain::FORMAT, "`oomph explain --json`"),
        written::<explain::Ranks>(explain::RANKS_FORMAT, "the same for several files"),
        written::<explain::Endings>(
            explain::ENDINGS_FORMAT,
            "the same for a run that left no memory history",
        ),
        written::<oomph_explain::Diff>(oomph_explain::diff::FORMAT, "`oomph diff --json`"),
        written::<oomph_report::export::Report>(
            oomph_report::export::FORMAT,
            "`oomph report --export json`",
        ),
        written::<oomph_report::replay::ReplayReport>(
            oomph_report::replay::FORMAT,
            "`oomph replay --json`",
        ),
        written::<oomph_lint::output::Document>(oomph_lint::output::FORMAT, "`oomph lint --json`"),
        written::<oomph_report::estimate::EstimateJson>(
            oomph_report::estimate::FORMAT,
            "`oomph estimate --json`",
        ),
        written::<oomph_report::gpus::GpuList>(oomph_report::gpus::FORMAT, "`oomph gpus --json`"),
        written::<oomph_report::gpus_for::GpusFor>(
            oomph_report::gpus_for::FORMAT,
            "`oomph gpus --for --json`",
        ),
        written::<oomph_report::doctor::Doctor>(
            oomph_report::doctor::FORMAT,
            "`oomph doctor --json`",
        ),
        written::<oomph_job::settings::Settings>(
            oomph_job::settings::FORMAT,
            "internal: `settings.json` of a run",
        ),
        read::<oomph_fit::cache::Kept>(
            oomph_fit::cache::FORMAT,
            "internal: what `oomph run --fit` keeps in the user's cache",
        ),
    ]
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compares a file with what it should be, or writes it.
fn is_generated(path: &Path, text: &str) {
    if std::env::var_os("OOMPH_UPDATE_DOCS").is_some() {
        fs::write(path, text).unwrap();
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == text,
        "{} is not up to date: OOMPH_UPDATE_DOCS=1 cargo test -p oomph-cli --lib schemas",
        path.display()
    );
}

#[test]
fn the_schemas_are_those_of_the_types() {
    let documents = documents();
    for document in &documents {
        let text = serde_json::to_string_pretty(&document.schema).unwrap() + "\n";
        is_generated(&root().join(place(document.format)), &text);
    }
    let kept = fs::read_dir(root().join("docs/schemas")).unwrap().count();
    // That of the plugin's baselines is written by hand.
    assert_eq!(
        kept,
        documents.len() + 1,
        "there are schemas of formats that are gone"
    );
}

#[test]
fn the_table_in_the_documents_has_all_formats() {
    const BEGIN: &str =
        "<!-- OOMPH_UPDATE_DOCS=1 cargo test -p oomph-cli --lib schemas writes this table. -->\n";
    const END: &str = "<!-- End of the table. -->\n";
    let path = root().join("docs/stability.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let mut table = "| format | from |\n| --- | --- |\n".to_owned();
    let mut row = |format: &str, from: &str| {
        let file = place(format).replacen("docs/", "", 1);
        let _ = writeln!(table, "| [`{format}`]({file}) | {from} |");
    };
    for document in documents() {
        row(document.format, document.from);
    }
    row("oomph.tests/1", "baselines of the pytest plugin");
    is_generated(&path, &format!("{before}{BEGIN}{table}{END}{after}"));
}
