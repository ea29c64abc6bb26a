//! What a script takes and costs on each GPU of the catalogue.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use oomph_bytes::format_bytes;
use oomph_clock::{Figures, Host, NoFigures};
use oomph_gpus::Gpu;
use oomph_run::time::{StepTime, step_time};
use oomph_run::{Record, Summary};
use serde::Serialize;

use crate::table::{Align, Table};
use crate::time::{bound, seconds};

/// Version of the JSON. Adding fields keeps it; changing their meaning does not.
pub const FORMAT: &str = "oomph.gpus-for/1";

/// What comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// The cheapest step.
    Cost,
    /// The quickest.
    Time,
}

/// A price of renting a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Price {
    /// US dollars an hour.
    pub usd_per_hour: f64,
    /// When it was typical, `YYYY-MM`; none for the user's own.
    pub as_of: Option<String>,
    /// Where it is from.
    pub source: String,
}

/// What a script takes on one GPU.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Suit {
    /// The GPU.
    pub gpu: String,
    /// What CUDA can use there.
    pub memory_bytes: u64,
    /// What the script takes.
    pub needed_bytes: u64,
    /// Whether that fits.
    pub fits: bool,
    /// How long a step takes.
    pub time: Option<StepTime>,
    /// Why nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_unknown: Option<String>,
    /// What it costs to rent.
    pub price: Option<Price>,
    /// US dollars for a million steps.
    pub usd_per_million_steps: Option<f64>,
    /// The same for tokens.
    pub usd_per_million_tokens: Option<f64>,
}

impl Suit {
    /// What a rehearsed script takes on this GPU with these figures, beside this host; `prices` are the user's own, by the names
    /// of GPUs.
    pub fn new(
        gpu: &Gpu,
        figures: Result<Figures, NoFigures>,
        record: &Record,
        summary: &Summary,
        host: &Host,
        prices: Option<&BTreeMap<String, f64>>,
    ) -> Self {
        // What lies outside the allocator is the GPU's own.
        let needed = summary.peak.reserved_bytes + gpu.context.total_bytes();
        let (time, time_unknown) = match figures {
            Ok(figures) => (step_time(record, &figures, host), None),
            Err(reason) => (None, Some(reason.to_string())),
        };
        let own = prices.and_then(|prices| prices.get(&gpu.id));
        let price = match (own, gpu.cost.usd_per_hour) {
            (Some(&usd_per_hour), _) => Some(Price {
                usd_per_hour,
                as_of: None,
                source: "your file of prices".to_owned(),
            }),
            (None, Some(usd_per_hour)) => Some(Price {
                usd_per_hour,
                as_of: gpu.cost.as_of.clone(),
                source: gpu
                    .sources
                    .get(&oomph_gpus::Figure::Cost)
                    .map_or_else(String::new, |source| source.note.clone()),
            }),
            (None, None) => None,
        };
        let second = price.as_ref().map(|price| price.usd_per_hour / 3600.0);
        let costs = |per_second: f64| second.map(|second| second * 1e6 / per_second);
        Self {
            gpu: gpu.id.clone(),
            memory_bytes: gpu.memory.total_bytes,
            needed_bytes: needed,
            fits: needed <= gpu.memory.total_bytes,
            usd_per_million_steps: time
                .as_ref()
                .and_then(|time| costs(1.0 / time.estimate.step_seconds)),
            usd_per_million_tokens: time
                .as_ref()
                .and_then(|time| time.tokens_per_second.and_then(costs)),
            time,
            time_unknown,
            price,
        }
    }

    fn key(&self, order: Order) -> (bool, f64) {
        let seconds = self.time.as_ref().map(|time| time.estimate.step_seconds);
        let value = match order {
            Order::Cost => self.usd_per_million_steps,
            Order::Time => seconds,
        };
        (!self.fits, value.unwrap_or(f64::INFINITY))
    }
}

/// The result of `oomph gpus --for`.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct GpusFor {
    /// `oomph.gpus-for/1`.
    pub format: &'static str,
    /// The script and its arguments.
    pub script: Vec<String>,
    /// Whether a step is one of an optimizer, or a pass.
    pub trains: bool,
    /// What comes first in `gpus`.
    pub order: Order,
    /// Those that fit first.
    pub gpus: Vec<Suit>,
}

