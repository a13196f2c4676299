//! Buffer that kernels on several threads write disjoint parts of.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Zeroed bytes aligned to two cache lines, shared by raw pointer.
#[derive(Debug)]
pub(crate) struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: the bytes are plain memory without thread affinity.
unsafe impl Send for Buffer {}
// SAFETY: shared access goes through raw pointers, whose users keep their ranges disjoint.
unsafe impl Sync for Buffer {}

impl Buffer {
    const ALIGN: usize = 128;

    /// `None` when the size cannot be expressed.
    pub(crate) fn zeroed(len: usize) -> Option<Buffer> {
        let layout = Layout::from_size_align(len.max(1), Buffer::ALIGN).ok()?;
        // SAFETY: the layout has a size above 0.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Some(Buffer { start, layout, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len, "offset {offset} is past {}", self.len);
        self.start.as_ptr().wrapping_add(offset)
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes are allocated and initialised; no kernel runs while the owner reads.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
