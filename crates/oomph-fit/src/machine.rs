//! The machine's GPU, and what is free on it now.
//!
//! NVML is asked, which makes no CUDA context: a context would take memory of the GPU that the script needs.

use nvml_wrapper::device::Device;
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Nvml, cuda_driver_version_major, cuda_driver_version_minor};
use oomph_gpus::Reported;

/// A GPU of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineGpu {
    /// What names it and no other: its UUID.
    pub uuid: String,
    /// What its driver says of it.
    pub reported: Reported,
    /// Bytes that nobody holds now.
    pub free_bytes: u64,
}

/// The driver of a machine's GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// Its version, such as `580.65.06`.
    pub version: String,
    /// The newest CUDA that it knows.
    pub cuda: (i32, i32),
}

/// Why the GPUs of a machine are not known.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// There is no driver, or it does not answer.
    #[error(
        "this machine has no GPU whose driver can be asked ({0}). Name a virtual one, such as --gpu rtx-4090 (oomph gpus lists them)"
    )]
    Driver(String),
    /// The driver does not answer for one GPU.
    #[error("the driver does not say what is free on GPU {which}: {why}")]
    Gpu {
        /// Its number or UUID.
        which: String,
        /// What it said.
        why: String,
    },
    /// No GPU may be used.
    #[error("CUDA_VISIBLE_DEVICES={0} hides all GPUs of this machine from the script")]
    Hidden(String),
    /// The environment names no GPU of this machine.
    #[error("CUDA_VISIBLE_DEVICES={all}: {part} is no GPU of this machine")]
    NoSuch {
        /// The variable.
        all: String,
        /// The part of it.
        part: String,
    },
    /// CUDA's order is not known.
    #[error(
        "this machine has GPUs of several kinds, which CUDA orders by speed: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPU by its UUID in CUDA_VISIBLE_DEVICES"
    )]
    Order,
    /// A GPU is divided.
    #[error(
        "GPU {0} is divided into MIG instances: name the instance in CUDA_VISIBLE_DEVICES by its UUID (nvidia-smi -L lists them)"
    )]
    Divided(String),
}

/// What the environment says of the GPUs that a script sees.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Visibility {
    /// `CUDA_VISIBLE_DEVICES`.
    pub devices: Option<String>,
    /// Whether `CUDA_DEVICE_ORDER` is the order of the bus, which is NVML's.
    pub by_bus: bool,
}

impl Visibility {
    /// As the environment of this process says.
    pub fn of_environment() -> Self {
        let order = std::env::var("CUDA_DEVICE_ORDER");
        Self {
            devices: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
            by_bus: order.is_ok_and(|order| order == "PCI_BUS_ID"),
        }
    }
}

/// Which GPUs a script sees, of all that a machine has; `uuids` are theirs, `alike` says whether they are of one
/// kind. An instance of MIG is `Err` with its UUID.
fn visible(
    visibility: &Visibility,
    uuids: &[String],
    alike: bool,
) -> Result<Vec<Result<usize, String>>, MachineError> {
    let ordered = alike || visibility.by_bus;
    let Some(all) = &visibility.devices else {
        return match uuids.len() {
            1 => Ok(vec![Ok(0)]),
            _ if ordered => Ok((0..uuids.len()).map(Ok).collect()),
            _ => Err(MachineError::Order),
        };
    };
    let mut found = Vec::new();
    for part in all.split(',').map(str::trim) {
        let index = match part.parse::<i64>() {
            Ok(number) => {
                // CUDA ends the list at the first number that names none.
                let Some(index) = usize::try_from(number).ok().filter(|at| *at < uuids.len())
                else {
                    if found.is_empty() && number >= 0 {
                        let (all, part) = (all.clone(), part.to_owned());
                        return Err(MachineError::NoSuch { all, part });
                    }
                    break;
                };
                if !ordered {
                    return Err(MachineError::Order);
                }
                Ok(index)
            }
            Err(_) if part.starts_with("MIG-") => Err(part.to_owned()),
            Err(_) if part.is_empty() => break,
            Err(_) => {
                let starts = |uuid: &&String| uuid.to_lowercase().starts_with(&part.to_lowercase());
                let Some(index) = uuids.iter().position(|uuid| starts(&uuid)) else {
                    let (all, part) = (all.clone(), part.to_owned());
                    return Err(MachineError::NoSuch { all, part });
                };
                Ok(index)
            }
        };
        found.push(index);
    }
    if found.is_empty() {
        return Err(MachineError::Hidden(all.clone()));
    }
    Ok(found)
}

/// The driver of this machine.
pub fn driver() -> Result<Driver, MachineError> {
    let driver = |error: NvmlError| MachineError::Driver(one_line(&error));
    let nvml = Nvml::init().map_err(driver)?;
    let cuda = nvml.sys_cuda_driver_version().map_err(driver)?;
    Ok(Driver {
        version: nvml.sys_driver_version().map_err(driver)?,
        cuda: (
            cuda_driver_version_major(cuda),
            cuda_driver_version_minor(cuda),
        ),
    })
}

