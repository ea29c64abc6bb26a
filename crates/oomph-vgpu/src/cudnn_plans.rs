//! Plans of a cuDNN that takes no description of a GPU: 9.1 and 9.5, which torch 2.4 to 2.7 bring.
//!
//! Its heuristics, engines and plans want a handle, which it cannot create here. They are answered instead:
//! each graph has one engine and one plan, whose work space follows the rule of [`cudnn_costs::work_space`].
//! Tensors and operations stay the library's own descriptors.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};

use crate::cudnn_costs;
use crate::streams::opaque_handle;
use crate::sync::Mutex;

/// Kinds of descriptors and types of attributes in `cudnn_graph.h`.
const ENGINE: c_int = 2;
const PLAN: c_int = 5;
const GRAPH: c_int = 15;
const TYPE_INT64: c_int = 3;
const TYPE_DESCRIPTOR: c_int = 15;
const PLAN_WORK_SPACE: c_int = 402;

/// The graph of each descriptor; a graph's is itself, 0 if it has not been said yet.
static GRAPHS: std::sync::LazyLock<Mutex<HashMap<u64, u64>>> =
    std::sync::LazyLock::new(|| Mutex::new(HashMap::new()));

/// Makes a descriptor of `kind`, if that is one of those that want a handle.
pub fn create(kind: c_int) -> Option<u64> {
    if !(ENGINE..=PLAN).contains(&kind) && kind != GRAPH {
        return None;
    }
    let made = opaque_handle();
    let graph = if kind == GRAPH { made } else { 0 };
    GRAPHS.lock().insert(made, graph);
    Some(made)
}

/// Whether [`create`] made it.
pub fn is_own(descriptor: u64) -> bool {
    GRAPHS.lock().contains_key(&descriptor)
}

/// Removes it; whether [`create`] had made it.
pub fn destroy(descriptor: u64) -> bool {
    GRAPHS.lock().remove(&descriptor).is_some()
}

/// Takes an attribute: a descriptor that gets a graph, or one of its engines, belongs to that graph.
///
/// # Safety
/// `values` must hold `count` values of the type `kind`.
pub unsafe fn set(descriptor: u64, kind: c_int, count: i64, values: *const c_void) {
    if kind != TYPE_DESCRIPTOR || count != 1 || values.is_null() {
        return;
    }
    // SAFETY: there is one value, and a descriptor is a pointer.
    let given = unsafe { values.cast::<u64>().read_unaligned() };
    let mut graphs = GRAPHS.lock();
    if let Some(&graph) = graphs.get(&given) {
        graphs.insert(descriptor, graph);
    }
}

/// Answers for an attribute: descriptors that are to be filled in become those of the same graph, a plan has its work
/// space, other numbers are zero, and lists are empty.
///
/// # Safety
/// `count` must be null or writable, `values` have room for `room` values of the type `kind`, and those be
/// descriptors if the type is.
pub unsafe fn get(
    descriptor: u64,
    attribute: c_int,
    kind: c_int,
    room: i64,
    count: *mut i64,
    values: *mut c_void,
) {
    let mut graphs = GRAPHS.lock();
    let graph = graphs.get(&descriptor).copied().unwrap_or(0);
    let fits = room > 0 && !values.is_null();
    let found = match kind {
        TYPE_DESCRIPTOR if fits => {
            // SAFETY: there is room for at least one descriptor, which the caller has put there.
            let to = unsafe { values.cast::<u64>().read_unaligned() };
            // A list of knobs, which the library made, stays as it is.
            graphs.get_mut(&to).is_some_and(|of| {
                *of = graph;
                true
            })
        }
        TYPE_DESCRIPTOR => true,
        TYPE_INT64 if fits => {
            let value = if attribute == PLAN_WORK_SPACE {
                cudnn_costs::work_space(graph)
            } else {
                0
            };
            // SAFETY: there is room for at least one number.
            unsafe { values.cast::<i64>().write_unaligned(value as i64) };
            true
        }
        _ => false,
    };
    if !count.is_null() {
        // SAFETY: not null, so the caller's.
        unsafe { count.write(i64::from(found)) };
    }
}
