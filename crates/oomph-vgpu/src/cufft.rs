//! cuFFT: the workspace of a plan.
//!
//! Transforms do nothing, but PyTorch allocates their workspaces. What an H200's cuFFT asked for
//! (`bench/gpu/results/cufft_workspaces.jsonl`, and for strided values `fft_blocks.jsonl`) follows the prime factors of a
//! size: where they are at most seven, as in the sizes that people choose, [`workspace`] is exact for 19 in 20 of the
//! sizes drawn at random. Lines with a factor above 127, for which cuFFT takes Bluestein's algorithm, were right for 123 of 124 plans that
//! were drawn and measured later (`cufft_workspaces_fresh.jsonl`). Between them it is an estimate.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::LazyLock;

use crate::arguments::Out;
use crate::context::Charge;
use crate::device::{self, machine};
use crate::streams::opaque_handle;
use crate::sync::Mutex;
use crate::work::{self, Work};
use crate::{export, kernels, ledger};

/// Success of cuFFT.
const SUCCESS: c_int = 0;
/// `CUFFT_INVALID_TYPE`.
const INVALID_TYPE: c_int = 3;
/// `CUFFT_INVALID_VALUE`.
const INVALID_VALUE: c_int = 4;
/// `CUFFT_INTERNAL_ERROR`.
const INTERNAL: c_int = 5;

/// Precision of the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Precision {
    Half,
    Single,
    Double,
}

impl Precision {
    /// That of a `cudaDataType`, and whether its values are complex.
    const fn of(code: c_int) -> Option<(Self, bool)> {
        match code {
            2 => Some((Self::Half, false)),
            6 => Some((Self::Half, true)),
            0 => Some((Self::Single, false)),
            4 => Some((Self::Single, true)),
            1 => Some((Self::Double, false)),
            5 => Some((Self::Double, true)),
            _ => None,
        }
    }

    /// Bytes of a complex value.
    const fn complex_bytes(self) -> u64 {
        match self {
            Self::Half => 4,
            Self::Single => 8,
            Self::Double => 16,
        }
    }
}

/// The largest prime factor of `n`.
fn largest_factor(mut n: u64) -> u64 {
    let (mut largest, mut factor) = (1, 2);
    while factor * factor <= n {
        while n.is_multiple_of(factor) {
            largest = factor;
            n /= factor;
        }
        factor += 1;
    }
    largest.max(n)
}

/// Workspace of complex transforms of `n` values, in halves of the complex data; `strided` if the values are not
/// side by side.
fn line(n: u64, precision: Precision, strided: bool) -> u64 {
    let double = precision == Precision::Double;
    let in_one_kernel = match largest_factor(n) {
        _ if strided && double && !n.is_power_of_two() => n <= 640,
        _ if n.is_power_of_two() && precision == Precision::Half => n <= 8192,
        _ if n.is_power_of_two() => n <= 16_384,
        0..=7 => n <= if double { 12_288 } else { 20_480 },
        8..=31 => n <= if double { 1000 } else { 5120 },
        32..=127 => n <= 127 && largest_factor(n) == n,
        _ => true,
    };
    if in_one_kernel { 0 } else { 2 }
}

/// Workspace of transforms between `n` real values and their spectrum, in halves of the complex data.
fn real_line(n: u64, precision: Precision, strided: bool) -> u64 {
    let most = match (precision, strided) {
        (Precision::Half, _) => 8192,
        (Precision::Single, false) => 16_384,
        (Precision::Single, true) => 1024,
        (Precision::Double, false) => 4096,
        (Precision::Double, true) => 512,
    };
    match (largest_factor(n), n.is_multiple_of(2)) {
        _ if n.is_power_of_two() => u64::from(n > most),
        (0..=7, true) => u64::from(n > 1000),
        (0..=7, false) => 2 * u64::from(n > 3125),
        (8..=127, true) => 1,
        (8..=127, false) => 2 * u64::from(n > 127 || is_rough(n)),
        (_, true) if n <= 4096 => 1,
        _ => 2,
    }
}