/// The GPUs that a script on this machine sees, in the order in which it sees them.
pub fn gpus(visibility: &Visibility) -> Result<Vec<MachineGpu>, MachineError> {
    let driver = |error: NvmlError| MachineError::Driver(one_line(&error));
    let nvml = Nvml::init().map_err(driver)?;
    let devices: Vec<Device> = (0..nvml.device_count().map_err(driver)?)
        .map(|index| nvml.device_by_index(index))
        .collect::<Result<_, _>>()
        .map_err(driver)?;
    if devices.is_empty() {
        return Err(MachineError::Driver("it has none".to_owned()));
    }
    let uuids: Vec<String> = devices
        .iter()
        .map(Device::uuid)
        .collect::<Result<_, _>>()
        .map_err(driver)?;
    let mut names = devices
        .iter()
        .map(|device| device.name().unwrap_or_default());
    let first = names.next();
    let alike = names.all(|name| Some(name) == first);
    visible(visibility, &uuids, alike)?
        .into_iter()
        .map(|which| match which {
            Ok(index) => {
                let device = &devices[index];
                // Not an error of GPUs that cannot be divided.
                if device.mig_mode().is_ok_and(|mode| mode.current == 1) {
                    return Err(MachineError::Divided(index.to_string()));
                }
                describe(device, device, &index.to_string())
            }
            Err(uuid) => {
                let lost = |error: NvmlError| MachineError::Gpu {
                    which: uuid.clone(),
                    why: one_line(&error),
                };
                let instance = nvml.device_by_uuid(uuid.as_str()).map_err(lost)?;
                let parent = instance.mig_parent_device().map_err(lost)?;
                describe(&instance, &parent, &uuid)
            }
        })
        .collect()
}

/// A GPU, or an instance of one: `whole` has the properties that instances do not say.
fn describe(device: &Device, whole: &Device, which: &str) -> Result<MachineGpu, MachineError> {
    let lost = |error: NvmlError| MachineError::Gpu {
        which: which.to_owned(),
        why: one_line(&error),
    };
    let memory = device.memory_info().map_err(lost)?;
    let capability = whole.cuda_compute_capability().map_err(lost)?;
    let cores = device.num_cores().or_else(|_| whole.num_cores());
    Ok(MachineGpu {
        uuid: device.uuid().map_err(lost)?,
        reported: Reported {
            name: whole.name().map_err(lost)?,
            compute_capability: (
                capability.major.max(0) as u32,
                capability.minor.max(0) as u32,
            ),
            // What the driver keeps for itself, nobody gets.
            total_bytes: memory.total.saturating_sub(memory.reserved),
            cores: cores.ok().filter(|cores| *cores > 0),
            bus_bits: whole.memory_bus_width().ok().filter(|bits| *bits > 0),
            core_mhz: whole.max_clock_info(Clock::SM).ok(),
            memory_mhz: whole.max_clock_info(Clock::Memory).ok(),
        },
        free_bytes: memory.free,
    })
}

fn one_line(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(_) => "libnvidia-ml.so.1 cannot be loaded".to_owned(),
        NvmlError::FailedToLoadSymbol(_) => "it is older than version 510".to_owned(),
        error => error.to_string().replace('\n', " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(
        devices: Option<&str>,
        alike: bool,
    ) -> Result<Vec<Result<usize, String>>, MachineError> {
        let uuids = ["GPU-aa11", "GPU-bb22", "GPU-cc33"].map(str::to_owned);
        let visibility = Visibility {
            devices: devices.map(str::to_owned),
            by_bus: false,
        };
        visible(&visibility, &uuids, alike)
    }

    #[test]
    fn the_environment_says_which_gpus_a_script_sees() {
        for (devices, expected) in [
            (None, vec![0, 1, 2]),
            (Some("2"), vec![2]),
            (Some("1, 0"), vec![1, 0]),
            (Some("GPU-bb22,0"), vec![1, 0]),
            (Some("gpu-c"), vec![2]),
            (Some("1,-1,2"), vec![1]),
            (Some("1,9,2"), vec![1]),
        ] {
            let found: Vec<_> = seen(devices, true).unwrap();
            assert_eq!(found, expected.into_iter().map(Ok).collect::<Vec<_>>());
        }
        let instance = seen(Some("MIG-5"), true).unwrap();
        assert_eq!(instance, [Err("MIG-5".to_owned())]);
        for (devices, expected) in [
            ("", "hides all"),
            ("-1", "hides all"),
            ("7", "7 is no GPU"),
            ("GPU-zz", "GPU-zz is no GPU"),
        ] {
            let error = seen(Some(devices), true).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn gpus_of_several_kinds_are_taken_where_their_order_is_known() {
        let error = |devices| seen(devices, false).unwrap_err().to_string();
        assert!(error(None).contains("PCI_BUS_ID"));
        assert!(error(Some("0")).contains("PCI_BUS_ID"));
        assert_eq!(seen(Some("GPU-bb"), false).unwrap(), [Ok(1)]);
        let visibility = Visibility {
            devices: Some("1".to_owned()),
            by_bus: true,
        };
        let uuids = ["GPU-aa11", "GPU-bb22"].map(str::to_owned);
        assert_eq!(visible(&visibility, &uuids, false).unwrap(), [Ok(1)]);
        let only = Visibility::default();
        assert_eq!(visible(&only, &uuids[..1], false).unwrap(), [Ok(0)]);
    }
}
