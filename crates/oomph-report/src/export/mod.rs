//! The history in other programs' formats, and the main charts as pictures.
//!
//! Exports are made from the first history of a page, whole: names are as in the page, replaced
//! where the page is redacted.

mod chart;
mod csv;
mod firefox;
mod perfetto;
mod picture;

use std::fmt;
use std::str::FromStr;

use crate::html::Page;
use crate::html::history::{Digest, digest};
use crate::html::redact::Redactor;

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
fn json(digest: &Digest, page: &Page, redact: &mut Redactor) -> String {
    // The packed form names every module and file first, so that sentences can be redacted.
    let _ = digest.pack(redact);
    let curve: Vec<_> = digest.curve();
    let mut document = |value: &Option<serde_json::Value>| value.as_ref().map(|v| redact.json(v));
    let mut text = serde_json::json!({
        "format": "oomph.report/1",
        "oomph": env!("CARGO_PKG_VERSION"),
        "kind": page.kind,
        "summary": document(&page.summary),
        "explanation": document(&page.explanation),
        "diff": document(&page.diff),
        "plans": page.plans,
        "what_if": page.what_if,
        "timeline": {
            "moments": curve.iter().map(|(moment, _)| *moment).collect::<Vec<_>>(),
            "time_us": curve.iter().map(|(moment, _)| digest.time(*moment)).collect::<Vec<_>>(),
            "categories": oomph_trace::Category::ALL.iter().enumerate().map(|(index, category)| {
                let bytes: Vec<u64> = curve.iter().map(|(_, bytes)| bytes[index]).collect();
                (category.id(), bytes)
            }).collect::<std::collections::BTreeMap<_, _>>(),
            "reserved": digest.reserved,
        },
        "steps": digest.growth.steps,
        "peak": { "moment": digest.peak.0, "bytes": digest.peak.1 },
    })
    .to_string();
    text.push('\n');
    text
}
