//! The driver: devices, memory, modules, launches and graphs, each owned and checked.
//!
//! The driver's library is loaded when it is first asked for, so that the program starts on machines
//! without one. Every call names itself in its error. A context is current on the calling thread
//! only; whoever owns a [`Gpu`] enters it before it calls.

use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys;
use cyb_exec::ExecError;

/// The oldest driver whose calls are all known: CUDA 12.4.
const OLDEST_DRIVER: i32 = 12040;
/// The oldest GPUs that the kernels are compiled for: Ampere.
const OLDEST_CAPABILITY: (i32, i32) = (8, 0);

/// Why CUDA cannot be used, or a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    #[error("this machine has no NVIDIA driver (libcuda cannot be loaded)")]
    NoDriver,
    #[error("the NVIDIA driver is for CUDA {}.{}; 12.4 or newer is needed", .0 / 1000, .0 % 1000 / 10)]
    OldDriver(i32),
    #[error("the NVIDIA driver finds no GPU")]
    NoDevice,
    #[error("{name} has compute capability {}.{}; 8.0 or newer is needed", capability.0, capability.1)]
    OldDevice { name: String, capability: (i32, i32) },
    #[error("{bytes} bytes of GPU memory cannot be had")]
    Memory { bytes: usize },
    #[error(
        "the GPU failed ({call}: {why}) and computes nothing more for this process; start again, with \
         --backend cpu if it goes on failing"
    )]
    Lost { call: &'static str, why: String },
    #[error("{call}: {why}")]
    Call { call: &'static str, why: String },
}

impl From<CudaError> for ExecError {
    fn from(error: CudaError) -> ExecError {
        match error {
            CudaError::Memory { bytes } => ExecError::Step {
                step: "the GPU's memory is full".into(),
                why: format!(
                    "{bytes} bytes more cannot be had; ask for a smaller --context, or put fewer \
                     layers there (--gpu-layers)"
                ),
            },
            other => ExecError::Step { step: "cuda".into(), why: other.to_string() },
        }
    }
}

type Checked<T> = Result<T, CudaError>;

fn check(call: &'static str, code: sys::CUresult) -> Checked<()> {
    if code == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: the driver gives a string that lives for ever, or leaves the null pointer.
    let known = unsafe { sys::cuGetErrorString(code, &mut text) };
    let why = if known == sys::CUresult::CUDA_SUCCESS && !text.is_null() {
        // SAFETY: as above, ending in a zero.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    } else {
        format!("error {code:?}")
    };
    match is_lost(code) {
        true => Err(CudaError::Lost { call, why }),
        false => Err(CudaError::Call { call, why }),
    }
}

/// Whether all further calls of this process fail too: the GPU is gone, or its context is.
fn is_lost(code: sys::CUresult) -> bool {
    use sys::CUresult as C;
    matches!(
        code,
        C::CUDA_ERROR_DEVICE_UNAVAILABLE
            | C::CUDA_ERROR_ECC_UNCORRECTABLE
            | C::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | C::CUDA_ERROR_ILLEGAL_ADDRESS
            | C::CUDA_ERROR_LAUNCH_TIMEOUT
            | C::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | C::CUDA_ERROR_ASSERT
            | C::CUDA_ERROR_HARDWARE_STACK_ERROR
            | C::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | C::CUDA_ERROR_MISALIGNED_ADDRESS
            | C::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | C::CUDA_ERROR_INVALID_PC
            | C::CUDA_ERROR_LAUNCH_FAILED
            | C::CUDA_ERROR_UNKNOWN
    )
}

/// A GPU with its context.
pub(crate) struct Gpu {
    device: sys::CUdevice,
    context: sys::CUcontext,
    pub(crate) name: String,
    pub(crate) capability: (i32, i32),
    pub(crate) multiprocessors: usize,
    /// Bytes of shared memory that a block may ask for.
    pub(crate) block_shared: usize,
    pub(crate) memory: usize,
}

// SAFETY: a context may be current on several threads, and the driver's calls are thread-safe.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({})", self.name)
    }
}

