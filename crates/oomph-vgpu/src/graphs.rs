//! Graphs beyond capture and replay: nodes added by hand, conditional nodes, capture into a graph
//! that exists, and the objects that graphs keep alive.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::time::Duration;

use crate::arguments::Out;
use crate::runtime::{Error, ILLEGAL_STATE, INVALID_VALUE, SUCCESS, UNKNOWN, fail};
use crate::streams::{self, opaque_handle};
use crate::sync::Mutex;
use crate::{export, ledger};

/// `cudaGraphNodeTypeKernel`.
const KERNEL: c_int = 0;
/// `cudaGraphNodeTypeEmpty`.
const EMPTY: c_int = 5;
/// `cudaGraphNodeTypeConditional`.
const CONDITIONAL: c_int = 13;
/// `cudaGraphUserObjectMove`: the graph takes over the caller's references.
const MOVE: c_uint = 1;
/// More bodies than any conditional node has.
const MOST_BODIES: usize = 1024;

/// The start of `cudaGraphNodeParams`, as it is for conditional nodes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct NodeParams {
    kind: c_int,
    reserved: [c_int; 3],
    handle: c_ulonglong,
    condition: c_int,
    size: c_uint,
    /// Set to the graphs of the node's bodies, which live as long as the node.
    bodies: *mut u64,
}

/// Runs when the last reference to an object is dropped.
type Destructor = unsafe extern "C" fn(*mut c_void);

#[derive(Debug)]
struct Object {
    at: usize,
    destroy: Option<Destructor>,
    references: u64,
}

#[derive(Debug, Default)]
struct Objects {
    known: HashMap<u64, Object>,
    /// Graph or executable → the objects that it holds, and how often.
    held: BTreeMap<u64, Vec<(u64, u64)>>,
}

static OBJECTS: std::sync::LazyLock<Mutex<Objects>> =
    std::sync::LazyLock::new(|| Mutex::new(Objects::default()));

/// A node that was added by hand.
#[derive(Debug)]
struct Node {
    graph: u64,
    kind: c_int,
    after: Vec<u64>,
    /// The graph that it stands for.
    child: Option<u64>,
}

/// Nodes that were added by hand, in their order. All others count as kernels.
static ADDED: Mutex<BTreeMap<u64, Node>> = Mutex::new(BTreeMap::new());

/// Adds a node of `kind` that takes `time`; `None` if there is no such graph.
pub fn add(graph: u64, kind: c_int, time: Duration, after: &[u64]) -> Option<u64> {
    streams::add_node(graph, time).then(|| {
        let handle = opaque_handle();
        let node = Node {
            graph,
            kind,
            after: after.to_vec(),
            child: None,
        };
        ADDED.lock().insert(handle, node);
        handle
    })
}

/// Adds a node of any kind that takes `time`.
///
/// # Safety
/// `after` must be null or have `count` nodes, and `params` null or a node's parameters.
pub unsafe fn add_any(
    out: Out<u64>,
    graph: u64,
    after: *const u64,
    count: usize,
    params: *mut NodeParams,
    time: Duration,
) -> Error {
    // SAFETY: the caller's contract: every kind of node has at least these fields.
    let Some(params) = (unsafe { params.as_mut() }) else {
        return fail(INVALID_VALUE);
    };
    // SAFETY: the caller's contract.
    let after = unsafe { list(after, count) };
    let Some(node) = add(graph, params.kind, time, after) else {
        return fail(INVALID_VALUE);
    };
    if params.kind == CONDITIONAL {
        ledger::assume(
            "cudaGraphAddNode",
            "the bodies of conditional graph nodes are assumed to take no time",
        );
        let bodies: Vec<u64> = (0..(params.size as usize).min(MOST_BODIES))
            .map(|_| streams::create_graph())
            .collect();
        // A node lives as long as the process may ask: a word for each body is kept.
        params.bodies = Box::leak(bodies.into_boxed_slice()).as_mut_ptr();
    }
    out.put(node);
    SUCCESS
}

