//! `PYTORCH_CUDA_ALLOC_CONF`: the settings that change what the allocator does with device memory.

use std::fmt;

use oomph_trace::Settings;

/// The environment variables with the settings: the newer name, which PyTorch reads first, and the older one.
pub const VARIABLES: [&str; 2] = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];

/// The setting, if any, with which PyTorch gets memory in another way than by `cudaMalloc`.
pub fn other_than_cuda_malloc(settings: &str) -> Option<&'static str> {
    let settings = settings.replace(' ', "").to_lowercase();
    ["expandable_segments:True", "backend:cudaMallocAsync"]
        .into_iter()
        .find(|way| settings.contains(&way.to_lowercase()))
}

/// Blocks and requests are multiples of this.
pub const MIN_BLOCK: u64 = 512;
/// Rounded requests up to this size are served by the small pool.
pub const SMALL_LIMIT: u64 = 1 << 20;
/// The size of a segment of the small pool.
pub const SMALL_SEGMENT: u64 = 2 << 20;
/// Requests from this size on get a segment of their own size.
pub const LARGE_LIMIT: u64 = 10 << 20;
/// The size of the segments between the two, unless `large_segment_size_mb` says otherwise.
pub const LARGE_SEGMENT: u64 = 20 << 20;
/// Segments from [`LARGE_LIMIT`] on are multiples of this.
pub const LARGE_ROUNDING: u64 = 2 << 20;
/// Requests of 1 EiB and more fail at once.
pub const TOO_MUCH: u64 = 1 << 60;

/// A version of PyTorch, as far as the allocator's behavior depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TorchVersion {
    /// The major version.
    pub major: u16,
    /// The minor version.
    pub minor: u16,
}

impl TorchVersion {
    /// The default version.
    pub const ASSUMED: Self = Self {
        major: 2,
        minor: 11,
    };

    /// The version in a string such as `2.11.0+cu130`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let major = parts.next()?.parse().ok()?;
        let digits: String = parts
            .next()?
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        Some(Self {
            major,
            minor: digits.parse().ok()?,
        })
    }

    /// The rules of this version: all that differs between versions is here.
    pub const fn rules(self) -> Rules {
        Rules {
            split_limit_may_be_a_segment: self.is_from(2, 10),
            rest_of_roundups_comes_after: self.is_from(2, 10),
            knows_large_segments: self.is_from(2, 11),
            oldest_of_a_size: self.is_from(2, 12) && !self.is_from(2, 13),
            flushes_in_private_pools: self.is_from(2, 13),
        }
    }

    const fn is_from(self, major: u16, minor: u16) -> bool {
        self.major > major || (self.major == major && self.minor >= minor)
    }
}

/// What the allocator does differently in some versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one difference between releases"
)]
pub struct Rules {
    /// `max_split_size_mb` and `max_non_split_rounding_mb` may be as small as a large segment, not only larger.
    pub split_limit_may_be_a_segment: bool,
    /// `>` in `roundup_power2_divisions` leaves the last listed interval as it is.
    pub rest_of_roundups_comes_after: bool,
    /// `large_segment_size_mb` is known.
    pub knows_large_segments: bool,
    /// Of free blocks of one size, the one that came to be first is taken, not that of the lowest address. Seen in
    /// histories of 2.12.1 (`fixtures/allocator/torch_2_12.pickle.xz`); 2.4 to 2.11, 2.13 and later do not.
    pub oldest_of_a_size: bool,
    /// The cache is emptied for a request in a private pool, too.
    pub flushes_in_private_pools: bool,
}

/// A text that is no version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a version like 2.11, found {0:?}")]
pub struct ParseVersionError(String);

impl std::str::FromStr for TorchVersion {
    type Err = ParseVersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or_else(|| ParseVersionError(text.to_owned()))
    }
}

impl fmt::Display for TorchVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Blocks of at least this size are not split; `u64::MAX` is no limit.
    pub max_split_size: u64,
    /// How much larger than an unsplittable request a block may be.
    pub max_non_split_rounding: u64,
    /// Divisions of each power of two, from 1 MiB to 32 GiB; 0 and 1 are none.
    pub roundup_divisions: [u32; 16],
    /// Collect garbage above this share of the limit; 0 is never.
    pub gc_threshold: f64,
    /// Whether segments grow in place.
    pub expandable_segments: bool,
    /// The segment for requests from 1 to 10 MiB, and the page of large expandable segments.
    pub large_segment_size: u64,
    /// The share of the device that the process may use.
    pub memory_fraction: Option<f64>,
    /// Whether the oldest free block of a size is taken (2.12), and not that of the lowest address.
    pub oldest_of_a_size: bool,
    /// Whether `release_cached_blocks` is skipped while a private pool is in use (before 2.13).
    pub no_flush_in_private_pools: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self::for_version(TorchVersion::ASSUMED)
    }
}

