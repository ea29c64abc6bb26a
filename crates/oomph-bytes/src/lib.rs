//! Numbers of bytes: as people write them ([`parse_bytes`], [`parse_capacity`]), as programs print them in
//! messages ([`printed_bytes`]), and as oomph prints them ([`format_bytes`], [`format_gib`]).

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

use serde::{Deserialize, Serialize};

/// A number of bytes.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Zero bytes.
    pub const ZERO: Self = Self(0);

    /// `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// `n` GiB.
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// The difference, or zero where it would be negative.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Bytes {
    type Output = Self;
    // Sizes come from files that may lie; the sum must not wrap into a small, believable number.
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.saturating_sub(other)
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Bytes {
    /// As [`format_bytes`] writes it, padded as the format asks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format_bytes(self.0))
    }
}

/// Writes a size in binary units as PyTorch does, with one decimal: `27.3 GiB`, `512 B`.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would print as "1024.0 KiB".
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Writes a size in GiB with two decimals, for sizes that are compared with each other: `9.65 GiB`.
pub fn format_gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30))
}

/// A bare number is bytes, and below this many somebody forgot the unit.
const LEAST_BARE: u64 = 1 << 20;

/// Reads a size: `10GiB`, `10GB`, `10G`, `10240MiB`, `1.5 TiB`, `1073741824`.
///
/// `KiB`, `MiB`, `GiB`, `TiB` are powers of 1024; `KB`, `MB`, `GB`, `TB` powers of 1000, as SI has them.
/// A single letter is short for the power of 1024: `10G` is `10GiB`, as in most tools, and so is
/// Kubernetes' `10Gi`. A bare number is bytes; one below 1 MiB is refused, as `--memory 10` never means ten
/// bytes. Case does not matter.
pub fn parse_bytes(text: &str) -> Result<u64, ParseBytesError> {
    let error = |reason| ParseBytesError {
        text: text.to_owned(),
        reason,
    };
    let trimmed = text.trim();
    let split = trimmed
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let number = number.replace('_', "");
    if number.is_empty() {
        return Err(error("it does not start with a number"));
    }
    let unit = unit.trim().to_ascii_lowercase();
    let scale: u64 = match unit.as_str() {
        "" | "b" | "byte" | "bytes" => 1,
        "k" | "ki" | "kib" => 1 << 10,
        "m" | "mi" | "mib" => 1 << 20,
        "g" | "gi" | "gib" => 1 << 30,
        "t" | "ti" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(error("its unit is unknown")),
    };
    let bare = unit.is_empty();
    let too_large = || error("it is larger than 2^64 - 1 bytes");
    if let Ok(whole) = number.parse::<u64>() {
        if bare && (1..LEAST_BARE).contains(&whole) {
            return Err(error("without a unit it would be that many bytes"));
        }
        return whole.checked_mul(scale).ok_or_else(too_large);
    }
    if number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(too_large());
    }
    let fraction: f64 = number
        .parse()
        .map_err(|_| error("its number is not a decimal number"))?;
    if scale == 1 {
        return Err(error("bytes cannot have a fraction"));
    }
    let bytes = fraction * scale as f64;
    // 2^64 as a float; everything below it converts without saturating.
    if bytes >= 18_446_744_073_709_551_616.0 {
        return Err(too_large());
    }
    Ok(bytes.round() as u64)
}

/// Reads a size as [`parse_bytes`] does, but not zero: the memory of a device.
pub fn parse_capacity(text: &str) -> Result<u64, ParseBytesError> {
    match parse_bytes(text)? {
        0 => Err(ParseBytesError {
            text: text.to_owned(),
            reason: "no device has that little memory",
        }),
        bytes => Ok(bytes),
    }
}

/// Reads the size at the beginning of a text as programs print it in messages: `1.66 GiB`, `144.00MiB`,
/// `25,600,000 bytes`, `54398260kB`, `21.95G`, `300Mi`, `201. GiB`; a bare whole number is bytes.
///
/// Every unit is a power of 1024: GPU programs and the kernel mean that even where they write `MB` or `kB`.
pub fn printed_bytes(text: &str) -> Option<u64> {
    /// Digits of a number: one of more is no size.
    const DIGITS: usize = 32;
    let text = text.trim_start();
    let length = text
        .bytes()
        .take(DIGITS)
        .take_while(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b','))
        .count();
    let (number, rest) = text.split_at(length);
    let number = number.trim_end_matches(['.', ',']);
    // `1900,00` in some locales; `25,600,000` in groups of three.
    let decimal_comma = number
        .split_once(',')
        .is_some_and(|(_, rest)| rest.len() != 3 && !rest.contains([',', '.']));
    let number = number.replace(',', if decimal_comma { "." } else { "" });
    let rest = rest.trim_start_matches(' ');
    let letters = rest
        .bytes()
        .take(6)
        .take_while(u8::is_ascii_alphabetic)
        .count();
    let scale: u64 = match rest
        .get(..letters)
        .unwrap_or_default()
        .to_ascii_lowercase()
        .as_str()
    {
        "k" | "kb" | "ki" | "kib" => 1 << 10,
        "m" | "mb" | "mi" | "mib" => 1 << 20,
        "g" | "gb" | "gi" | "gib" => 1 << 30,
        "t" | "tb" | "ti" | "tib" => 1 << 40,
        _ => 1,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale);
    }
    let bytes = number.parse::<f64>().ok()? * scale as f64;
    (scale > 1 && (0.0..18_446_744_073_709_551_616.0).contains(&bytes))
        .then(|| bytes.round() as u64)
}