/// All nodes of `graph`. Captured ones, which follow the others here, have no handles of their own.
pub fn all_nodes(graph: u64) -> Option<Vec<u64>> {
    let count = streams::graph(graph)?.nodes;
    let mut all = nodes(graph);
    all.extend((all.len() as u64..count).map(|index| graph + index + 1));
    Some(all)
}

/// The nodes of `graph` that come after no others. Of captured ones, each comes after the one before.
pub fn roots(graph: u64) -> Option<Vec<u64>> {
    let all = all_nodes(graph)?;
    let added = ADDED.lock();
    let mut captured = false;
    let is_root = |node: &u64| match added.get(node) {
        Some(node) => node.after.is_empty(),
        None => !std::mem::replace(&mut captured, true),
    };
    Some(all.into_iter().filter(is_root).collect())
}

/// Whether `node` was added by hand to a graph that is still there.
pub fn is_node(node: u64) -> bool {
    ADDED.lock().contains_key(&node)
}

/// Node `node` stands for `child`.
pub fn set_child(node: u64, child: u64) {
    if let Some(node) = ADDED.lock().get_mut(&node) {
        node.child = Some(child);
    }
}

/// The graph that `node` stands for.
pub fn child(node: u64) -> Option<u64> {
    ADDED.lock().get(&node)?.child
}

/// The nodes that were added to `graph` by hand.
pub fn nodes(graph: u64) -> Vec<u64> {
    let added = ADDED.lock();
    let own = added.iter().filter(|(_, node)| node.graph == graph);
    own.map(|(&handle, _)| handle).collect()
}

/// # Safety
/// `nodes` must be null or have `count` elements as long as the result is used.
pub unsafe fn list<'a>(nodes: *const u64, count: usize) -> &'a [u64] {
    if nodes.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts(nodes, count) }
}

/// Writes what `node` comes after, as far as there is room, and how many those are.
///
/// # Safety
/// `count` must be null or readable, and `nodes` null or have room for so many.
pub unsafe fn dependencies(node: u64, nodes: *mut u64, count: *mut usize) -> Error {
    let added = ADDED.lock();
    let Some(node) = added.get(&node) else {
        return fail(INVALID_VALUE);
    };
    // SAFETY: the caller's contract.
    unsafe { put_list(&node.after, nodes, count) };
    SUCCESS
}

/// Writes a list as far as there is room, and its length.
///
/// # Safety
/// `count` must be null or readable, and `nodes` null or have room for so many.
pub unsafe fn put_list(found: &[u64], nodes: *mut u64, count: *mut usize) {
    if count.is_null() {
        return;
    }
    // SAFETY: the caller's contract.
    unsafe {
        let room = if nodes.is_null() { 0 } else { count.read() };
        for (index, &one) in found.iter().take(room).enumerate() {
            nodes.add(index).write(one);
        }
        count.write(found.len());
    }
}

/// Drops `count` references; the destructor of an unreferenced object runs here, outside
/// the lock, because it may call back.
fn release(object: u64, count: u64) -> bool {
    let mut objects = OBJECTS.lock();
    let Some(found) = objects.known.get_mut(&object) else {
        return false;
    };
    found.references = found.references.saturating_sub(count);
    let gone = if found.references == 0 {
        objects.known.remove(&object)
    } else {
        None
    };
    drop(objects);
    if let Some(Object {
        at,
        destroy: Some(destroy),
        ..
    }) = gone
    {
        // SAFETY: the caller's destructor with the caller's argument, once.
        unsafe { destroy(at as *mut c_void) };
    }
    true
}

/// An executable holds what its graph holds.
pub fn instantiated(graph: u64, executable: u64) {
    let mut objects = OBJECTS.lock();
    let Some(held) = objects.held.get(&graph).cloned() else {
        return;
    };
    for (object, count) in &held {
        if let Some(found) = objects.known.get_mut(object) {
            found.references += count;
        }
    }
    objects.held.insert(executable, held);
}