impl Gpu {
    /// The first GPU of this machine.
    pub(crate) fn open() -> Checked<Arc<Gpu>> {
        // SAFETY: loads a library by name; its initialisers are the driver's own.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        let (mut version, mut count) = (0, 0);
        // SAFETY: the pointers are to locals that outlive the calls, here and below.
        check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
        if version < OLDEST_DRIVER {
            return Err(CudaError::OldDriver(version));
        }
        // SAFETY: takes no pointer.
        let begun = unsafe { sys::cuInit(0) };
        if begun == sys::CUresult::CUDA_ERROR_NO_DEVICE {
            return Err(CudaError::NoDevice);
        }
        check("cuInit", begun)?;
        // SAFETY: as for the version.
        check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
        if count == 0 {
            return Err(CudaError::NoDevice);
        }
        let device = 0;
        let mut name = [0; 256];
        // SAFETY: the driver writes at most the given length, zero included.
        check("cuDeviceGetName", unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), 256, device) })?;
        // SAFETY: written above, zero-terminated.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: as for the version.
            let code = unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) };
            check("cuDeviceGetAttribute", code).map(|()| value)
        };
        use sys::CUdevice_attribute as A;
        let capability = (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        if capability < OLDEST_CAPABILITY {
            return Err(CudaError::OldDevice { name, capability });
        }
        let multiprocessors = attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let block_shared = attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let mut context = null_mut();
        // SAFETY: as for the version.
        check("cuDevicePrimaryCtxRetain", unsafe {
            sys::cuDevicePrimaryCtxRetain(&mut context, device)
        })?;
        let mut memory = 0;
        // SAFETY: as for the version.
        check("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut memory, device) })?;
        let multiprocessors = usize::try_from(multiprocessors).unwrap_or(1).max(1);
        // Kernels have up to 4 KiB of their own besides what a launch asks for.
        let block_shared = usize::try_from(block_shared).unwrap_or(0).saturating_sub(4 << 10);
        Ok(Arc::new(Gpu {
            device,
            context,
            name,
            capability,
            multiprocessors,
            block_shared,
            memory,
        }))
    }

    /// Bytes of its memory that nobody holds.
    pub(crate) fn free_memory(&self) -> Checked<usize> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to locals.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(free)
    }

    /// Makes this GPU the one that the calling thread's calls go to.
    pub(crate) fn enter(&self) -> Checked<()> {
        // SAFETY: the context lives as long as `self`.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    pub(crate) fn allocate(self: &Arc<Gpu>, bytes: usize) -> Checked<Memory> {
        self.enter()?;
        let mut start = 0;
        // SAFETY: the pointer is to a local. An empty buffer is given a little, so that it has an
        // address.
        let code = unsafe { sys::cuMemAlloc_v2(&mut start, bytes.max(256)) };
        if code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(CudaError::Memory { bytes });
        }
        check("cuMemAlloc", code)?;
        Ok(Memory { gpu: self.clone(), start, bytes })
    }

    /// Memory filled with zeros.
    pub(crate) fn zeroed(self: &Arc<Gpu>, bytes: usize, stream: &Stream) -> Checked<Memory> {
        let memory = self.allocate(bytes)?;
        // SAFETY: inside the allocation.
        check("cuMemsetD8Async", unsafe {
            sys::cuMemsetD8Async(memory.start, 0, bytes.max(1), stream.0)
        })?;
        Ok(memory)
    }

    /// Memory with a copy of `bytes`.
    pub(crate) fn upload(self: &Arc<Gpu>, bytes: &[u8]) -> Checked<Memory> {
        let memory = self.allocate(bytes.len())?;
        memory.fill(0, bytes)?;
        Ok(memory)
    }

    pub(crate) fn pinned(self: &Arc<Gpu>, bytes: usize) -> Checked<Pinned> {
        self.enter()?;
        let mut start = null_mut();
        // SAFETY: the pointer is to a local.
        let code = unsafe { sys::cuMemHostAlloc(&mut start, bytes.max(1), 0) };
        check("cuMemHostAlloc", code)?;
        // SAFETY: just allocated, of this size; no GPU work knows it yet.
        unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        Ok(Pinned { gpu: self.clone(), start: start.cast(), bytes })
    }

    pub(crate) fn stream(self: &Arc<Gpu>) -> Checked<Stream> {
        self.enter()?;
        let mut stream = null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the pointer is to a local.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        Ok(Stream(stream, self.clone()))
    }

    /// Compiles a module's PTX for this GPU.
    pub(crate) fn module(&self, ptx: Vec<u8>) -> Checked<Module> {
        self.enter()?;
        let text = CString::new(ptx)
            .map_err(|e| CudaError::Call { call: "cuModuleLoadData", why: e.to_string() })?;
        let mut module = null_mut();
        // SAFETY: the image is zero-terminated text that outlives the call.
        check("cuModuleLoadData", unsafe {
            let image = text.as_ptr().cast::<c_void>();
            sys::cuModuleLoadDataEx(&mut module, image, 0, null_mut(), null_mut())
        })?;
        Ok(Module(module))
    }

    /// Whether it has the instructions of compute capability 9.0a.
    pub(crate) fn is_hopper(&self) -> bool {
        self.capability == (9, 0)
    }

    pub(crate) fn device_line(&self) -> String {
        let (major, minor) = self.capability;
        let gib = self.memory as f64 / f64::from(1 << 30);
        format!("{}, compute {major}.{minor}, {gib:.0} GiB", self.name)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: retained by `open` and released once; everything that used it held the `Arc`.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// Memory of a GPU.
pub(crate) struct Memory {
    gpu: Arc<Gpu>,
    start: sys::CUdeviceptr,
    bytes: usize,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({})", self.bytes)
    }
}

