//! Makes a long history of a short one: repeats its last steps until there are enough events.
//!
//! `cargo run --release -p oomph-trace --example repeat_steps -- trace.oomph EVENTS long.oomph`
//!
//! The trace must have labels (`oomph run` writes them). Some blocks lie elsewhere at the end of a step
//! than at its begin; before each repetition they are moved back. Step numbers go on as if the job had run; so do times, with
//! every pause between two events varied by up to a half, since no clock repeats itself.

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::path::Path;

use oomph_trace::{Action, DeviceRows, TimeUs, Trace, oomph_file};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, wanted, target] = arguments.as_slice() else {
        return Err("usage: repeat_steps trace.oomph EVENTS long.oomph".into());
    };
    let wanted: usize = wanted.parse()?;
    let (short, _) = oomph_file::read(std::fs::File::open(source)?, Path::new(source))?;
    let labels = short.labels.clone().ok_or("the trace has no labels")?;
    let device = short.devices.first().ok_or("the trace has no events")?;
    // Where steps begin, and what is in use there: address and the row that made it.
    let mut starts: Vec<(usize, BTreeMap<u64, usize>)> = Vec::new();
    let mut in_use = BTreeMap::new();
    for row in device.rows.clone() {
        if labels.get(row).step as usize > starts.len() {
            starts.push((row, in_use.clone()));
        }
        let addr = short.events.addr(row).0;
        match short.events.action(row) {
            Action::Alloc => in_use.insert(addr, row),
            Action::FreeCompleted => in_use.remove(&addr),
            _ => None,
        };
    }
    let [.., (start, before), (end, after)] = starts.as_slice() else {
        return Err("the trace needs three steps at least".into());
    };
    let (start, end) = (*start, *end);
    let gone: Vec<usize> = before
        .iter()
        .filter(|(addr, _)| !after.contains_key(addr))
        .map(|(_, &row)| row)
        .collect();
    let came: Vec<usize> = after
        .iter()
        .filter(|(addr, _)| !before.contains_key(addr))
        .map(|(_, &row)| row)
        .collect();
    let times = wanted.saturating_sub(short.events.len()) / (end - start);

    let mut long = Trace {
        events: oomph_trace::Events::default(),
        labels: None,
        devices: Vec::new(),
        ..short.clone()
    };
    let mut known: HashMap<oomph_trace::Label, u32> = HashMap::new();
    let mut made = oomph_trace::Labels::default();
    let mut clock = short.events.time(device.rows.start).0;
    let mut random = 1_u64;
    let mut push = |row: usize, later: usize, action: Option<Action>| {
        let mut event = short.events.get(row);
        event.action = action.unwrap_or(event.action);
        let before = row.saturating_sub(1).max(device.rows.start);
        let pause = (event.time.0 - short.events.time(before).0).max(0);
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        clock += pause / 2 + pause * (random >> 40) as i64 / (1 << 24);
        event.time = TimeUs(clock);
        let at = long.events.push(event);
        let mut label = labels.get(row);
        if label == oomph_trace::Label::default() {
            return;
        }
        label.step += later as u32;
        let handle = *known.entry(label).or_insert_with(|| made.add(label));
        made.set(at, handle);
    };
    for row in device.rows.start..end {
        push(row, 0, None);
    }
    for later in 1..=times {
        for &row in &came {
            push(row, later, Some(Action::FreeRequested));
            push(row, later, Some(Action::FreeCompleted));
        }
        for &row in &gone {
            push(row, later, None);
        }
        for row in start..end {
            push(row, later, None);
        }
    }
    for row in end..device.rows.end {
        push(row, times, None);
    }
    let count = long.events.len();
    long.labels = Some(made);
    long.devices = vec![DeviceRows {
        device: device.device,
        rows: 0..count,
    }];
    let mut out = std::io::BufWriter::new(std::fs::File::create(target)?);
    oomph_file::write(&long, &mut out)?;
    out.flush()?;
    println!("{count} events; {times} times rows {start} to {end}");
    Ok(())
}