/// Complex values that Bluestein's algorithm needs for a line of `n`: twice the next length without factors above five that
/// holds the line's convolution. `None` where one kernel does it.
fn bluestein(n: u64, precision: Precision) -> Option<u64> {
    let one_kernel = if precision == Precision::Double {
        2048
    } else {
        4096
    };
    if n <= one_kernel || largest_factor(n) <= 127 {
        return None;
    }
    let least = 2 * n.max(4096) - 1;
    let powers =
        |base: u64| std::iter::successors(Some(1_u64), move |power| power.checked_mul(base));
    let odd = |base| powers(base).take_while(|&power| power < 2 * least);
    odd(3)
        .flat_map(|three| odd(5).map(move |five| three.saturating_mul(five)))
        .map(|odd| odd.saturating_mul(least.div_ceil(odd).next_power_of_two()))
        .min()
        .map(|length| 2 * length)
}

/// Bytes of the tables that a plan for such lines keeps until it is destroyed: two of the line's convolution, for real lines four
/// (`bench/gpu/results/h100_cufft_plans.jsonl`). Each large one has granules of its own.
fn tables(what: &Transforms) -> u64 {
    const GRANULE: u64 = 2 << 20;
    let Some(own) = what.bluestein() else {
        return 0;
    };
    let one = own / 2 * what.precision.complex_bytes();
    let one = if one > GRANULE / 2 {
        one.next_multiple_of(GRANULE)
    } else {
        one
    };
    one * if what.real { 4 } else { 2 }
}

/// Whether a length has factors that make real lines of it work beside their data: none up to eleven, and none that is all of it.
fn is_rough(n: u64) -> bool {
    match largest_factor(n) {
        0..=12 => false,
        13..=127 => largest_factor(n) < n || n.is_multiple_of(2),
        _ => true,
    }
}

/// Workspace of transforms over several dimensions, in halves of the complex data.
fn plane(sizes: &[u64], precision: Precision, real: bool) -> u64 {
    let largest = sizes.iter().copied().max().unwrap_or(1);
    let factor = sizes.iter().copied().map(largest_factor).max().unwrap_or(1);
    let double = precision == Precision::Double;
    let most = match largest.is_power_of_two() {
        true if double => 2048,
        true => u64::MAX,
        false if double => 640,
        false => 1024,
    };
    let last = sizes.last().copied().unwrap_or(1);
    match (factor, real) {
        (_, true) if is_rough(last) => 1 + last % 2,
        (0..=7, false) => 2 * u64::from(double && largest > most),
        (0..=7, true) => u64::from(largest > most),
        (14..=127, true) => 1 - last % 2,
        (32..=127, false) => 2,
        _ => 0,
    }
}

/// A plan that was made.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// Bytes that one of its kernels moves.
    bytes: u64,
    kernels: u64,
    device: u32,
    /// Bytes of its tables there.
    tables: u64,
}

static PLANS: LazyLock<Mutex<HashMap<c_int, Plan>>> = LazyLock::new(Mutex::default);

/// A plan is made. Each of its dimensions is a kernel that reads and writes all values, and a long or real one one more.
fn make(plan: c_int, what: &Transforms) {
    let values = (what.sizes.iter()).fold(what.batch, |all, &n| all.saturating_mul(n));
    let halves = if what.real { 1 } else { 2 };
    let bytes = values.saturating_mul(what.precision.complex_bytes() * halves);
    let kernels = what.sizes.len() as u64 + u64::from(workspace(what) > 0);
    let (device, tables) = (device::current(), tables(what));
    destroy(plan);
    if let Some(gpu) = machine()
        .devices
        .get(device as usize)
        .filter(|_| tables > 0)
    {
        machine().costs.charge(device, Charge::FirstBluestein);
        gpu.memory.lock().charge_context(tables);
    }
    let made = Plan {
        bytes,
        kernels,
        device,
        tables,
    };
    PLANS.lock().insert(plan, made);
}