/// A graph or an executable is gone, and lets go of its objects.
pub fn destroyed(handle: u64) {
    ADDED.lock().retain(|_, node| node.graph != handle);
    let held = OBJECTS.lock().held.remove(&handle);
    for (object, count) in held.unwrap_or_default() {
        release(object, count);
    }
}

export! {
    unsafe fn cudaUserObjectCreate(out: Out<u64>, at: *mut c_void, destroy: Option<Destructor>, references: c_uint, _flags: c_uint) -> Error, or UNKNOWN; {
        if out.is_null() || references == 0 {
            return fail(INVALID_VALUE);
        }
        let handle = opaque_handle();
        let object = Object { at: at as usize, destroy, references: u64::from(references) };
        OBJECTS.lock().known.insert(handle, object);
        out.put(handle);
        SUCCESS
    }
    fn cudaUserObjectRetain(object: u64, count: c_uint) -> Error, or UNKNOWN; {
        match OBJECTS.lock().known.get_mut(&object) {
            Some(found) => {
                found.references += u64::from(count);
                SUCCESS
            }
            None => fail(INVALID_VALUE),
        }
    }
    fn cudaUserObjectRelease(object: u64, count: c_uint) -> Error, or UNKNOWN; {
        if release(object, u64::from(count)) { SUCCESS } else { fail(INVALID_VALUE) }
    }
    fn cudaGraphRetainUserObject(graph: u64, object: u64, count: c_uint, flags: c_uint) -> Error, or UNKNOWN; {
        let mut objects = OBJECTS.lock();
        let Some(found) = objects.known.get_mut(&object) else { return fail(INVALID_VALUE) };
        if flags & MOVE == 0 {
            found.references += u64::from(count);
        }
        objects.held.entry(graph).or_default().push((object, u64::from(count)));
        SUCCESS
    }
    fn cudaGraphReleaseUserObject(graph: u64, object: u64, count: c_uint) -> Error, or UNKNOWN; {
        let mut objects = OBJECTS.lock();
        let held = objects.held.get_mut(&graph).and_then(|held| held.iter_mut().find(|(of, _)| *of == object));
        let Some((_, holds)) = held else { return fail(INVALID_VALUE) };
        let count = u64::from(count).min(*holds);
        *holds -= count;
        drop(objects);
        release(object, count);
        SUCCESS
    }
}

