//! Memory of the GPU, and of the machine where the GPU reaches it.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys;

use super::{Checked, Gpu, check};

/// Memory of a GPU.
pub(crate) struct Memory {
    pub(super) gpu: Arc<Gpu>,
    pub(super) start: sys::CUdeviceptr,
    pub(super) bytes: usize,
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
    pub(super) gpu: Arc<Gpu>,
    pub(super) start: *mut u8,
    pub(super) bytes: usize,
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
