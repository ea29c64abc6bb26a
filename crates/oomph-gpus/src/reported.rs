//! The GPU of a machine, as its driver describes it: its entry in the catalogue, or else a GPU of the same
//! generation with what the driver says.

use crate::data::catalogue;
use crate::find::{Found, GpuSpec, resolve};
use crate::gpu::{Class, Figure, Gpu, Source, SourceKind};

/// The driver may hold back so large a part of the memory without it being another GPU.
const SAME_MEMORY: f64 = 0.1;

/// What a driver says of a GPU. What it does not say is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    /// Its name: `NVIDIA GeForce RTX 4090`.
    pub name: String,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// The memory that programs can have.
    pub total_bytes: u64,
    /// FP32 lanes ("CUDA cores").
    pub cores: Option<u32>,
    /// Width of the memory bus.
    pub bus_bits: Option<u32>,
    /// The highest core clock.
    pub core_mhz: Option<u32>,
    /// The highest memory clock.
    pub memory_mhz: Option<u32>,
}

impl Reported {
    /// Its entry in the catalogue; of several with its name the one whose memory is nearest.
    pub fn listed(&self) -> Option<&'static Gpu> {
        let named = catalogue().iter().filter(|gpu| gpu.name == self.name);
        nearest(named, self.total_bytes).or_else(|| {
            let gpu = resolve(&self.name).ok()?.gpu;
            let off = gpu.memory.total_bytes.abs_diff(self.total_bytes) as f64;
            let same = gpu.compute_capability == self.compute_capability
                && off <= self.total_bytes as f64 * SAME_MEMORY;
            same.then_some(gpu)
        })
    }

    /// So many of this GPU.
    pub fn spec(&self, count: u32) -> GpuSpec {
        // A command asks for one machine's GPU once: what is leaked is small, and lives as long.
        let gpu = self
            .listed()
            .unwrap_or_else(|| Box::leak(Box::new(self.described())));
        GpuSpec {
            name: gpu.id.clone(),
            found: Found {
                gpu,
                others: Vec::new(),
            },
            count,
        }
    }

    /// The catalogue's most similar GPU.
    pub fn relative(&self) -> &'static Gpu {
        let all = catalogue();
        let same = all
            .iter()
            .filter(|gpu| gpu.compute_capability == self.compute_capability);
        if let Some(gpu) = nearest(same, self.total_bytes) {
            return gpu;
        }
        // The newest that is older, or else the oldest.
        let older = all
            .iter()
            .filter(|gpu| gpu.compute_capability < self.compute_capability)
            .map(|gpu| gpu.compute_capability)
            .max();
        let oldest = all.iter().map(|gpu| gpu.compute_capability).min();
        let kind = older.or(oldest);
        let kin = all
            .iter()
            .filter(|gpu| Some(gpu.compute_capability) == kind);
        nearest(kin, self.total_bytes).unwrap_or(&all[0])
    }

    /// A GPU that the catalogue lacks: its most similar one, with what the driver says.
    fn described(&self) -> Gpu {
        let kin = self.relative();
        let mut gpu = kin.clone();
        gpu.id = id(&self.name);
        // The name goes into a text of lines, and into JSON.
        gpu.name = self
            .name
            .chars()
            .filter(|c| (' '..='~').contains(c) && !['"', '\\'].contains(c))
            .collect();
        gpu.aliases.clear();
        gpu.class = if self.name.contains("GeForce") {
            Class::Geforce
        } else {
            kin.class
        };
        gpu.compute_capability = self.compute_capability;
        gpu.memory.total_bytes = self.total_bytes;
        gpu.memory.smi_bytes = None;
        gpu.memory.nominal_gib = (self.total_bytes as f64 / f64::from(1 << 30)).ceil() as u32;
        if let Some(cores) = self.cores {
            gpu.sms = (cores / gpu.limits.cores_per_sm.max(1)).max(1);
        }
        if let Some(mhz) = self.core_mhz {
            gpu.clocks.driver_mhz = mhz;
        }
        let faster = f64::from(gpu.sms) * f64::from(gpu.clocks.driver_mhz)
            / (f64::from(kin.sms) * f64::from(kin.clocks.driver_mhz)).max(1.0);
        let rates = &mut gpu.rates;
        rates.fp32 *= faster;
        for rate in [
            &mut rates.tf32,
            &mut rates.fp16,
            &mut rates.bf16,
            &mut rates.fp8,
            &mut rates.int8,
        ] {
            *rate = rate.map(|rate| rate * faster);
        }
        gpu.clocks.bus_bits = self.bus_bits.unwrap_or(kin.clocks.bus_bits);
        gpu.clocks.memory_mhz = self.memory_mhz.unwrap_or(kin.clocks.memory_mhz);
        let width = |gpu: &Gpu| f64::from(gpu.clocks.bus_bits) * f64::from(gpu.clocks.memory_mhz);
        gpu.bandwidth_bytes_per_s *= width(&gpu) / width(kin).max(1.0);
        for figure in Figure::ALL {
            gpu.sources.insert(
                figure,
                Source {
                    kind: SourceKind::Estimated,
                    note: format!("what this machine's driver says, the rest as of {}", kin.id),
                },
            );
        }
        gpu
    }
}