/// Why a configuration string is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {what}")]
pub struct ConfigError {
    /// The setting.
    pub key: String,
    /// What was expected and what was found.
    pub what: String,
}

/// Settings that change host memory, locking or address space only: no device block depends on
/// them.
const WITHOUT_EFFECT: [&str; 12] = [
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    "expandable_segments_reserve",
    "graph_capture_record_stream_reuse",
];

impl Config {
    /// The defaults of a version.
    pub fn for_version(version: TorchVersion) -> Self {
        Self {
            max_split_size: u64::MAX,
            max_non_split_rounding: LARGE_SEGMENT,
            roundup_divisions: [0; 16],
            gc_threshold: 0.0,
            expandable_segments: false,
            large_segment_size: LARGE_SEGMENT,
            memory_fraction: None,
            no_flush_in_private_pools: !version.rules().flushes_in_private_pools,
            oldest_of_a_size: version.rules().oldest_of_a_size,
        }
    }

    /// Reads a configuration string with the rules of a version.
    pub fn parse(conf: &str, version: TorchVersion) -> Result<Self, ConfigError> {
        let mut config = Self::for_version(version);
        let conf = conf.trim();
        if conf.is_empty() {
            return Ok(config);
        }
        let items = split_items(conf);
        // PyTorch looks for this one before all others, since it moves their minimum.
        for (key, value) in &items {
            if *key == "large_segment_size_mb" {
                if !version.rules().knows_large_segments {
                    return Err(error(
                        key,
                        format!("known from torch 2.11 on, not in {version}"),
                    ));
                }
                let size = mib(key, value)?;
                if size <= LARGE_LIMIT {
                    return Err(error(
                        key,
                        format!("expected more than 10 (MiB), found {value}"),
                    ));
                }
                config.large_segment_size = size;
                config.max_non_split_rounding = size;
            }
        }
        for (key, value) in items {
            match key {
                "large_segment_size_mb" => {}
                "max_split_size_mb" => {
                    config.max_split_size = config.at_least_large(key, value, version)?;
                }
                "max_non_split_rounding_mb" => {
                    config.max_non_split_rounding = config.at_least_large(key, value, version)?;
                }
                "roundup_power2_divisions" => {
                    config.roundup_divisions = roundup(key, value, version)?;
                }
                "garbage_collection_threshold" => {
                    let share: f64 = number(key, value)?;
                    if !(share > 0.0 && share < 1.0) {
                        return Err(error(
                            key,
                            format!("expected a share between 0 and 1, found {value}"),
                        ));
                    }
                    config.gc_threshold = share;
                }
                "expandable_segments" => config.expandable_segments = boolean(key, value)?,
                "per_process_memory_fraction" => {
                    let share: f64 = number(key, value)?;
                    if !(0.0..=1.0).contains(&share) {
                        return Err(error(
                            key,
                            format!("expected a share from 0 to 1, found {value}"),
                        ));
                    }
                    config.memory_fraction = Some(share);
                }
                "backend" => match value {
                    "native" => {}
                    "cudaMallocAsync" => {
                        return Err(error(
                            key,
                            "cudaMallocAsync leaves placement to the driver and cannot be \
                             replayed; only native can"
                                .to_owned(),
                        ));
                    }
                    other => {
                        return Err(error(
                            key,
                            format!("expected native or cudaMallocAsync, found {other}"),
                        ));
                    }
                },
                "throw_on_cudamalloc_oom" => {
                    if boolean(key, value)? {
                        return Err(error(
                            key,
                            "oomph does not simulate rejecting a request before it is tried"
                                .to_owned(),
                        ));
                    }
                }
                key if WITHOUT_EFFECT.contains(&key)
                    || key == "expandable_segments_reserve_by_class" => {}
                other => {
                    return Err(error(
                        other,
                        "unknown setting. Known are expandable_segments, \
                         max_split_size_mb, max_non_split_rounding_mb, \
                         roundup_power2_divisions, garbage_collection_threshold, \
                         per_process_memory_fraction, large_segment_size_mb"
                            .to_owned(),
                    ));
                }
            }
        }
        Ok(config)
    }

