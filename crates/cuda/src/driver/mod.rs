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

mod kernel;
mod memory;
mod queue;

pub(crate) use kernel::{Function, Launch, Module, Parameter};
pub(crate) use memory::{Memory, Pinned};
pub(crate) use queue::{Graph, Stream};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_gpu_says_why() {
        match Gpu::open() {
            Ok(gpu) => assert!(gpu.multiprocessors > 0),
            Err(error) => assert!(!error.to_string().contains('\n')),
        }
    }
}
