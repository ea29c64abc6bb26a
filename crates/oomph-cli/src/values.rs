//! Values of options that several commands take: durations, and names of choices.

use std::time::Duration;

/// Reads a time such as `30s`, `5m`, `1.5h` or `7d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let expected = || {
        "expected a number and a unit: s, m (minutes), h or d, such as 30s, 5m, 1h or 7d".to_owned()
    };
    let text = text.trim();
    let split = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .ok_or_else(expected)?;
    let (number, unit) = text.split_at(split);
    let seconds = match unit.trim() {
        "s" | "sec" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(expected()),
    };
    let number: f64 = number.parse().map_err(|_| expected())?;
    Duration::try_from_secs_f64(number * seconds)
        .ok()
        .filter(|time| !time.is_zero())
        .ok_or_else(|| "it is no time that can be waited for".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        for (text, seconds) in [("30s", 30), ("5m", 300), ("1.5h", 5400), (" 7 d ", 604_800)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in [
            "", "30", "s", "1.2.3s", "-5s", "5 weeks", "0s", "1e99d", "nan", "5é",
        ] {
            duration(text).expect_err(text);
        }
    }
}
