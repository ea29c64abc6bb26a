//! The report: one self-contained HTML file.
//!
//! The page itself is built from `web/` and committed as `web/dist/report.html`; here it gets its
//! data, as [`payload`]s in base64 that only its own script unpacks. So no byte of what was
//! recorded (file names, modules, messages) ever reaches the browser as markup or as code.
//!
//! What takes long over millions of events is done here: the levels of detail ([`lod`]), what each
//! step leaves behind, other allocator settings ([`what_if`]).

pub(crate) mod growth;
pub mod history;
pub mod lod;
pub mod payload;
pub mod redact;
pub mod what_if;

use serde::{Deserialize, Serialize};
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A recorded run.
    Run,
    /// A snapshot or a trace.
    Explain,
    /// Two of them.
    Diff,
    /// A run with the plans that make it fit.
    Fit,
}

/// A way to make a job fit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PlanRow {
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
    /// Whether it was only tried, as the job itself was: for the picture, not for the table.
    #[serde(default)]
    pub tried: bool,
}

/// Everything that a report shows; missing parts are omitted.
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
    pub plans: Vec<PlanRow>,
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

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use oomph_explain::{Options, explain};
    use oomph_trace::{Action, Bytes, DeviceAddr, Event, Frame, Trace};

    use super::*;

    fn fixtures() -> Vec<PathBuf> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
        let mut found: Vec<PathBuf> = ["oom", "snapshots", "variants"]
            .iter()
            .flat_map(|folder| std::fs::read_dir(root.join(folder)).unwrap())
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "xz"))
            .collect();
        found.sort();
        found
    }

    fn trace(path: &Path) -> Trace {
        oomph_trace::snapshot::read(std::fs::File::open(path).unwrap(), path)
            .unwrap()
            .0
    }

    fn history(trace: &Trace) -> History<'_> {
        History {
            name: "run".to_owned(),
            trace,
            options: Options::default(),
        }
    }

    /// Bytes of the blocks alive at a moment, from what the page gets.
    fn alive(
        head: &Value,
        columns: &std::collections::HashMap<String, Vec<u64>>,
        moment: u64,
    ) -> u64 {
        let sizes: Vec<u64> = head["sizes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|size| size[1].as_u64().unwrap())
            .collect();
        (0..columns["start"].len())
            .filter(|&block| {
                let (start, life) = (columns["start"][block], columns["life"][block]);
                start <= moment && (life == 0 || moment < start + life)
            })
            .map(|block| sizes[columns["size"][block] as usize])
            .sum()
    }

    #[test]
    fn levels_and_blocks_agree_with_the_explanation() {
        for path in fixtures() {
            let trace = trace(&path);
            let found = explain(&trace, &Options::default());
            let history = history(&trace);
            let packed = history::digest(&history).pack(&mut Redactor::new(false));
            let (head, levels) = payload::tests::read(&packed.overview);
            let (names, blocks) = payload::tests::read(&packed.detail);
            let peak = head["peak_bytes"].as_u64().unwrap();
            assert_eq!(levels["high0"].iter().max(), Some(&peak), "{path:?}");
            let moment = head["peak"].as_u64().unwrap();
            assert_eq!(alive(&names, &blocks, moment), peak, "{path:?}");
            match head["failures"].as_array().unwrap().last() {
                Some(failure) => {
                    let moment = failure["moment"].as_u64().unwrap();
                    assert_eq!(
                        alive(&names, &blocks, moment),
                        found.peak.live_bytes,
                        "{path:?}"
                    );
                    assert_eq!(failure["bytes"], found.peak.request_bytes);
                }
                None => assert_eq!(peak, found.peak.live_bytes, "{path:?}"),
            }
            // The categories of every bucket add up to its total.
            for (bucket, &high) in levels["high0"].iter().enumerate() {
                let sum: u64 = (0..8)
                    .map(|series| levels[&format!("series0.{series}")][bucket])
                    .sum();
                assert_eq!(sum, high, "{path:?}");
            }
            assert_eq!(
                levels["step_start"].len(),
                head["growth"]["steps"].as_array().unwrap().len()
            );
        }
    }

    #[test]
    fn growth_is_what_the_explanation_finds() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
        let leaks = trace(&root.join("oom/loss_accumulate.pickle.xz"));
        let history = history(&leaks);
        let packed = history::digest(&history).pack(&mut Redactor::new(false));
        let (head, _) = payload::tests::read(&packed.overview);
        let found = explain(&leaks, &Options::default()).growth.unwrap();
        let steps = head["growth"]["steps"].as_array().unwrap();
        let left: Vec<u64> = steps
            .iter()
            .filter_map(|step| step["left"].as_array())
            .map(|left| left.iter().map(|bytes| bytes.as_u64().unwrap()).sum())
            .collect();
        assert_eq!(left.len() + 1, steps.len());
        for bytes in &left[1..] {
            let share = *bytes as f64 / found.bytes_per_step as f64;
            assert!(
                (0.9..1.1).contains(&share),
                "{bytes} {}",
                found.bytes_per_step
            );
        }
    }

    #[test]
    fn what_is_left_out_stays_in_the_sums() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
        let trace = trace(&root.join("snapshots/resnet50_b32.pickle.xz"));
        let history = history(&trace);
        let all = history::digest(&history);
        let some = history::digest_with(&history, 1000);
        let (head, levels) = payload::tests::read(&some.pack(&mut Redactor::new(false)).overview);
        assert!(head["blocks"].as_u64().unwrap() <= 1000);
        assert!(head["left_out"].as_u64().unwrap() > 0);
        assert_eq!(head["peak_bytes"], all.peak.1);
        assert_eq!(levels["high0"].iter().max(), Some(&all.peak.1));
    }

    /// A trace whose every name is an attack.
    // Sizes are the largest that a reader lets through.
    fn hostile() -> Trace {
        const ATTACK: &str = "</script><script>alert(1)</script><img src=x onerror=alert(1)>";
        let mut trace = Trace::default();
        let text = trace.strings.intern(ATTACK);
        let frame = trace.stacks.intern_frame(Frame {
            file: text,
            name: text,
            line: 1,
        });
        let stack = trace.stacks.intern(&[frame]);
        for (row, (action, size)) in [
            (Action::SegmentAlloc, 16 << 40),
            (Action::Alloc, 1 << 20),
            (Action::Alloc, 16 << 40),
            (Action::FreeCompleted, 1 << 20),
            (Action::FreeCompleted, 3),
            (Action::SegmentFree, 7),
            (Action::Oom, 1 << 60),
        ]
        .into_iter()
        .enumerate()
        {
            trace.events.push(Event {
                action,
                addr: DeviceAddr(u64::MAX - 4096 * row as u64),
                size: Bytes(size),
                stack,
                metadata: text,
                ..Event::default()
            });
        }
        trace.devices.push(oomph_trace::DeviceRows {
            device: 0,
            rows: 0..trace.events.len(),
        });
        trace
    }

    #[test]
    fn nothing_recorded_becomes_markup() {
        let trace = hostile();
        let mut page = Page::new(Kind::Explain, "</title><script>alert(1)</script>");
        page.explanation = serde_json::to_value(explain(&trace, &Options::default())).ok();
        let html = page.history(history(&trace)).render();
        let (before, after) = BUNDLE.split_once(MARKER).unwrap();
        let data = html
            .strip_prefix(before)
            .and_then(|rest| rest.strip_suffix(after))
            .unwrap();
        for line in data.lines() {
            let payload = line
                .split_once("\">")
                .and_then(|(_, rest)| rest.strip_suffix("</script>"))
                .unwrap();
            assert!(
                payload
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte)),
                "{payload}"
            );
        }
        assert_eq!(data.lines().count(), 3);
    }

    #[test]
    fn an_empty_history_has_a_page() {
        let trace = Trace::default();
        let html = Page::new(Kind::Explain, "nothing")
            .history(history(&trace))
            .render();
        assert!(html.contains("oomph-overview-0"));
    }

    #[test]
    fn redacted_pages_hold_no_names() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
        let trace = trace(&root.join("oom/loss_accumulate.pickle.xz"));
        let found = explain(&trace, &Options::default());
        let history = history(&trace);
        let mut redact = Redactor::new(true);
        let packed = history::digest(&history).pack(&mut redact);
        let explanation = redact.json(&serde_json::to_value(&found).unwrap());
        let texts = [
            payload::tests::read(&packed.overview).0.to_string(),
            payload::tests::read(&packed.detail).0.to_string(),
            explanation.to_string(),
        ];
        for text in &texts {
            for secret in ["scenarios", "/job", "/venv"] {
                assert!(!text.contains(secret), "{secret} in {text:.2000}");
            }
        }
        assert!(texts[1].contains("torch/nn/modules"), "public names stay");
    }

    #[test]
    fn every_format_is_written() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
        let trace = trace(&root.join("oom/loss_accumulate.pickle.xz"));
        let page = Page::new(Kind::Explain, "<job>").history(history(&trace));
        for (format, name) in crate::export::Format::ALL {
            let bytes = crate::export::export(format, &page).unwrap();
            assert_eq!(name.parse(), Ok(format));
            match name {
                "png" => assert!(bytes.starts_with(b"\x89PNG")),
                "svg" => assert!(String::from_utf8(bytes).unwrap().contains("&lt;job&gt;")),
                "csv" => {
                    let text = String::from_utf8(bytes).unwrap();
                    let sum: u64 = text
                        .lines()
                        .skip(1)
                        .map(|line| line.split(',').next().unwrap().parse::<u64>().unwrap())
                        .sum();
                    assert_eq!(sum, history::digest(&page.histories[0]).peak.1);
                }
                "firefox" => {
                    let profile: Value = serde_json::from_slice(&bytes).unwrap();
                    let thread = &profile["threads"][0];
                    let allocations = &thread["nativeAllocations"];
                    let weights = allocations["weight"].as_array().unwrap();
                    assert_eq!(allocations["length"], weights.len());
                    let stacks = thread["stackTable"]["length"].as_u64().unwrap();
                    for stack in allocations["stack"].as_array().unwrap() {
                        assert!(stack.as_u64().is_none_or(|stack| stack < stacks));
                    }
                    let mut now = 0;
                    let most = weights.iter().map(|weight| {
                        now += weight.as_i64().unwrap();
                        now
                    });
                    assert_eq!(
                        most.max().unwrap() as u64,
                        history::digest(&page.histories[0]).peak.1
                    );
                }
                "perfetto" => {
                    let events: Value = serde_json::from_slice(&bytes).unwrap();
                    let most = events["traceEvents"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .filter(|event| event["name"] == "allocated")
                        .map(|event| {
                            event["args"]
                                .as_object()
                                .unwrap()
                                .values()
                                .map(|bytes| bytes.as_u64().unwrap())
                                .sum::<u64>()
                        })
                        .max();
                    assert_eq!(most, Some(history::digest(&page.histories[0]).peak.1));
                }
                _ => {
                    let document: Value = serde_json::from_slice(&bytes).unwrap();
                    assert_eq!(document["format"], "oomph.report/1");
                }
            }
        }
    }
}
