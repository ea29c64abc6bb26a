//! What keeps the host busy.

/// Seconds that each thing takes a host.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// Which host these are of.
    pub name: &'static str,
    /// An operator of the script's thread, Python's part included.
    pub operator: f64,
    /// An operator of autograd's threads.
    pub backward: f64,
    /// A launch.
    pub launch: f64,
    /// A call of a module, with the views and functions of Python's that its code has.
    pub module: f64,
    /// A wait for the GPU, beside the waiting.
    pub wait: f64,
    /// What a step takes beside all that.
    pub step: f64,
}

impl Default for Host {
    /// The host of the H200 of `bench/time`: a virtual machine with 16 cores of a Xeon.
    fn default() -> Self {
        Self {
            name: "a server with 16 cores beside an H200",
            operator: 7.3e-6,
            backward: 9.4e-6,
            launch: 7.8e-6,
            module: 38e-6,
            wait: 30e-6,
            step: 390e-6,
        }
    }
}