/// A text that is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a size: {reason}; expected a number and a unit, such as 10GiB or 10G (10 × 2^30 bytes), 10240MiB, or 10GB (10 × 10^9 bytes)"
)]
#[non_exhaustive]
pub struct ParseBytesError {
    /// What was given.
    pub text: String,
    reason: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [
            ("10GiB", 10 << 30),
            ("10GB", 10_000_000_000),
            ("10g", 10 << 30),
            ("10 G", 10 << 30),
            ("10Gi", 10 << 30),
            ("10240MiB", 10 << 30),
            ("1.5GiB", 3 << 29),
            ("0.5tib", 1 << 39),
            ("512k", 512 << 10),
            ("1_048_576", 1 << 20),
            ("0", 0),
            ("17 bytes", 17),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_with_a_reason() {
        for (text, reason) in [
            ("", "does not start"),
            ("GiB", "does not start"),
            ("-1GiB", "does not start"),
            ("ten", "does not start"),
            ("10 parsecs", "unit is unknown"),
            ("1.2.3GiB", "not a decimal"),
            (".", "not a decimal"),
            ("1.5", "fraction"),
            ("10", "that many bytes"),
            ("1048575", "that many bytes"),
            ("18446744073709551616", "larger than"),
            ("99999999TiB", "larger than"),
            ("99999999.5TiB", "larger than"),
        ] {
            let message = parse_bytes(text).expect_err(text).to_string();
            assert!(message.contains(reason), "{text}: {message}");
        }
    }

    #[test]
    fn sizes_as_programs_print_them() {
        for (text, bytes) in [
            ("1.66 GiB, and", Some(1_782_411_428)),
            ("144.00MiB. See logs", Some(144 << 20)),
            ("25,600,000 bytes (allocated", Some(25_600_000)),
            ("54398260kB, file-rss", Some(54_398_260 << 10)),
            ("448MB Available", Some(448 << 20)),
            ("21.95G of", Some(23_568_633_037)),
            ("300Mi", Some(300 << 20)),
            ("201. GiB for an array", Some(201 << 30)),
            ("0 bytes", Some(0)),
            ("2048", Some(2048)),
            ("131072, Hardware limit", Some(131_072)),
            ("1900,50 MiB of pinned", Some(1_992_818_688)),
            ("4585490524328388608", Some(4_585_490_524_328_388_608)),
            ("18446744073709551616", None),
            ("99999999999999999999999999999999999999999 GiB", None),
            ("1.5", None),
            ("1.2.3 GiB", None),
            ("many GiB", None),
            ("", None),
        ] {
            assert_eq!(printed_bytes(text), bytes, "{text}");
        }
    }

    #[test]
    fn no_capacity_is_zero() {
        assert_eq!(parse_capacity("24GB"), Ok(24_000_000_000));
        assert!(parse_capacity("ten").is_err());
        let message = parse_capacity("0 GiB").expect_err("zero").to_string();
        assert!(message.contains("little memory"), "{message}");
    }

    #[test]
    fn sizes_are_shown_in_binary_units() {
        assert_eq!(format_bytes(0), "0 B");
        assert_eq!(format_bytes(1023), "1023 B");
        assert_eq!(format_bytes(1536), "1.5 KiB");
        assert_eq!(format_bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(format_bytes(150_109_880_320), "139.8 GiB");
        assert_eq!(format_bytes(5 << 40), "5.0 TiB");
        assert_eq!(format_gib(150_109_880_320), "139.80 GiB");
    }

    #[test]
    fn a_number_of_bytes_is_padded_as_asked() {
        assert_eq!(Bytes::gib(27).to_string(), "27.0 GiB");
        assert_eq!(format!("{:>10}", Bytes::gib(27)), "  27.0 GiB");
    }
}