/// The one of `gpus` whose memory is nearest.
fn nearest(gpus: impl Iterator<Item = &'static Gpu>, total_bytes: u64) -> Option<&'static Gpu> {
    gpus.min_by_key(|gpu| gpu.memory.total_bytes.abs_diff(total_bytes))
}

/// A name as ids are written.
fn id(name: &str) -> String {
    let words: Vec<String> = name
        .to_lowercase()
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty() && !["nvidia", "geforce", "tesla"].contains(word))
        .map(str::to_owned)
        .collect();
    if words.is_empty() {
        return "gpu".to_owned();
    }
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(name: &str, capability: (u32, u32), gib: f64) -> Reported {
        Reported {
            name: name.to_owned(),
            compute_capability: capability,
            total_bytes: (gib * f64::from(1 << 30)) as u64,
            cores: None,
            bus_bits: None,
            core_mhz: None,
            memory_mhz: None,
        }
    }

    #[test]
    fn every_gpu_of_the_catalogue_is_found_by_what_its_driver_says() {
        for gpu in catalogue() {
            let said = Reported {
                total_bytes: gpu.memory.total_bytes - (64 << 20),
                ..reported(&gpu.name, gpu.compute_capability, 1.0)
            };
            let found = said.listed().unwrap();
            assert_eq!(found.name, gpu.name);
            let off = |gpu: &Gpu| gpu.memory.total_bytes.abs_diff(said.total_bytes);
            assert!(off(found) <= off(gpu), "{} for {}", found.id, gpu.id);
        }
    }

    #[test]
    fn an_unknown_gpu_is_its_relative_with_what_its_driver_says() {
        let said = Reported {
            cores: Some(12_800),
            bus_bits: Some(256),
            core_mhz: Some(2000),
            memory_mhz: Some(9000),
            ..reported("NVIDIA GeForce RTX 4095 \"Z\"", (8, 9), 17.3)
        };
        assert_eq!(said.listed(), None);
        let spec = said.spec(2);
        let (gpu, kin) = (spec.found.gpu, said.relative());
        assert_eq!((spec.count, spec.name.as_str()), (2, "rtx-4095-z"));
        assert_eq!(gpu.name, "NVIDIA GeForce RTX 4095 Z");
        assert_eq!(kin.compute_capability, (8, 9));
        assert_eq!(gpu.memory.total_bytes, said.total_bytes);
        assert_eq!((gpu.sms, gpu.clocks.bus_bits), (100, 256));
        // GDDR moves data twice a cycle: 256 bits at 9 GHz.
        let bandwidth = gpu.bandwidth_bytes_per_s / 1e9;
        assert!((500.0..=660.0).contains(&bandwidth), "{bandwidth}");
        let ratio = gpu.rates.fp32 / kin.rates.fp32;
        let expected = 100.0 * 2000.0 / f64::from(kin.sms * kin.clocks.driver_mhz);
        assert!((ratio - expected).abs() < 1e-9, "{ratio}");
        assert!(gpu.note_of_source().contains(&kin.id));
    }

    #[test]
    fn other_generations_have_relatives_too() {
        for (capability, expected) in [((13, 0), (12, 0)), ((8, 7), (8, 6)), ((3, 5), (6, 0))] {
            let said = reported("NVIDIA Orin Something", capability, 12.0);
            assert_eq!(said.relative().compute_capability, expected);
            assert_eq!(said.spec(1).found.gpu.compute_capability, capability);
        }
    }

    impl Gpu {
        fn note_of_source(&self) -> &str {
            self.source(Figure::Rates)
                .map_or("", |source| source.note.as_str())
        }
    }
}