impl GpusFor {
    /// In order.
    pub fn new(mut suits: Vec<Suit>, summary: &Summary, order: Order) -> Self {
        suits.sort_by(|a, b| {
            let (a_key, b_key) = (a.key(order), b.key(order));
            a_key
                .0
                .cmp(&b_key.0)
                .then(a_key.1.total_cmp(&b_key.1))
                .then(a.gpu.cmp(&b.gpu))
        });
        Self {
            format: FORMAT,
            script: summary.script.clone(),
            trains: summary.trains,
            order,
            gpus: suits,
        }
    }
}

/// The table, `columns` wide: GPUs that fit, then how many do not.
pub fn gpus_for(found: &GpusFor, columns: usize) -> String {
    let unit = if found.trains { "step" } else { "pass" };
    let fits: Vec<&Suit> = found.gpus.iter().filter(|suit| suit.fits).collect();
    let cells =
        |cell: &dyn Fn(&Suit) -> String| fits.iter().map(|suit| cell(suit)).collect::<Vec<_>>();
    let dollars = |value: Option<f64>| match value {
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) if value >= 1.0 => format!("{value:.2}"),
        Some(value) => format!("{value:.4}"),
        None => "–".to_owned(),
    };
    let time = |part: &dyn Fn(&StepTime) -> String, suit: &Suit| {
        suit.time.as_ref().map_or_else(|| "–".to_owned(), part)
    };
    let with_tokens = fits
        .iter()
        .any(|suit| suit.usd_per_million_tokens.is_some());
    let mut table = Table::default()
        .column("gpu", Align::Left, 0, cells(&|suit| suit.gpu.clone()))
        .column(
            if found.trains { "step" } else { "pass" },
            Align::Right,
            0,
            cells(&|suit| time(&|time| seconds(time.estimate.step_seconds), suit)),
        )
        .column(
            "from",
            Align::Right,
            3,
            cells(&|suit| time(&|time| seconds(time.estimate.low), suit)),
        )
        .column(
            "to",
            Align::Right,
            3,
            cells(&|suit| time(&|time| seconds(time.estimate.high), suit)),
        )
        .column(
            "waits for",
            Align::Left,
            4,
            cells(&|suit| time(&|time| bound(time.estimate.bound).to_owned(), suit)),
        )
        .column(
            "$/hour",
            Align::Right,
            1,
            cells(&|suit| dollars(suit.price.as_ref().map(|price| price.usd_per_hour))),
        )
        .column(
            if found.trains {
                "$/M steps"
            } else {
                "$/M passes"
            },
            Align::Right,
            1,
            cells(&|suit| dollars(suit.usd_per_million_steps)),
        );
    if with_tokens {
        table = table.column(
            "$/M tokens",
            Align::Right,
            2,
            cells(&|suit| dollars(suit.usd_per_million_tokens)),
        );
    }
    table = table.column(
        "needs",
        Align::Right,
        2,
        cells(&|suit| {
            format!(
                "{} of {}",
                format_bytes(suit.needed_bytes),
                format_bytes(suit.memory_bytes)
            )
        }),
    );
    let mut out = String::new();
    if fits.is_empty() {
        let _ = writeln!(out, "It fits none of them.");
    } else {
        let _ = write!(out, "\n{}", table.render(columns));
    }
    let without = found.gpus.len() - fits.len();
    if without > 0 && !fits.is_empty() {
        let _ = writeln!(
            out,
            "\n{without} others have too little memory: oomph fit finds plans for them."
        );
    }
    if let Some(time) = fits.iter().find_map(|suit| suit.time.as_ref()) {
        let _ = writeln!(
            out,
            "Times are estimates: nine of ten {} should lie within from and to on an H200; other GPUs follow from their \
             published figures, and were not measured. The host is {}.",
            crate::time::several(unit),
            time.estimate.host
        );
    }
    let dates: Vec<&str> = fits
        .iter()
        .filter_map(|suit| suit.price.as_ref()?.as_of.as_deref())
        .collect();
    if let (Some(first), Some(last)) = (dates.iter().min(), dates.iter().max()) {
        let when = if first == last {
            (*first).to_owned()
        } else {
            format!("{first} to {last}")
        };
        let _ = writeln!(
            out,
            "Prices are the catalogue's, typical of {when} (oomph gpus NAME has their source); --prices takes yours."
        );
    }
    out
}