    /// The settings that a snapshot states.
    pub fn from_settings(settings: &Settings, version: TorchVersion) -> Self {
        // The string is complete if it can be parsed: the other fields lack
        // max_non_split_rounding and large_segment_size.
        if let Some(conf) = &settings.conf
            && let Ok(config) = Self::parse(conf, version)
            && config.expandable_segments == settings.expandable_segments
        {
            return config;
        }
        Self {
            max_split_size: settings.max_split_size.map_or(u64::MAX, |size| size.0),
            roundup_divisions: settings.roundup_power2_divisions,
            gc_threshold: settings.garbage_collection_threshold,
            expandable_segments: settings.expandable_segments,
            ..Self::for_version(version)
        }
    }

    fn at_least_large(
        &self,
        key: &str,
        value: &str,
        version: TorchVersion,
    ) -> Result<u64, ConfigError> {
        let size = mib(key, value)?;
        let minimum = self.large_segment_size;
        let may_be_equal = version.rules().split_limit_may_be_a_segment;
        let allowed = if may_be_equal {
            size >= minimum
        } else {
            size > minimum
        };
        if allowed {
            Ok(size)
        } else {
            let relation = if may_be_equal {
                "at least"
            } else {
                "more than"
            };
            Err(error(
                key,
                format!(
                    "torch {version} expects {relation} {} (MiB), found {value}",
                    minimum >> 20
                ),
            ))
        }
    }

    /// A request's size within the pools.
    #[inline]
    pub fn round_size(&self, requested: u64) -> u64 {
        if requested < MIN_BLOCK {
            return MIN_BLOCK;
        }
        let index = requested.ilog2().saturating_sub(20).min(15);
        let divisions = self
            .roundup_divisions
            .get(index as usize)
            .copied()
            .unwrap_or(0);
        if divisions > 1 && requested > MIN_BLOCK * u64::from(divisions) {
            return next_division(requested, u64::from(divisions));
        }
        requested.saturating_add(MIN_BLOCK - 1) & !(MIN_BLOCK - 1)
    }

    /// The segment that a rounded request makes the driver allocate.
    #[inline]
    pub fn segment_size(&self, rounded: u64) -> u64 {
        if rounded <= SMALL_LIMIT {
            SMALL_SEGMENT
        } else if rounded < LARGE_LIMIT {
            self.large_segment_size
        } else {
            rounded.div_ceil(LARGE_ROUNDING) * LARGE_ROUNDING
        }
    }
}

fn next_division(size: u64, divisions: u64) -> u64 {
    if size.is_power_of_two() {
        return size;
    }
    let power = 1_u64 << size.ilog2();
    let step = power >> divisions.ilog2();
    if step == 0 {
        return power << 1;
    }
    let floor = size & !(step - 1);
    if floor == size { size } else { floor + step }
}

fn error(key: &str, what: String) -> ConfigError {
    ConfigError {
        key: key.to_owned(),
        what,
    }
}

