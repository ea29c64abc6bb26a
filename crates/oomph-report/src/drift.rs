//! How far a plan changes a script's results, as JSON and as text.

use std::fmt::Write as _;

use oomph_plan::{Lever, Results};
use oomph_run::record::{LeverReport, Outcome};
use serde::{Deserialize, Serialize};

use crate::terminal::{BAD, BOLD, DIM, GOOD, WARN, pad, pad_left, paint, wrap};

/// Version of the JSON. Adding fields keeps it; changing their meaning does not.
pub const FORMAT: &str = "oomph.drift/1";

/// A figure that may be infinite, which JSON can only express as text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure(pub f64);

impl Serialize for Figure {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() {
            to.serialize_f64(self.0)
        } else {
            to.serialize_str("infinite")
        }
    }
}

impl schemars::JsonSchema for Figure {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Figure".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A number, which may be infinite.",
            "anyOf": [{ "type": "number" }, { "const": "infinite" }],
        })
    }
}

impl<'de> Deserialize<'de> for Figure {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Stated {
            Number(f64),
            Text(String),
        }
        match Stated::deserialize(from)? {
            Stated::Number(number) => Ok(Self(number)),
            Stated::Text(text) if text == "infinite" => Ok(Self(f64::INFINITY)),
            Stated::Text(text) => Err(serde::de::Error::custom(format!(
                "expected a number or \"infinite\", found {text:?}"
            ))),
        }
    }
}

/// One output of a model, over all compared calls.
#[derive(Debug, Clone, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Output {
    /// Its place in the model's output.
    pub name: String,
    /// Calls that were compared.
    pub calls: u32,
    /// The L2 norm of the difference over that of the plain output: the largest of any call.
    pub relative_error: Option<Figure>,
    /// The mean over the calls.
    pub mean_relative_error: Option<Figure>,
    /// The largest difference of one value.
    pub largest_difference: Option<Figure>,
    /// The share of samples or tokens with the same greatest entry; of integers, that are equal.
    pub agreement: Option<f64>,
    /// How many were compared for that.
    pub compared: u64,
    /// Perplexity of the input tokens, plain and planned.
    pub perplexity: Option<[Figure; 2]>,
    /// Planned over plain, minus one.
    pub perplexity_change: Option<Figure>,
    /// Whether errors are of a sample of the values.
    pub sampled: bool,
}

/// How the error grew in one layer, in the first call.
#[derive(Debug, Clone, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Layer {
    /// Its path in the model.
    pub name: String,
    /// Its class.
    pub kind: String,
    /// The relative error of its input.
    pub error_in: Figure,
    /// The relative error of its output.
    pub error_out: Figure,
    /// The difference of the two.
    pub growth: Figure,
}

/// What a comparison found.
#[derive(Debug, Clone, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Measured {
    /// How the script ended.
    #[serde(skip_serializing)]
    #[schemars(skip)]
    pub outcome: Outcome,
    /// What it computed on.
    pub device: String,
    /// Whether that was a GPU.
    pub on_gpu: bool,
    /// The version of torch.
    pub torch: String,
    /// Calls of models that were made.
    pub calls: u32,
    /// The first call with other tokens; calls from there on are not compared.
    pub diverged_at: Option<u32>,
    /// The outputs.
    pub outputs: Vec<Output>,
    /// The layers in which the error grew the most, most first.
    pub layers: Vec<Layer>,
    /// What could not be compared.
    pub notes: Vec<String>,
    /// What the levers did.
    pub levers: Vec<LeverReport>,
}

impl Measured {
    /// The largest relative error of any output; where outputs are integers, the share that differs.
    pub fn largest_error(&self) -> f64 {
        self.outputs
            .iter()
            .map(|output| match (output.relative_error, output.agreement) {
                (Some(error), _) => error.0,
                (None, Some(agreement)) => 1.0 - agreement,
                (None, None) => 0.0,
            })
            .fold(0.0, f64::max)
    }
}

/// Everything that `oomph drift` writes.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Drift {
    /// [`FORMAT`].
    pub format: &'static str,
    /// The plan's file.
    pub plan: String,
    /// What it changes.
    pub levers: Vec<Lever>,
    /// The weakest promise among its levers.
    pub same_results: Option<Results>,
    /// The limit that was set.
    pub max_drift: Option<f64>,
    /// What was measured; `null` if nothing was, which is not the same as no drift.
    pub measured: Option<Measured>,
    /// Whether it is more than the limit.
    pub exceeded: bool,
    /// Why nothing was measured.
    pub why_not: Option<String>,
}

const TITLE: usize = 10;