export! {
    fn cudaStreamBeginCaptureToGraph(stream: u64, graph: u64, _dependencies: *const u64, _edges: *const c_void, _count: usize, _mode: c_int) -> Error, or UNKNOWN; {
        if streams::graph(graph).is_none() {
            return fail(INVALID_VALUE);
        }
        if streams::begin_capture_to(stream, Some(graph)) { SUCCESS } else { fail(ILLEGAL_STATE) }
    }
    fn cudaGraphConditionalHandleCreate(out: Out<c_ulonglong>, graph: u64, _value: c_uint, _flags: c_uint) -> Error, or UNKNOWN; {
        if streams::graph(graph).is_none() {
            return fail(INVALID_VALUE);
        }
        out.put(opaque_handle());
        SUCCESS
    }
    unsafe fn cudaGraphAddNode(out: Out<u64>, graph: u64, after: *const u64, _edges: *const c_void, count: usize, params: *mut NodeParams) -> Error, or UNKNOWN; {
        // SAFETY: the caller's arguments.
        unsafe { add_any(out, graph, after, count, params, Duration::ZERO) }
    }
    fn cudaGraphAddEmptyNode(out: Out<u64>, graph: u64, _dependencies: *const u64, _count: usize) -> Error, or UNKNOWN; {
        let Some(node) = add(graph, EMPTY, Duration::ZERO, &[]) else { return fail(INVALID_VALUE) };
        out.put(node);
        SUCCESS
    }
    fn cudaGraphNodeGetType(node: u64, kind: Out<c_int>) -> Error, or UNKNOWN; {
        kind.put(ADDED.lock().get(&node).map_or(KERNEL, |node| node.kind));
        SUCCESS
    }
    /// Memory that graphs allocate for themselves: none here.
    fn cudaDeviceGetGraphMemAttribute(_device: c_int, _attribute: c_int, value: Out<u64>) -> Error, or UNKNOWN; {
        value.put(0);
        SUCCESS
    }
    fn cudaDeviceSetGraphMemAttribute(_device: c_int, _attribute: c_int, _value: *mut c_void) -> Error, or UNKNOWN; { SUCCESS }
    fn cudaDeviceGraphMemTrim(_device: c_int) -> Error, or UNKNOWN; { SUCCESS }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    static DESTROYED: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C" fn count(_at: *mut c_void) {
        DESTROYED.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn an_object_lives_as_long_as_the_graphs_that_hold_it() {
        let (mut object, graph, executable) = (0, opaque_handle(), opaque_handle());
        // SAFETY: outputs are live variables.
        unsafe {
            let made = cudaUserObjectCreate(
                (&mut object).into(),
                std::ptr::null_mut(),
                Some(count),
                1,
                1,
            );
            assert_eq!(made, SUCCESS);
            assert_eq!(cudaGraphRetainUserObject(graph, object, 1, MOVE), SUCCESS);
            instantiated(graph, executable);
            destroyed(graph);
            assert_eq!(DESTROYED.load(Ordering::Relaxed), 0);
            destroyed(executable);
            assert_eq!(DESTROYED.load(Ordering::Relaxed), 1);
            assert_eq!(cudaUserObjectRelease(object, 1), INVALID_VALUE);
        }
    }

    #[test]
    fn a_node_that_was_added_by_hand_keeps_its_kind_as_long_as_its_graph() {
        let graph = streams::create_graph();
        let (mut node, mut kind) = (0, -1);
        let kind_of = |node, kind: &mut c_int| cudaGraphNodeGetType(node, kind.into());
        assert_eq!(
            cudaGraphAddEmptyNode((&mut node).into(), graph, std::ptr::null(), 0),
            SUCCESS
        );
        assert_eq!((kind_of(node, &mut kind), kind), (SUCCESS, EMPTY));
        assert_eq!(streams::graph(graph).map(|found| found.nodes), Some(1));
        destroyed(graph);
        assert_eq!((kind_of(node, &mut kind), kind), (SUCCESS, KERNEL));
        let none = streams::create_graph() + 1_000_000;
        assert_eq!(
            cudaGraphAddEmptyNode((&mut node).into(), none, std::ptr::null(), 0),
            INVALID_VALUE
        );
    }

    #[test]
    fn a_conditional_node_brings_graphs_that_can_be_captured_into() {
        let graph = streams::create_graph();
        let mut params = NodeParams {
            kind: CONDITIONAL,
            reserved: [0; 3],
            handle: 1,
            condition: 0,
            size: 2,
            bodies: std::ptr::null_mut(),
        };
        let stream = streams::create_stream(7, 0, 0);
        let (none, mut node) = (std::ptr::null(), 0);
        // SAFETY: outputs are live variables; the node has two bodies.
        unsafe {
            let added = cudaGraphAddNode(
                (&mut node).into(),
                graph,
                none,
                std::ptr::null(),
                0,
                &raw mut params,
            );
            assert_eq!(added, SUCCESS);
            let body = params.bodies.add(1).read();
            assert_eq!(
                cudaStreamBeginCaptureToGraph(stream, body, none, std::ptr::null(), 0, 0),
                SUCCESS
            );
            streams::spend(7, stream, std::time::Duration::from_millis(1));
            assert_eq!(streams::end_capture(stream), Ok(body));
            assert_eq!(streams::graph(body).map(|found| found.nodes), Some(1));
        }
        assert_eq!(streams::graph(graph).map(|found| found.nodes), Some(1));
    }
}