/// A plan goes, with its tables.
fn destroy(plan: c_int) {
    if let Some(Plan { device, tables, .. }) = PLANS.lock().remove(&plan)
        && let Some(gpu) = machine().devices.get(device as usize)
    {
        gpu.memory.lock().release_context(tables);
    }
}

/// A plan is executed.
fn execute(plan: c_int) -> c_int {
    let plan = PLANS.lock().get(&plan).copied();
    let (bytes, kernels) = plan.map_or((0, 1), |plan| (plan.bytes, plan.kernels));
    for _ in 0..kernels {
        work::note(Work::Moving {
            bytes,
            what: "Fourier transforms",
        });
        kernels::launched(0);
    }
    SUCCESS
}

/// What is transformed at once.
#[derive(Debug)]
struct Transforms<'a> {
    sizes: &'a [u64],
    batch: u64,
    precision: Precision,
    /// Whether one side is real.
    real: bool,
    strided: bool,
}

impl Transforms<'_> {
    /// Values of a line along the last dimension.
    fn last(&self) -> u64 {
        self.sizes.last().copied().unwrap_or(1)
    }

    /// Whether real lines are of an odd length. Those of an even one are complex lines of half of it; two of an odd length, of two
    /// batches, are one complex line.
    fn is_odd(&self) -> bool {
        self.real && !self.last().is_multiple_of(2)
    }

    /// Complex values of a line.
    fn line(&self) -> u64 {
        if self.real && !self.is_odd() {
            self.last() / 2
        } else {
            self.last()
        }
    }

    /// What [`bluestein`] says of its lines; over several dimensions it is not taken.
    fn bluestein(&self) -> Option<u64> {
        bluestein(self.line(), self.precision).filter(|_| self.sizes.len() == 1)
    }
}

/// Bytes of workspace.
fn workspace(what: &Transforms) -> u64 {
    let &Transforms {
        sizes,
        batch,
        precision,
        real,
        strided,
    } = what;
    let last = what.last();
    let mut rows = sizes.iter().fold(batch, |all, &n| all.saturating_mul(n)) / last;
    let mut lines = rows;
    if what.is_odd() {
        rows = (rows / batch).saturating_mul(batch.next_multiple_of(2));
        lines = rows / 2;
    }
    if let Some(own) = what.bluestein() {
        let values = own + if real { what.line() } else { 0 };
        return lines.saturating_mul(values * precision.complex_bytes());
    }
    let halves = match (sizes, real) {
        (&[n], false) => line(n, precision, strided),
        (&[n], true) => real_line(n, precision, strided),
        _ => plane(sizes, precision, real),
    };
    // Half of the data is a spectrum: so many values for each row, and one more where there are planes or long rows.
    let row = match halves {
        1 if sizes.len() > 1 || last >= 1 << 16 && !strided => last / 2 + 1,
        _ => last * halves / 2,
    };
    rows.saturating_mul(row * precision.complex_bytes())
}

/// What a `cufftType` transforms: precision, and whether one side is real.
const fn of_type(code: c_int) -> Option<(Precision, bool)> {
    match code {
        0x29 => Some((Precision::Single, false)),
        0x2a | 0x2c => Some((Precision::Single, true)),
        0x69 => Some((Precision::Double, false)),
        0x6a | 0x6c => Some((Precision::Double, true)),
        _ => None,
    }
}

/// Writes the workspace of a plan of type `code`.
fn plan(
    plan: c_int,
    sizes: impl IntoIterator<Item = i64>,
    code: c_int,
    batch: i64,
    strided: bool,
    size: Out<usize>,
) -> c_int {
    let sizes: Vec<u64> = sizes.into_iter().map(|n| n.max(1) as u64).collect();
    let Some((precision, real)) = of_type(code) else {
        return INVALID_TYPE;
    };
    if sizes.is_empty() || sizes.len() > 3 {
        return INVALID_VALUE;
    }
    ledger::assume(
        "cufftMakePlanMany",
        "the workspace of Fourier transforms follows what an H200 needed",
    );
    let what = Transforms {
        sizes: &sizes,
        batch: batch.max(1) as u64,
        precision,
        real,
        strided,
    };
    make(plan, &what);
    size.put(workspace(&what) as usize);
    SUCCESS
}