impl Memory {
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// The address of byte `offset`.
    pub(crate) fn at(&self, offset: usize) -> u64 {
        self.start + offset as u64
    }

    /// Copies `bytes` to `offset` and waits.
    pub(crate) fn fill(&self, offset: usize, bytes: &[u8]) -> Checked<()> {
        let fits = offset.checked_add(bytes.len()).is_some_and(|end| end <= self.bytes);
        assert!(fits, "{} bytes at {offset} do not fit {}", bytes.len(), self.bytes);
        if bytes.is_empty() {
            return Ok(());
        }
        self.gpu.enter()?;
        // SAFETY: the range is inside the allocation; the source lives through the call.
        check("cuMemcpyHtoD", unsafe {
            sys::cuMemcpyHtoD_v2(self.at(offset), bytes.as_ptr().cast(), bytes.len())
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: allocated by `allocate`, freed once; the driver waits for work in flight.
            let _ = unsafe { sys::cuMemFree_v2(self.start) };
        }
    }
}

/// Memory of the machine that the GPU copies from and to.
pub(crate) struct Pinned {
    gpu: Arc<Gpu>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({})", self.bytes)
    }
}

impl Pinned {
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Where kernels find it: addresses are the same for machine and GPU.
    pub(crate) fn address(&self) -> u64 {
        self.start as u64
    }

    /// The stream that copies from or to it must have been waited for.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: allocated with this size and initialised; borrowed through `self`.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: allocated by `pinned`, freed once.
            let _ = unsafe { sys::cuMemFreeHost(self.start.cast()) };
        }
    }
}

/// A queue of work.
pub(crate) struct Stream(sys::CUstream, Arc<Gpu>);

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

/// A loaded module; it stays loaded as long as the context.
#[derive(Clone, Copy)]
pub(crate) struct Module(sys::CUmodule);

// SAFETY: a module may be used from any thread.
unsafe impl Send for Module {}