/// The text, `width` columns wide.
pub fn drift_report(drift: &Drift, width: usize) -> String {
    let mut out = String::new();
    let words: Vec<String> = drift.levers.iter().map(ToString::to_string).collect();
    let row = |out: &mut String, title: &str, text: &str| {
        let indent = TITLE + 3;
        let _ = writeln!(
            out,
            "  {} {}",
            paint(DIM, pad(title, TITLE)),
            wrap(text, width.saturating_sub(indent), indent)
        );
    };
    let _ = writeln!(out);
    let Some(measured) = &drift.measured else {
        let why = drift.why_not.as_deref().unwrap_or("nothing was run");
        let text = format!("drift is not measured: {why}");
        let _ = writeln!(out, "{} {}\n", paint(WARN, "?"), paint(BOLD, text));
        row(&mut out, "plan", &words.join(" + "));
        return out;
    };
    let _ = writeln!(
        out,
        "{}\n",
        paint(
            DIM,
            format!(
                "{} · torch {} · {} call{}",
                measured.device,
                measured.torch,
                measured.calls,
                if measured.calls == 1 { "" } else { "s" }
            )
        )
    );
    let largest = measured.largest_error();
    let verdict = match drift.max_drift {
        Some(limit) if drift.exceeded => {
            format!(
                "drift {}, above the limit of {}",
                share(largest),
                share(limit)
            )
        }
        Some(limit) => format!(
            "drift {}, within the limit of {}",
            share(largest),
            share(limit)
        ),
        None => format!("drift {}", share(largest)),
    };
    let mark = if drift.exceeded {
        paint(BAD, "✗")
    } else {
        paint(GOOD, "✓")
    };
    let _ = writeln!(out, "{mark} {}\n", paint(BOLD, verdict));
    row(&mut out, "plan", &words.join(" + "));
    for output in &measured.outputs {
        row(&mut out, &output.name, &describe(output));
    }
    for (index, layer) in measured.layers.iter().enumerate() {
        let title = if index == 0 { "grows in" } else { "" };
        let text = format!(
            "{} to {}  {} ({})",
            pad_left(&share(layer.error_in.0), 8),
            pad(&share(layer.error_out.0), 8),
            layer.name,
            layer.kind
        );
        row(&mut out, title, &text);
    }
    if let Some(call) = measured.diverged_at {
        let text = format!(
            "from call {} on the tokens differ; those calls are not compared",
            call + 1
        );
        row(&mut out, "note", &text);
    }
    for note in &measured.notes {
        row(&mut out, "note", note);
    }
    out
}

fn describe(output: &Output) -> String {
    let mut parts = Vec::new();
    if let Some(error) = output.relative_error {
        let sampled = if output.sampled { " (of a sample)" } else { "" };
        parts.push(format!("relative error {}{sampled}", share(error.0)));
    }
    if let Some(agreement) = output.agreement {
        let what = if output.relative_error.is_some() {
            "the same first choice in"
        } else {
            "equal in"
        };
        parts.push(format!(
            "{what} {:.2} % of {}",
            agreement * 100.0,
            output.compared
        ));
    }
    if let (Some([plain, planned]), Some(change)) = (output.perplexity, output.perplexity_change) {
        parts.push(format!(
            "perplexity {:.4e} to {:.4e} ({:+.3} %)",
            plain.0,
            planned.0,
            change.0 * 100.0
        ));
    }
    parts.join(", ")
}

/// A share of one in percent, to three figures.
fn share(value: f64) -> String {
    if value == 0.0 {
        "0 %".to_owned()
    } else if !value.is_finite() {
        "infinite".to_owned()
    } else if value < 1e-4 {
        format!("{:.1e} %", value * 100.0)
    } else {
        format!("{:.3} %", value * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_measured_is_not_zero() {
        let drift = Drift {
            format: FORMAT,
            plan: "plan.toml".to_owned(),
            levers: Vec::new(),
            same_results: None,
            max_drift: None,
            measured: None,
            exceeded: false,
            why_not: Some("no reason".to_owned()),
        };
        let text = drift_report(&drift, 80);
        assert!(text.contains("not measured: no reason"), "{text}");
        let json = serde_json::to_value(&drift).unwrap_or_default();
        assert!(json["measured"].is_null());
    }

    #[test]
    fn infinite_errors_survive_json() {
        let text = serde_json::to_string(&Figure(f64::INFINITY)).unwrap_or_default();
        assert_eq!(text, "\"infinite\"");
        let back: Figure = serde_json::from_str(&text).unwrap_or(Figure(0.0));
        assert!(back.0.is_infinite());
        assert!(serde_json::from_str::<Figure>("\"much\"").is_err());
    }
}
