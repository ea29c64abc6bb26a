//! `OOMPH_NET`: `on`, or settings like `mode=blind,host=8589934592`.

use std::fs::{self, File};
use std::sync::OnceLock;

/// How to spill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// What comes last comes to the host and stays there.
    Blind,
    /// Units move by the rhythm of the job.
    Rhythm,
    /// Units move at random, all the time: a test of moving.
    Stress,
}

#[derive(Debug)]
pub struct Settings {
    pub mode: Mode,
    /// The most device memory to hand out, in bytes: a smaller GPU, for measurements.
    pub device: u64,
    /// The most host memory to use, in bytes.
    pub host: u64,
    /// Units are at most so large, in bytes.
    pub unit: u64,
    /// Where to say what happens.
    pub log: Option<File>,
}

/// The settings, if the net is wanted in this process.
pub fn get() -> Option<&'static Settings> {
    static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();
    if let Some(known) = SETTINGS.get() {
        return known.as_ref();
    }
    // Looked for until they are there: a process may be forked and get them then.
    let text = std::env::var("OOMPH_NET")
        .ok()
        .filter(|text| !text.is_empty())?;
    SETTINGS
        .get_or_init(|| match parse(&text) {
            Ok(settings) => Some(settings),
            Err(what) => {
                crate::say(&format!("OOMPH_NET: {what}; the net is off"));
                None
            }
        })
        .as_ref()
}

fn parse(text: &str) -> Result<Settings, String> {
    let mut settings = Settings {
        mode: Mode::Rhythm,
        device: u64::MAX,
        host: usual_host(),
        unit: 20 << 20,
        log: None,
    };
    for setting in text.split(',').filter(|&setting| setting != "on") {
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        let bytes = || {
            value
                .parse()
                .map_err(|_| format!("{key} needs a number of bytes, not {value:?}"))
        };
        match key {
            "mode" => {
                settings.mode = match value {
                    "blind" => Mode::Blind,
                    "rhythm" => Mode::Rhythm,
                    "stress" => Mode::Stress,
                    _ => return Err(format!("mode is blind, rhythm or stress, not {value:?}")),
                }
            }
            "device" => settings.device = bytes()?,
            "host" => settings.host = bytes()?,
            "unit" => settings.unit = bytes()?,
            "log" => {
                let file = File::options().create(true).append(true).open(value);
                settings.log = Some(file.map_err(|error| format!("{value}: {error}"))?);
            }
            _ => return Err(format!("unknown setting {key:?}")),
        }
    }
    Ok(settings)
}

/// Half of the memory that the machine or the container has left: what the net pins cannot be swapped out.
fn usual_host() -> u64 {
    let read = |path: &str| fs::read_to_string(path).ok();
    let number = |path: &str| read(path).and_then(|text| text.trim().parse::<u64>().ok());
    let available = read("/proc/meminfo").and_then(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kilobytes << 10)
    });
    let of_container = number("/sys/fs/cgroup/memory.max")
        .map(|most| most.saturating_sub(number("/sys/fs/cgroup/memory.current").unwrap_or(0)));
    available.unwrap_or(0).min(of_container.unwrap_or(u64::MAX)) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_others_refused() {
        let settings = parse("on,mode=blind,device=1024,host=7").unwrap();
        assert_eq!(
            (settings.mode, settings.device, settings.host),
            (Mode::Blind, 1024, 7)
        );
        assert_eq!(parse("on").unwrap().device, u64::MAX);
        assert_eq!(
            parse("mode=wild").unwrap_err(),
            "mode is blind, rhythm or stress, not \"wild\""
        );
        assert_eq!(
            parse("host=1GiB").unwrap_err(),
            "host needs a number of bytes, not \"1GiB\""
        );
        assert_eq!(parse("hots=1").unwrap_err(), "unknown setting \"hots\"");
    }

    #[test]
    fn host_memory_is_limited_by_what_is_there() {
        let all = fs::read_to_string("/proc/meminfo").unwrap();
        let kilobytes: u64 = all.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(usual_host() > 0 && usual_host() <= kilobytes << 9);
    }
}
