//! The report: one HTML file that needs nothing beside itself.
//!
//! The page itself is built from `web/` and committed as `web/dist/report.html`; here it gets its
//! data, as [`payload`]s in base64 that only its own script unpacks. So no byte of what was
//! recorded (file names, modules, messages) ever reaches the browser as markup or as code.
//!
//! What takes long over millions of events is done here: the levels of detail ([`lod`]), what each
//! step leaves behind, other allocator settings ([`what_if`]).

mod growth;
pub mod history;
pub mod lod;
pub mod payload;
pub mod redact;
pub mod what_if;

use serde::Serialize;
use serde_json::{Value, json};

pub use history::History;
pub use what_if::{WhatIf, what_if};

use payload::Columns;
use redact::Redactor;

/// The page without data, as `web/build.py` made it.
const BUNDLE: &str = include_str!("../../../../web/dist/report.html");
/// Where the data goes.
const MARKER: &str = "<!--oomph:data-->";

/// What a report is about; decides which view is shown first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A recorded run.
    Run,
    /// A snapshot or a trace somebody had.
    Explain,
    /// Two of them.
    Diff,
    /// A run with the plans that make it fit.
    Fit,
}

/// A way to make a job fit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The levers, as text: `micro-batch 8 × 2`.
    pub levers: String,
    /// The peak that was planned, in bytes.
    pub planned_peak: u64,
    /// The peak that was measured with it, in bytes, if it was run.
    pub measured_peak: Option<u64>,
    /// The step's time with it as a multiple of the time without.
    pub time_ratio: Option<f64>,
    /// Whether the job computes the same: `exact`, `numerics change`.
    pub same_results: String,
    /// Whether it was run and fits.
    pub verified: bool,
    /// Whether it is the one that was chosen.
    pub chosen: bool,
}

/// Everything that a report shows. What is missing is not shown.
#[derive(Debug)]
pub struct Page<'a> {
    /// What it is about.
    pub kind: Kind,
    /// Its title: the script or the file.
    pub title: String,
    /// The histories; the first is shown first.
    pub histories: Vec<History<'a>>,
    /// `summary.json` of a run.
    pub summary: Option<Value>,
    /// `explanation.json`, or what `oomph explain --json` writes.
    pub explanation: Option<Value>,
    /// What `oomph diff --json` writes.
    pub diff: Option<Value>,
    /// Plans that were tried.
    pub plans: Vec<Plan>,
    /// Other allocator settings.
    pub what_if: Vec<WhatIf>,
    /// Whether names and paths are replaced.
    pub redact: bool,
}

impl<'a> Page<'a> {
    /// A page with a title and nothing else.
    pub fn new(kind: Kind, title: impl Into<String>) -> Self {
        Self {
            kind,
            title: title.into(),
            histories: Vec::new(),
            summary: None,
            explanation: None,
            diff: None,
            plans: Vec::new(),
            what_if: Vec::new(),
            redact: false,
        }
    }

    /// With a history.
    #[must_use]
    pub fn history(mut self, history: History<'a>) -> Self {
        self.histories.push(history);
        self
    }

    /// The page as HTML.
    pub fn render(&self) -> String {
        let mut redact = Redactor::new(self.redact);
        // Histories first: they teach the redactor the names that sentences may hold.
        let packed: Vec<history::Packed> = self
            .histories
            .iter()
            .map(|history| history::digest(history).pack(&mut redact))
            .collect();
        let mut document = |value: &Option<Value>| value.as_ref().map(|value| redact.json(value));
        let summary = document(&self.summary);
        let explanation = document(&self.explanation);
        let diff = document(&self.diff);
        let head = json!({
            "kind": self.kind,
            "oomph": env!("CARGO_PKG_VERSION"),
            "title": if self.redact { redact.file(&self.title) } else { self.title.clone() },
            "redacted": self.redact,
            "histories": self.histories.len(),
            "summary": summary,
            "explanation": explanation,
            "diff": diff,
            "plans": self.plans,
            "what_if": self.what_if,
        });
        let (before, after) = BUNDLE.split_once(MARKER).unwrap_or((BUNDLE, ""));
        let mut out = String::with_capacity(
            BUNDLE.len()
                + packed
                    .iter()
                    .map(|packed| packed.overview.len() + packed.detail.len() + 128)
                    .sum::<usize>()
                + (1 << 16),
        );
        out.push_str(before);
        embed(&mut out, "page", &Columns::default().finish(head));
        for (number, packed) in packed.iter().enumerate() {
            embed(&mut out, &format!("overview-{number}"), &packed.overview);
            embed(&mut out, &format!("detail-{number}"), &packed.detail);
        }
        out.push_str(after);
        out
    }
}

/// One payload as an element that browsers neither run nor show.
fn embed(out: &mut String, name: &str, payload: &str) {
    out.push_str("<script type=\"application/x-oomph\" id=\"oomph-");
    out.push_str(name);
    out.push_str("\">");
    out.push_str(payload);
    out.push_str("</script>\n");
}
