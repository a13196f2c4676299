//! Buffer that kernels on several threads write disjoint parts of.

use memmap2::MmapMut;

/// Zeroed bytes aligned to a page, shared by raw pointer. Pages take memory when they are touched,
/// so a cache that stays half empty costs half.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// Keeps the mapping; accessed through `start` only.
    _map: MmapMut,
    start: *mut u8,
    len: usize,
}

// SAFETY: the bytes are plain memory without thread affinity.
unsafe impl Send for Buffer {}
// SAFETY: shared access goes through raw pointers, whose users keep their ranges disjoint.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `None` when the system has no room for so many.
    pub(crate) fn zeroed(len: usize) -> Option<Buffer> {
        let mut map = MmapMut::map_anon(len.max(1)).ok()?;
        let start = map.as_mut_ptr();
        Some(Buffer { _map: map, start, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len, "offset {offset} is past {}", self.len);
        self.start.wrapping_add(offset)
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping has `len` bytes; no kernel runs while the owner reads.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}
