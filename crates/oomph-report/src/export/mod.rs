//! The history in other programs' formats, and the main charts as pictures.
//!
//! Exports are made from the first history of a page, whole: names are as in the page, replaced
//! where the page is redacted.

mod chart;
mod csv;
mod firefox;
mod perfetto;
mod picture;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde_json::Value;

use crate::html::growth::StepLeft;
use crate::html::history::{Digest, digest};
use crate::html::redact::Redactor;
use crate::html::what_if::WhatIf;
use crate::html::{Kind, Page, PlanRow};

/// Version of the JSON. Adding fields keeps it; changing their meaning does not.
pub const FORMAT: &str = "oomph.report/1";

/// A format to export to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Trace events for ui.perfetto.dev and chrome://tracing.
    Perfetto,
    /// A processed profile for profiler.firefox.com.
    Firefox,
    /// The timeline and the peak as vectors.
    Svg,
    /// The same as a picture.
    Png,
    /// What is alive at the peak, by line, module and category.
    Csv,
    /// All figures of the page.
    Json,
}

impl Format {
    /// All formats with their names.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Perfetto, "perfetto"),
        (Self::Firefox, "firefox"),
        (Self::Svg, "svg"),
        (Self::Png, "png"),
        (Self::Csv, "csv"),
        (Self::Json, "json"),
    ];

    /// The name of the file, where none is asked for.
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Perfetto => "report.perfetto.json",
            Self::Firefox => "report.firefox.json",
            Self::Svg => "report.svg",
            Self::Png => "report.png",
            Self::Csv => "report.csv",
            Self::Json => "report.json",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(format, _)| format == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .iter()
            .find(|(_, name)| *name == text)
            .map(|&(format, _)| format)
            .ok_or_else(|| {
                let names: Vec<&str> = Self::ALL.iter().map(|&(_, name)| name).collect();
                format!("expected one of {}", names.join(", "))
            })
    }
}

/// Exports the first history of a page; `None` if it has none.
pub fn export(format: Format, page: &Page) -> Option<Vec<u8>> {
    let history = page.histories.first()?;
    let digest = digest(history);
    let mut redact = Redactor::new(page.redact);
    Some(match format {
        Format::Perfetto => perfetto::export(&digest, page).into_bytes(),
        Format::Firefox => firefox::export(&digest, page, &mut redact).into_bytes(),
        Format::Csv => csv::export(&digest, &mut redact).into_bytes(),
        Format::Json => json(&digest, page, &mut redact).into_bytes(),
        Format::Svg => chart::draw(&digest, page, &mut redact).svg().into_bytes(),
        Format::Png => chart::draw(&digest, page, &mut redact).png(),
    })
}

/// All figures of the page in one document.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Report<'a> {
    /// `oomph.report/1`.
    format: &'static str,
    /// The version of oomph that wrote it.
    oomph: &'static str,
    /// What the page is of.
    kind: Kind,
    /// The run, as `oomph.run/1` or what is left of it.
    summary: Option<Value>,
    /// The explanation, as `oomph.explain/1`.
    explanation: Option<Value>,
    /// What changed, as `oomph.diff/1`.
    diff: Option<Value>,
    /// The plans that `oomph fit` found.
    plans: &'a [PlanRow],
    /// Other settings of the allocator.
    what_if: &'a [WhatIf],
    /// What was alive, through the history.
    timeline: Timeline<'a>,
    /// What each step needed and left.
    steps: &'a [StepLeft],
    /// When the most was alive.
    peak: PeakMoment,
}

/// Columns of one length: a row for each moment at which the height of the curve is kept.
#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Timeline<'a> {
    /// Events of the history.
    moments: Vec<u32>,
    /// Microseconds.
    time_us: Vec<u64>,
    /// Bytes by what they hold.
    categories: BTreeMap<&'static str, Vec<u64>>,
    /// Bytes that the allocator held: pairs of a moment and a height.
    reserved: &'a [(u32, u64)],
}

/// The moment at which the most was alive.
#[derive(Debug, Serialize, schemars::JsonSchema)]
struct PeakMoment {
    /// An event of the history.
    moment: u32,
    /// Bytes.
    bytes: u64,
}

fn json(digest: &Digest, page: &Page, redact: &mut Redactor) -> String {
    // The packed form names every module and file first, so that sentences can be redacted.
    let _ = digest.pack(redact);
    let curve: Vec<_> = digest.curve();
    let mut document = |value: &Option<Value>| value.as_ref().map(|v| redact.json(v));
    let report = Report {
        format: FORMAT,
        oomph: env!("CARGO_PKG_VERSION"),
        kind: page.kind,
        summary: document(&page.summary),
        explanation: document(&page.explanation),
        diff: document(&page.diff),
        plans: &page.plans,
        what_if: &page.what_if,
        timeline: Timeline {
            moments: curve.iter().map(|(moment, _)| *moment).collect(),
            time_us: curve
                .iter()
                .map(|(moment, _)| digest.time(*moment))
                .collect(),
            categories: oomph_trace::Category::ALL
                .iter()
                .enumerate()
                .map(|(index, category)| {
                    let bytes = curve.iter().map(|(_, bytes)| bytes[index]).collect();
                    (category.id(), bytes)
                })
                .collect(),
            reserved: &digest.reserved,
        },
        steps: &digest.growth.steps,
        peak: PeakMoment {
            moment: digest.peak.0,
            bytes: digest.peak.1,
        },
    };
    serde_json::to_string(&report).unwrap_or_default() + "\n"
}