export! {
    fn cufftMakePlan1d(handle: c_int, n: c_int, code: c_int, batch: c_int, size: Out<usize>) -> c_int, or INTERNAL; {
        plan(handle, [i64::from(n)], code, i64::from(batch), false, size)
    }
    fn cufftMakePlan2d(handle: c_int, x: c_int, y: c_int, code: c_int, size: Out<usize>) -> c_int, or INTERNAL; {
        plan(handle, [x, y].map(i64::from), code, 1, false, size)
    }
    fn cufftMakePlan3d(handle: c_int, x: c_int, y: c_int, z: c_int, code: c_int, size: Out<usize>) -> c_int, or INTERNAL; {
        plan(handle, [x, y, z].map(i64::from), code, 1, false, size)
    }
    unsafe fn cufftMakePlanMany(handle: c_int, rank: c_int, n: *const c_int, _ie: usize, given_stride: c_int, _id: c_int, _oe: usize, made_stride: c_int, _od: c_int, code: c_int, batch: c_int, size: Out<usize>) -> c_int, or INTERNAL; {
        if n.is_null() || !(1..=3).contains(&rank) {
            return INVALID_VALUE;
        }
        // SAFETY: cuFFT's caller passes `rank` sizes.
        let sizes = unsafe { std::slice::from_raw_parts(n, rank as usize) };
        plan(handle, sizes.iter().copied().map(i64::from), code, i64::from(batch), given_stride > 1 || made_stride > 1, size)
    }
    unsafe fn cufftMakePlanMany64(handle: c_int, rank: c_int, n: *const i64, _ie: usize, given_stride: i64, _id: i64, _oe: usize, made_stride: i64, _od: i64, code: c_int, batch: i64, size: Out<usize>) -> c_int, or INTERNAL; {
        if n.is_null() || !(1..=3).contains(&rank) {
            return INVALID_VALUE;
        }
        // SAFETY: cuFFT's caller passes `rank` sizes.
        let sizes = unsafe { std::slice::from_raw_parts(n, rank as usize) };
        plan(handle, sizes.iter().copied(), code, batch, given_stride > 1 || made_stride > 1, size)
    }
    fn cufftCreate(out: Out<c_int>) -> c_int, or INTERNAL; {
        machine().costs.charge(device::current(), Charge::FirstFft);
        out.put((opaque_handle() & 0x7fff_ffff) as c_int);
        SUCCESS
    }
    fn cufftDestroy(handle: c_int) -> c_int, or INTERNAL; {
        destroy(handle);
        SUCCESS
    }
    unsafe fn cufftXtMakePlanMany(handle: c_int, rank: c_int, n: *const i64, _ie: usize, given_stride: i64, _id: i64, given: c_int, _oe: usize, made_stride: i64, _od: i64, made: c_int, batch: i64, size: Out<usize>, _execution: c_int) -> c_int, or INTERNAL; {
        ledger::assume("cufftXtMakePlanMany", "the workspace of Fourier transforms follows what an H200 needed");
        let (Some((precision, whole)), Some((_, made_whole)), 1..=3, false) =
            (Precision::of(given), Precision::of(made), rank, n.is_null())
        else {
            size.put(0);
            return SUCCESS;
        };
        // SAFETY: cuFFT's caller passes `rank` sizes.
        let sizes = unsafe { std::slice::from_raw_parts(n, rank as usize) };
        let sizes: Vec<u64> = sizes.iter().map(|&n| n.max(1) as u64).collect();
        let what = Transforms {
            sizes: &sizes,
            batch: batch.max(1) as u64,
            precision,
            real: !(whole && made_whole),
            strided: given_stride.max(made_stride) > 1,
        };
        make(handle, &what);
        size.put(workspace(&what) as usize);
        SUCCESS
    }
    fn cufftExecC2C(handle: c_int) -> c_int, or INTERNAL; {
        execute(handle)
    }
    fn cufftExecC2R(handle: c_int) -> c_int, or INTERNAL; {
        execute(handle)
    }
    fn cufftExecD2Z(handle: c_int) -> c_int, or INTERNAL; {
        execute(handle)
    }
    fn cufftExecR2C(handle: c_int) -> c_int, or INTERNAL; {
        execute(handle)
    }
    fn cufftExecZ2D(handle: c_int) -> c_int, or INTERNAL; {
        execute(handle)
    }
    fn cufftExecZ2Z(handle: c_int) -> c_int, or INTERNAL; {
        execute(handle)
    }
    fn cufftXtExec(handle: c_int) -> c_int, or INTERNAL; {
        execute(handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Within 2 % of their data (structured and drawn plans with factors up to seven; those with one above 127), of how many.
    fn right(file: &str) -> [(usize, usize); 3] {
        let path = format!(
            "{}/../../bench/gpu/results/{file}",
            env!("CARGO_MANIFEST_DIR")
        );
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let mut right = [(0, 0); 3];
        for line in text.lines().skip(1) {
            let row: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
            let sizes: Vec<u64> = (row["sizes"].as_array().into_iter().flatten())
                .filter_map(serde_json::Value::as_u64)
                .collect();
            let real = row["layout"] != "c2c";
            let kind = match sizes.iter().copied().map(largest_factor).max() {
                Some(128..) if real || sizes.len() == 1 => 2,
                Some(0..=7) => usize::from(row["origin"] == "drawn"),
                _ => continue,
            };
            let precision = match row["type"].as_str() {
                Some("half") => Precision::Half,
                Some("double") => Precision::Double,
                _ => Precision::Single,
            };
            let batch = row["batch"].as_u64().unwrap_or(1);
            let data = sizes.iter().product::<u64>() * batch * precision.complex_bytes();
            let got = workspace(&Transforms {
                sizes: &sizes,
                batch,
                precision,
                real,
                strided: false,
            });
            // Bluestein's algorithm has a block of tables in any case.
            let spare = if kind == 2 { 4096 } else { 512 };
            let near = got.abs_diff(row["bytes"].as_u64().unwrap_or(0)) <= (data / 50).max(spare);
            right[kind].0 += usize::from(near);
            right[kind].1 += 1;
        }
        right
    }

    #[test]
    fn plans_of_prime_lengths_keep_the_measured_tables() {
        let kept = |n: u64, real, precision| {
            tables(&Transforms {
                sizes: &[n],
                batch: 4,
                precision,
                real,
                strided: false,
            }) >> 20
        };
        // What an H100 had less after each plan, in MiB, the first ones left out.
        assert_eq!(
            [200_003, 500_009, 1_000_003].map(|n| kept(n, false, Precision::Single)),
            [8, 16, 32]
        );
        assert_eq!(
            [200_003, 500_009, 1_000_003].map(|n| kept(n, true, Precision::Single)),
            [16, 32, 64]
        );
        assert_eq!(
            [200_006, 400_006, 1_000_018].map(|n| kept(n, true, Precision::Single)),
            [8, 16, 32]
        );
        assert_eq!(
            [200_003, 500_009, 1_000_003].map(|n| kept(n, false, Precision::Double)),
            [16, 32, 64]
        );
        assert_eq!(kept(1_000_000, true, Precision::Single), 0);
    }

    #[test]
    fn sizes_have_their_measured_workspace() {
        let share = |(right, all): (usize, usize)| right * 100 / all.max(1);
        let found = right("cufft_workspaces.jsonl");
        assert!(
            found[0].1 > 2000 && found[1].1 > 1000 && found[2].1 > 1000,
            "{found:?}"
        );
        assert!(
            found.map(share).iter().all(|&share| share >= 95),
            "{found:?}"
        );
        assert!(share(found[2]) >= 98, "{found:?}");
        let fresh = right("cufft_workspaces_fresh.jsonl");
        assert!(fresh[1].1 > 100 && fresh[2].1 > 100, "{fresh:?}");
        assert!(share(fresh[1]) >= 95 && share(fresh[2]) >= 98, "{fresh:?}");
    }
}
