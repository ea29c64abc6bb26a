//! Questions that several rules ask of the semantic model.

pub(crate) mod accumulation;
pub(crate) mod batches;
pub(crate) mod devices;
pub(crate) mod flow;
pub(crate) mod keeps;
pub(crate) mod loop_carried;
pub(crate) mod model_calls;
pub(crate) mod oom_handlers;
pub(crate) mod purpose;
pub(crate) mod sizes;
pub(crate) mod whereabouts;