impl Module {
    pub(crate) fn function(&self, name: &str) -> Checked<Function> {
        let text = CString::new(name)
            .map_err(|e| CudaError::Call { call: "cuModuleGetFunction", why: e.to_string() })?;
        let mut function = null_mut();
        // SAFETY: the module is loaded, the name zero-terminated.
        check("cuModuleGetFunction", unsafe {
            sys::cuModuleGetFunction(&mut function, self.0, text.as_ptr())
        })?;
        Ok(Function(function))
    }
}

/// A kernel of a loaded module.
#[derive(Clone, Copy)]
pub(crate) struct Function(sys::CUfunction);

// SAFETY: as for modules.
unsafe impl Send for Function {}
// SAFETY: as for modules.
unsafe impl Sync for Function {}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Function")
    }
}

impl Function {
    /// Lets launches have at least up to `bytes` of dynamic shared memory.
    pub(crate) fn allow_shared(&self, bytes: usize) -> Checked<()> {
        let attribute =
            sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let mut now = 0;
        // SAFETY: the function is loaded; the pointer is to a local.
        check("cuFuncGetAttribute", unsafe {
            sys::cuFuncGetAttribute(&mut now, attribute, self.0)
        })?;
        if usize::try_from(now).is_ok_and(|now| now >= bytes) {
            return Ok(());
        }
        // SAFETY: the function is loaded.
        check("cuFuncSetAttribute", unsafe {
            sys::cuFuncSetAttribute(self.0, attribute, bytes as i32)
        })
    }

    /// Blocks of `threads` threads and `shared` bytes that a multiprocessor holds at once.
    pub(crate) fn resident(&self, threads: u32, shared: usize) -> Checked<usize> {
        let mut blocks = 0;
        // SAFETY: the function is loaded; the pointer is to a local.
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", unsafe {
            let threads = threads as i32;
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, self.0, threads, shared)
        })?;
        Ok(usize::try_from(blocks).unwrap_or(1).max(1))
    }
}

/// A kernel with its grid and parameters.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) function: Function,
    pub(crate) grid: (u32, u32, u32),
    pub(crate) block: u32,
    /// Neighbouring blocks that run together and see each other's shared memory.
    pub(crate) cluster: u32,
    /// Bytes of dynamic shared memory.
    pub(crate) shared: u32,
    pub(crate) parameters: Vec<Parameter>,
}

/// A parameter's bytes, laid out as C does: each field at a multiple of its size.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parameter(Vec<u64>, usize);

impl Parameter {
    pub(crate) fn new() -> Parameter {
        Parameter::default()
    }

    pub(crate) fn address(value: u64) -> Parameter {
        Parameter::new().u64(value)
    }

    pub(crate) fn int(value: usize) -> Parameter {
        Parameter::new().i32(value)
    }

    pub(crate) fn long(value: usize) -> Parameter {
        Parameter::new().u64(value as u64)
    }

    pub(crate) fn u64(mut self, value: u64) -> Parameter {
        self.1 = self.1.next_multiple_of(8) + 8;
        self.0.push(value);
        self
    }

    /// An `int`; sizes of this crate's tensors are checked to fit.
    pub(crate) fn i32(self, value: usize) -> Parameter {
        self.word(value as u32)
    }

    pub(crate) fn f32(self, value: f32) -> Parameter {
        self.word(value.to_bits())
    }

    pub(crate) fn word(mut self, value: u32) -> Parameter {
        match self.0.last_mut() {
            Some(last) if self.1 % 8 == 4 => *last |= u64::from(value) << 32,
            _ => self.0.push(u64::from(value)),
        }
        self.1 += 4;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_lie_as_in_c() {
        // struct { int a; int b; void *p; float f; void *q; }
        let p = Parameter::new().i32(1).i32(2).u64(7).f32(1.0).u64(9);
        let one = u64::from(1f32.to_bits());
        assert_eq!(p.0, [1 | 2 << 32, 7, one, 9]);
    }

    #[test]
    fn a_machine_without_a_gpu_says_why() {
        match Gpu::open() {
            Ok(gpu) => assert!(gpu.multiprocessors > 0),
            Err(error) => assert!(!error.to_string().contains('\n')),
        }
    }
}
