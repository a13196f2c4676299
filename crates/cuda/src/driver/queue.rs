//! Streams: copies and kernels in their order, recorded or timed.

use std::ffi::c_void;
use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys;

use super::{Checked, Gpu, Launch, Memory, Pinned, check};

/// A queue of work.
pub(crate) struct Stream(pub(super) sys::CUstream, pub(super) Arc<Gpu>);

// SAFETY: a stream may be used from any thread.
unsafe impl Send for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}

impl Stream {
    pub(crate) fn wait(&self) -> Checked<()> {
        // SAFETY: the stream is alive.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.0) })
    }

    /// Copies `bytes` from the GPU's address `from`, which the caller knows to be in its memory.
    pub(crate) fn fetch(&self, from: u64, to: &Pinned, bytes: usize) -> Checked<()> {
        assert!(bytes <= to.bytes, "copies stay inside");
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the target is inside; a wrong source address is an error of the driver's.
        check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(to.start.cast(), from, bytes, self.0)
        })
    }

    pub(crate) fn copy(&self, from: &Memory, to: &Memory, bytes: usize) -> Checked<()> {
        assert!(bytes <= from.bytes && bytes <= to.bytes, "copies stay inside");
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges are inside their allocations.
        check("cuMemcpyDtoDAsync", unsafe {
            sys::cuMemcpyDtoDAsync_v2(to.start, from.start, bytes, self.0)
        })
    }

    /// Queues a kernel. With `overlap` it may begin before the kernel ahead has ended; it waits for
    /// that one's results itself.
    pub(crate) fn launch(&self, launch: &Launch, overlap: bool) -> Checked<()> {
        let mut parameters: Vec<*mut c_void> =
            launch.parameters.iter().map(|p| p.0.as_ptr().cast_mut().cast()).collect();
        use sys::CUlaunchAttributeID::{
            CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION as CLUSTER,
            CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION as OVERLAP,
        };
        let attribute = |id, set: &dyn Fn(&mut sys::CUlaunchAttributeValue)| {
            let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
            set(&mut value);
            sys::CUlaunchAttribute { id, pad: [0; 4], value }
        };
        let mut attributes = Vec::new();
        if overlap {
            attributes.push(attribute(OVERLAP, &|v| v.programmaticStreamSerializationAllowed = 1));
        }
        if launch.cluster > 1 {
            attributes.push(attribute(CLUSTER, &|v| {
                v.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 {
                    x: launch.cluster,
                    y: 1,
                    z: 1,
                };
            }));
        }
        let (x, y, z) = launch.grid;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared,
            hStream: self.0,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: the function is of a loaded module that is never unloaded; parameters are laid
        // out as its signature says, and the driver copies them before it returns.
        check("cuLaunchKernelEx", unsafe {
            sys::cuLaunchKernelEx(&config, launch.function.0, parameters.as_mut_ptr(), null_mut())
        })
    }

    /// What is queued from now on is recorded and not run.
    pub(crate) fn begin_record(&self) -> Checked<()> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and captures nothing else.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(self.0, mode) })
    }

    /// What was recorded since [`begin_record`](Self::begin_record), unless queueing it failed.
    pub(crate) fn end_record(&self, queued: Checked<()>) -> Checked<Graph> {
        let mut graph = null_mut();
        // SAFETY: begun before; the pointer is to a local.
        let ended = unsafe { sys::cuStreamEndCapture(self.0, &mut graph) };
        queued?;
        check("cuStreamEndCapture", ended)?;
        let mut exec = null_mut();
        // SAFETY: the graph is whole.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) };
        // SAFETY: destroyed once; the instance does not need it.
        let _ = unsafe { sys::cuGraphDestroy(graph) };
        check("cuGraphInstantiate", made)?;
        Ok(Graph(exec))
    }

    pub(crate) fn replay(&self, graph: &Graph) -> Checked<()> {
        // SAFETY: the graph's memory belongs to the session that owns both.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.0, self.0) })
    }

    /// The milliseconds that `queue` keeps the GPU busy.
    pub(crate) fn time(&self, queue: impl FnOnce() -> Checked<()>) -> Checked<f32> {
        let (begin, end) = (Event::new()?, Event::new()?);
        // SAFETY: events and stream are alive, here and below.
        check("cuEventRecord", unsafe { sys::cuEventRecord(begin.0, self.0) })?;
        queue()?;
        // SAFETY: as above.
        check("cuEventRecord", unsafe { sys::cuEventRecord(end.0, self.0) })?;
        self.wait()?;
        let mut millis = 0.0;
        // SAFETY: both events have happened; the pointer is to a local.
        check("cuEventElapsedTime", unsafe {
            sys::cuEventElapsedTime(&mut millis, begin.0, end.0)
        })?;
        Ok(millis)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.1.enter().is_ok() {
            // SAFETY: made by `stream`, destroyed once, after its work.
            unsafe {
                let _ = sys::cuStreamSynchronize(self.0);
                let _ = sys::cuStreamDestroy_v2(self.0);
            }
        }
    }
}

struct Event(sys::CUevent);

impl Event {
    fn new() -> Checked<Event> {
        let mut event = null_mut();
        // SAFETY: the pointer is to a local.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, 0) })?;
        Ok(Event(event))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        let _ = unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

/// A recorded sequence of kernels.
pub(crate) struct Graph(sys::CUgraphExec);

// SAFETY: used by the session that owns it only.
unsafe impl Send for Graph {}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Graph")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `record`, destroyed once.
        let _ = unsafe { sys::cuGraphExecDestroy(self.0) };
    }
}
