//! Graphs that programs build node by node through the driver, as XLA does, and change afterwards.
//!
//! A node is counted and timed like the work that it stands for; nothing runs when the graph does. Graphs take no device
//! memory here: on an H200 a jitted step that runs as a graph took what the same step took without one
//! (`bench/jax/results/h200_jax.jsonl`: `jitted_mlp`, `eager_mlp`). Nodes that allocate memory (`cuGraphAddMemAllocNode`) are
//! not there.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::time::Duration;

use crate::arguments::{In, Out, Text};
use crate::clock::Path;
use crate::device::machine;
use crate::driver::{self, Status};
use crate::graphs::{self, NodeParams};
use crate::runtime::{self, INVALID_VALUE, SUCCESS, UNKNOWN};
use crate::{export, kernels, streams};

// `CUgraphNodeType`.
const KERNEL: c_int = 0;
const MEMCPY: c_int = 1;
const MEMSET: c_int = 2;
const CHILD: c_int = 4;
const EMPTY: c_int = 5;

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KernelParams {
    function: u64,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
    kernel: u64,
    context: u64,
}

/// One side of a `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Side {
    origin: [usize; 4],
    kind: c_int,
    host: u64,
    device: u64,
    array: u64,
    reserved: u64,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CopyParams {
    from: Side,
    to: Side,
    extent: [usize; 3],
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SetParams {
    at: u64,
    pitch: usize,
    value: c_uint,
    element: c_uint,
    width: usize,
    height: usize,
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct UpdateResult {
    result: c_int,
    node: u64,
    from: u64,
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct InstantiateParams {
    flags: c_ulonglong,
    stream: u64,
    node: u64,
    result: c_int,
}

impl KernelParams {
    fn time(&self) -> Duration {
        let function = if self.function == 0 {
            self.kernel
        } else {
            self.function
        };
        kernels::time_of_shape(function, self.grid, self.block, self.shared)
    }
}

impl CopyParams {
    fn time(&self) -> Duration {
        let place = |side: Side| driver::device_of(side.device);
        let path = match (place(self.to), place(self.from)) {
            (Some(to), Some(from)) if to == from => Path::Within,
            (Some(_), Some(_)) => Path::Between,
            _ => Path::Pinned,
        };
        machine()
            .rates
            .copy(path, self.extent.iter().product::<usize>() as u64)
    }
}

impl SetParams {
    fn time(&self) -> Duration {
        let bytes = self.width as f64 * self.height.max(1) as f64 * f64::from(self.element);
        machine().rates.moving(bytes)
    }
}

/// Adds a node after `count` others, and writes its handle.
///
/// # Safety
/// `after` must be null or have `count` nodes.
unsafe fn add(
    out: Out<u64>,
    graph: u64,
    after: *const u64,
    count: usize,
    kind: c_int,
    time: Duration,
) -> Status {
    // SAFETY: the caller's contract.
    let after = unsafe { graphs::list(after, count) };
    match graphs::add(graph, kind, time, after) {
        Some(node) => {
            out.put(node);
            SUCCESS
        }
        None => INVALID_VALUE,
    }
}

/// Adds a node of any kind.
///
/// # Safety
/// `after` must be null or have `count` nodes, and `params` null or a `CUgraphNodeParams`.
unsafe fn add_any(
    out: Out<u64>,
    graph: u64,
    after: *const u64,
    count: usize,
    params: *mut NodeParams,
) -> Status {
    /// Bytes before the parameters of the kind, and what those of a copy begin with.
    const BEFORE: usize = 16;
    const BEFORE_COPY: usize = BEFORE + 16;
    if params.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null, so a node's parameters: the kind, and then what the kind has, by the vendor's header.
    let (time, child) = unsafe {
        let at = params.cast::<u8>();
        match at.cast::<c_int>().read_unaligned() {
            KERNEL => {
                let kernel = at.add(BEFORE).cast::<KernelParams>().read_unaligned();
                (kernel.time(), None)
            }
            MEMCPY => {
                let copy = at.add(BEFORE_COPY).cast::<CopyParams>().read_unaligned();
                (copy.time(), None)
            }
            MEMSET => {
                let set = at.add(BEFORE).cast::<SetParams>().read_unaligned();
                (set.time(), None)
            }
            CHILD => {
                let child = at.add(BEFORE).cast::<u64>().read_unaligned();
                let Some(found) = streams::graph(child) else {
                    return INVALID_VALUE;
                };
                (found.time, Some(child))
            }
            _ => (Duration::ZERO, None),
        }
    };
    let mut node = 0;
    // SAFETY: the caller's contract.
    let status = unsafe { graphs::add_any((&mut node).into(), graph, after, count, params, time) };
    if status == SUCCESS {
        out.put(node);
        if let Some(child) = child {
            graphs::set_child(node, child);
        }
    }
    status
}

/// A node of an executable graph gets other parameters: its time is taken to stay the same.
fn change(executable: u64, node: u64) -> Status {
    let known = streams::is_executable(executable) && graphs::is_node(node);
    if known { SUCCESS } else { INVALID_VALUE }
}

export! {
    fn cuGraphCreate(out: Out<u64>, _flags: c_uint) -> Status, or UNKNOWN; {
        out.put(streams::create_graph());
        SUCCESS
    }
    fn cuGraphClone(out: Out<u64>, graph: u64) -> Status, or UNKNOWN; {
        let Some(copy) = streams::clone_graph(graph) else { return INVALID_VALUE };
        out.put(copy);
        SUCCESS
    }
    unsafe fn cuGraphAddKernelNode_v2(out: Out<u64>, graph: u64, after: *const u64, count: usize, params: In<KernelParams>) -> Status, or UNKNOWN; {
        let Some(params) = params.get() else { return INVALID_VALUE };
        // SAFETY: `count` nodes by the vendor's header.
        unsafe { add(out, graph, after, count, KERNEL, params.time()) }
    }
    unsafe fn cuGraphAddMemcpyNode(out: Out<u64>, graph: u64, after: *const u64, count: usize, params: In<CopyParams>, _context: u64) -> Status, or UNKNOWN; {
        let Some(params) = params.get() else { return INVALID_VALUE };
        // SAFETY: `count` nodes by the vendor's header.
        unsafe { add(out, graph, after, count, MEMCPY, params.time()) }
    }
    unsafe fn cuGraphAddMemsetNode(out: Out<u64>, graph: u64, after: *const u64, count: usize, params: In<SetParams>, _context: u64) -> Status, or UNKNOWN; {
        let Some(params) = params.get() else { return INVALID_VALUE };
        // SAFETY: `count` nodes by the vendor's header.
        unsafe { add(out, graph, after, count, MEMSET, params.time()) }
    }
    unsafe fn cuGraphAddChildGraphNode(out: Out<u64>, graph: u64, after: *const u64, count: usize, child: u64) -> Status, or UNKNOWN; {
        let Some(found) = streams::graph(child) else { return INVALID_VALUE };
        // SAFETY: `count` nodes by the vendor's header.
        let status = unsafe { add(out, graph, after, count, CHILD, found.time) };
        if status == SUCCESS && !out.is_null() {
            // SAFETY: not null, and just written.
            graphs::set_child(unsafe { out.as_ptr().read_unaligned() }, child);
        }
        status
    }
    fn cuGraphChildGraphNodeGetGraph(node: u64, out: Out<u64>) -> Status, or UNKNOWN; {
        let Some(child) = graphs::child(node) else { return INVALID_VALUE };
        out.put(child);
        SUCCESS
    }
    unsafe fn cuGraphAddEmptyNode(out: Out<u64>, graph: u64, after: *const u64, count: usize) -> Status, or UNKNOWN; {
        // SAFETY: `count` nodes by the vendor's header.
        unsafe { add(out, graph, after, count, EMPTY, Duration::ZERO) }
    }
    unsafe fn cuGraphAddNode(out: Out<u64>, graph: u64, after: *const u64, count: usize, params: *mut NodeParams) -> Status, or UNKNOWN; {
        // SAFETY: the caller's arguments.
        unsafe { add_any(out, graph, after, count, params) }
    }
    unsafe fn cuGraphAddNode_v2(out: Out<u64>, graph: u64, after: *const u64, _edges: *const c_void, count: usize, params: *mut NodeParams) -> Status, or UNKNOWN; {
        // SAFETY: the caller's arguments.
        unsafe { add_any(out, graph, after, count, params) }
    }
    unsafe fn cuGraphGetRootNodes(graph: u64, nodes: *mut u64, count: *mut usize) -> Status, or UNKNOWN; {
        // SAFETY: the caller's list, as the runtime's function takes it.
        unsafe { runtime::cudaGraphGetRootNodes(graph, nodes, count) }
    }
    fn cuGraphConditionalHandleCreate(out: Out<c_ulonglong>, graph: u64, _context: u64, value: c_uint, flags: c_uint) -> Status, or UNKNOWN; {
        graphs::cudaGraphConditionalHandleCreate(out, graph, value, flags)
    }
    fn cuGraphAddDependencies(_graph: u64, _from: *const u64, _to: *const u64, _count: usize) -> Status, or UNKNOWN; { SUCCESS }
    fn cuGraphAddDependencies_v2(_graph: u64, _from: *const u64, _to: *const u64, _edges: *const c_void, _count: usize) -> Status, or UNKNOWN; { SUCCESS }
    unsafe fn cuGraphNodeGetDependencies(node: u64, nodes: *mut u64, count: *mut usize) -> Status, or UNKNOWN; {
        // SAFETY: room for `count` nodes by the vendor's header.
        unsafe { graphs::dependencies(node, nodes, count) }
    }
    unsafe fn cuGraphNodeGetDependencies_v2(node: u64, nodes: *mut u64, _edges: *mut c_void, count: *mut usize) -> Status, or UNKNOWN; {
        // SAFETY: room for `count` nodes by the vendor's header.
        unsafe { graphs::dependencies(node, nodes, count) }
    }
    fn cuGraphNodeGetType(node: u64, kind: Out<c_int>) -> Status, or UNKNOWN; { graphs::cudaGraphNodeGetType(node, kind) }
    fn cuGraphKernelNodeSetAttribute(node: u64, _which: c_int, _value: *const c_void) -> Status, or UNKNOWN; {
        if graphs::is_node(node) { SUCCESS } else { INVALID_VALUE }
    }
    fn cuGraphKernelNodeCopyAttributes(to: u64, from: u64) -> Status, or UNKNOWN; {
        if graphs::is_node(to) && graphs::is_node(from) { SUCCESS } else { INVALID_VALUE }
    }
    fn cuGraphDebugDotPrint(graph: u64, path: Text, flags: c_uint) -> Status, or UNKNOWN; {
        runtime::cudaGraphDebugDotPrint(graph, path, flags)
    }
    fn cuGraphInstantiateWithParams(out: Out<u64>, graph: u64, params: *mut InstantiateParams) -> Status, or UNKNOWN; {
        // SAFETY: the caller's parameters, or null.
        if let Some(params) = unsafe { params.as_mut() } {
            (params.node, params.result) = (0, 0);
        }
        runtime::cudaGraphInstantiate(out, graph, 0)
    }
    fn cuGraphUpload(executable: u64, stream: u64) -> Status, or UNKNOWN; { runtime::cudaGraphUpload(executable, stream) }
    fn cuGraphExecGetFlags(executable: u64, flags: Out<c_ulonglong>) -> Status, or UNKNOWN; {
        flags.put(0);
        if streams::is_executable(executable) { SUCCESS } else { INVALID_VALUE }
    }
    /// The executable runs what `graph` is now. Its shape is not compared: a program that gives another one gets what it would
    /// have instantiated.
    fn cuGraphExecUpdate_v2(executable: u64, graph: u64, result: Out<UpdateResult>) -> Status, or UNKNOWN; {
        result.put(UpdateResult { result: 0, node: 0, from: 0 });
        if streams::update_executable(executable, graph) { SUCCESS } else { INVALID_VALUE }
    }
    fn cuGraphExecKernelNodeSetParams_v2(executable: u64, node: u64, _params: *const KernelParams) -> Status, or UNKNOWN; { change(executable, node) }
    fn cuGraphExecMemcpyNodeSetParams(executable: u64, node: u64, _params: *const CopyParams, _context: u64) -> Status, or UNKNOWN; { change(executable, node) }
    fn cuGraphExecMemsetNodeSetParams(executable: u64, node: u64, _params: *const SetParams, _context: u64) -> Status, or UNKNOWN; { change(executable, node) }
    fn cuGraphExecChildGraphNodeSetParams(executable: u64, node: u64, child: u64) -> Status, or UNKNOWN; {
        if streams::graph(child).is_none() {
            return INVALID_VALUE;
        }
        change(executable, node)
    }
    fn cuGraphExecNodeSetParams(executable: u64, node: u64, _params: *mut NodeParams) -> Status, or UNKNOWN; { change(executable, node) }
    fn cuGraphNodeSetEnabled(executable: u64, node: u64, _enabled: c_uint) -> Status, or UNKNOWN; { change(executable, node) }
    fn cuStreamBeginCaptureToGraph(stream: u64, graph: u64, after: *const u64, edges: *const c_void, count: usize, mode: c_int) -> Status, or UNKNOWN; {
        graphs::cudaStreamBeginCaptureToGraph(stream, graph, after, edges, count, mode)
    }
    fn cuDeviceGetGraphMemAttribute(device: c_int, which: c_int, value: Out<u64>) -> Status, or UNKNOWN; {
        graphs::cudaDeviceGetGraphMemAttribute(device, which, value)
    }
    fn cuDeviceGraphMemTrim(_device: c_int) -> Status, or UNKNOWN; { SUCCESS }
}

// ---- what else XLA asks the driver for ----

export! {
    fn cuDeviceGetP2PAttribute(out: Out<c_int>, _which: c_int, _from: c_int, _to: c_int) -> Status, or UNKNOWN; {
        out.put(0);
        SUCCESS
    }
    unsafe fn cuDeviceGetByPCIBusId(out: Out<c_int>, text: Text) -> Status, or UNKNOWN; {
        let Some(text) = text.get() else { return INVALID_VALUE };
        let asked = text.to_string_lossy().to_lowercase();
        let found = (0..machine().devices.len() as c_int).find(|&index| {
            let mut name = [0 as c_char; 32];
            // SAFETY: 32 bytes, as is said.
            unsafe { runtime::cudaDeviceGetPCIBusId(name.as_mut_ptr(), 32, index) };
            let name: String = name.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8 as char).collect();
            name.to_lowercase() == asked
        });
        let Some(found) = found else { return runtime::INVALID_DEVICE };
        out.put(found);
        SUCCESS
    }
    fn cuMemPoolCreate(out: Out<u64>, properties: *const c_void) -> Status, or UNKNOWN; { crate::pools::cudaMemPoolCreate(out, properties) }
    fn cuMemPoolDestroy(pool: u64) -> Status, or UNKNOWN; { crate::pools::cudaMemPoolDestroy(pool) }
    fn cuMemPoolSetAccess(pool: u64, list: *const c_void, count: usize) -> Status, or UNKNOWN; { crate::pools::cudaMemPoolSetAccess(pool, list, count) }
    fn cuMemAllocFromPoolAsync(out: Out<*mut c_void>, size: usize, pool: u64, stream: u64) -> Status, or UNKNOWN; {
        crate::pools::cudaMallocFromPoolAsync(out, size, pool, stream)
    }
    fn cuDeviceSetMemPool(device: c_int, pool: u64) -> Status, or UNKNOWN; { crate::pools::cudaDeviceSetMemPool(device, pool) }
    unsafe fn cuMemsetD16Async(at: u64, value: u16, count: usize, stream: u64) -> Status, or UNKNOWN; {
        crate::clock::filled(stream, count as u64 * 2);
        if (count as u64) * 2 <= machine().copy_limit {
            for index in 0..count {
                // SAFETY: the caller's range of `count` elements; null is looked at.
                unsafe { Out::new((at as *mut u16).wrapping_add(index)) }.put(value);
            }
        }
        SUCCESS
    }
    unsafe fn cuMemsetD32_v2(at: u64, value: c_uint, count: usize) -> Status, or UNKNOWN; {
        // SAFETY: the caller's range.
        unsafe { driver::cuMemsetD32Async(at, value, count, 0) }
    }
    /// A stream waits for nothing here: what it waits for has happened.
    fn cuStreamWaitValue32_v2(_stream: u64, _at: u64, _value: c_uint, _flags: c_uint) -> Status, or UNKNOWN; { SUCCESS }
    unsafe fn cuStreamWriteValue32_v2(stream: u64, at: u64, value: c_uint, flags: c_uint) -> Status, or UNKNOWN; {
        // SAFETY: the caller's word of device memory, or null.
        unsafe { driver::cuStreamWriteValue32(stream, at, value, flags) }
    }
    fn cudaGraphCreate(out: Out<u64>, flags: c_uint) -> Status, or UNKNOWN; { cuGraphCreate(out, flags) }
    unsafe fn cudaGraphAddChildGraphNode(out: Out<u64>, graph: u64, after: *const u64, count: usize, child: u64) -> Status, or UNKNOWN; {
        // SAFETY: the caller's arguments, as the driver's function takes them.
        unsafe { cuGraphAddChildGraphNode(out, graph, after, count, child) }
    }
    fn cudaGraphChildGraphNodeGetGraph(node: u64, out: Out<u64>) -> Status, or UNKNOWN; { cuGraphChildGraphNodeGetGraph(node, out) }
    /// A kernel by the host function that stands for it: the same handle launches it.
    fn cudaGetFuncBySymbol(out: Out<u64>, symbol: u64) -> Status, or UNKNOWN; {
        if symbol == 0 {
            return INVALID_VALUE;
        }
        out.put(symbol);
        SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::LAUNCH;

    #[test]
    fn a_graph_that_was_built_node_by_node_takes_the_time_of_its_nodes_and_can_be_changed() {
        let (mut graph, mut first, mut second, mut executable) = (0, 0, 0, 0);
        let set = SetParams {
            at: 0,
            pitch: 0,
            value: 0,
            element: 4,
            width: 1 << 28,
            height: 1,
        };
        let none = std::ptr::null();
        assert_eq!(cuGraphCreate((&mut graph).into(), 0), SUCCESS);
        // SAFETY: outputs and inputs are live variables, with the counts that are said.
        unsafe {
            let params = std::mem::transmute::<*const SetParams, In<SetParams>>(&raw const set);
            assert_eq!(
                cuGraphAddMemsetNode((&mut first).into(), graph, none, 0, params, 0),
                SUCCESS
            );
            assert_eq!(
                cuGraphAddEmptyNode((&mut second).into(), graph, &raw const first, 1),
                SUCCESS
            );
            let (mut found, mut count) = (0_u64, 1_usize);
            assert_eq!(
                cuGraphNodeGetDependencies(second, &raw mut found, &raw mut count),
                SUCCESS
            );
            assert_eq!((found, count), (first, 1));
            let (mut nodes, mut count) = ([0_u64; 4], 4_usize);
            assert_eq!(
                runtime::cudaGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count),
                SUCCESS
            );
            assert_eq!((&nodes[..2], count), (&[first, second][..], 2));
            let mut count = 4_usize;
            assert_eq!(
                cuGraphGetRootNodes(graph, nodes.as_mut_ptr(), &raw mut count),
                SUCCESS
            );
            assert_eq!((nodes[0], count), (first, 1));
        }
        let mut kind = -1;
        assert_eq!(
            (cuGraphNodeGetType(first, (&mut kind).into()), kind),
            (SUCCESS, MEMSET)
        );
        assert_eq!(
            runtime::cudaGraphInstantiate((&mut executable).into(), graph, 0),
            SUCCESS
        );
        let time = streams::graph(graph).map(|graph| graph.time);
        assert!(time.is_some_and(|time| time > LAUNCH));
        // Another graph takes its place; a graph that is not there does not.
        let mut other = 0;
        assert_eq!(cuGraphCreate((&mut other).into(), 0), SUCCESS);
        assert_eq!(
            cuGraphExecUpdate_v2(executable, other, Out::null()),
            SUCCESS
        );
        assert_eq!(
            streams::executable(executable).map(|graph| graph.nodes),
            Some(0)
        );
        // A graph inside another one takes its time.
        let (mut outer, mut node, mut inside) = (0, 0, 0);
        assert_eq!(cudaGraphCreate((&mut outer).into(), 0), SUCCESS);
        // SAFETY: outputs are live variables, and there is no list.
        let added =
            unsafe { cudaGraphAddChildGraphNode((&mut node).into(), outer, none, 0, graph) };
        assert_eq!(added, SUCCESS);
        assert_eq!(
            cudaGraphChildGraphNodeGetGraph(node, (&mut inside).into()),
            SUCCESS
        );
        assert_eq!(inside, graph);
        assert_eq!(streams::graph(outer).map(|graph| graph.time), time);
        assert_eq!(
            cuGraphExecUpdate_v2(executable, 12, Out::null()),
            INVALID_VALUE
        );
        assert_eq!(
            cuGraphExecKernelNodeSetParams_v2(executable, 12, std::ptr::null()),
            INVALID_VALUE
        );
    }
}