/// Splits at commas outside of brackets, and each item at its first colon.
fn split_items(conf: &str) -> Vec<(&str, &str)> {
    let mut items = Vec::new();
    let mut depth = 0_u32;
    let mut start = 0;
    for (at, character) in conf.char_indices().chain([(conf.len(), ',')]) {
        match character {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                let item = conf.get(start..at).unwrap_or("").trim();
                if !item.is_empty() {
                    let (key, value) = item.split_once(':').unwrap_or((item, ""));
                    items.push((key.trim(), value.trim()));
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    items
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, ConfigError> {
    value
        .parse()
        .map_err(|_| error(key, format!("expected a number, found {value:?}")))
}

fn mib(key: &str, value: &str) -> Result<u64, ConfigError> {
    let count: u64 = number(key, value)?;
    Ok(count.saturating_mul(1 << 20))
}

fn boolean(key: &str, value: &str) -> Result<bool, ConfigError> {
    match value {
        "True" => Ok(true),
        "False" => Ok(false),
        other => Err(error(
            key,
            format!("expected True or False, found {other:?}"),
        )),
    }
}

fn roundup(key: &str, value: &str, version: TorchVersion) -> Result<[u32; 16], ConfigError> {
    let divisions = |text: &str| -> Result<u32, ConfigError> {
        let count: u32 = number(key, text)?;
        if count == 0 || count.is_power_of_two() {
            Ok(count)
        } else {
            Err(error(
                key,
                format!("expected a power of two, found {count}"),
            ))
        }
    };
    let Some(list) = value.strip_prefix('[').and_then(|v| v.strip_suffix(']')) else {
        return Ok([divisions(value)?; 16]);
    };
    let mut table = [0_u32; 16];
    let mut previous: Option<usize> = None;
    for item in list.split(',') {
        let Some((size, count)) = item.trim().split_once(':') else {
            return Err(error(
                key,
                format!("expected SIZE:DIVISIONS, found {item:?}"),
            ));
        };
        let count = divisions(count.trim())?;
        if size.trim() == ">" {
            // The two rules differ in whether the last listed interval itself is overwritten.
            let from = match previous {
                Some(index) if version.rules().rest_of_roundups_comes_after => index + 1,
                Some(index) => index,
                None => 0,
            };
            for slot in table.iter_mut().skip(from) {
                *slot = count;
            }
            continue;
        }
        let mib: u64 = number(key, size.trim())?;
        if !mib.is_power_of_two() {
            return Err(error(
                key,
                format!("expected a power of two of MiB, found {mib}"),
            ));
        }
        let index = (mib.trailing_zeros() as usize).min(15);
        if previous.is_none() {
            // The first interval serves every smaller size as well.
            for slot in table.iter_mut().take(index) {
                *slot = count;
            }
        }
        if let Some(slot) = table.get_mut(index) {
            *slot = count;
        }
        previous = Some(index);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2_9: TorchVersion = TorchVersion { major: 2, minor: 9 };

    #[test]
    fn settings_say_where_memory_comes_from() {
        for (settings, way) in [
            (
                "max_split_size_mb:64, Expandable_Segments: true",
                Some("expandable_segments:True"),
            ),
            ("backend:cudaMallocAsync", Some("backend:cudaMallocAsync")),
            ("expandable_segments:False", None),
            ("", None),
        ] {
            assert_eq!(other_than_cuda_malloc(settings), way, "{settings}");
        }
    }

    #[test]
    fn rounds_like_pytorch() {
        let config = Config::default();
        assert_eq!(config.round_size(0), 512);
        assert_eq!(config.round_size(513), 1024);
        assert_eq!(config.segment_size(1 << 20), 2 << 20);
        assert_eq!(config.segment_size((1 << 20) + 512), 20 << 20);
        assert_eq!(config.segment_size(10 << 20), 10 << 20);
        assert_eq!(config.segment_size((10 << 20) + 512), 12 << 20);
        let four = Config::parse("roundup_power2_divisions:4", V2_9).unwrap();
        // 1200 lies between 1024 and 2048, whose quarters are 1280, 1536, …; but sizes up to
        // 512 × 4 are only rounded to 512.
        assert_eq!(four.round_size(1200), 1536);
        assert_eq!(four.round_size(2100), 2560);
        assert_eq!(four.round_size(4096), 4096);
    }

    #[test]
    fn the_rest_of_the_roundup_list_depends_on_the_version() {
        let conf = "roundup_power2_divisions:[256:1,512:2,>:8]";
        let old = Config::parse(conf, V2_9).unwrap();
        let new = Config::parse(conf, TorchVersion::ASSUMED).unwrap();
        assert_eq!(old.roundup_divisions[8..12], [1, 8, 8, 8]);
        assert_eq!(new.roundup_divisions[8..12], [1, 2, 8, 8]);
        assert_eq!(new.roundup_divisions[0], 1);
    }

    #[test]
    fn says_what_is_wrong() {
        let say = |conf: &str| Config::parse(conf, V2_9).unwrap_err().to_string();
        insta::assert_snapshot!(say("max_split_size_mb:20"), @"max_split_size_mb: torch 2.9 expects more than 20 (MiB), found 20");
        insta::assert_snapshot!(say("expandable_segments:yes"), @r#"expandable_segments: expected True or False, found "yes""#);
        insta::assert_snapshot!(say("large_segment_size_mb:30"), @"large_segment_size_mb: known from torch 2.11 on, not in 2.9");
        insta::assert_snapshot!(say("max_split_mb:20"), @"max_split_mb: unknown setting. Known are expandable_segments, max_split_size_mb, max_non_split_rounding_mb, roundup_power2_divisions, garbage_collection_threshold, per_process_memory_fraction, large_segment_size_mb");
        assert!(Config::parse("max_split_size_mb:20", TorchVersion::ASSUMED).is_ok());
    }
}
