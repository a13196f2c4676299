//! Memory for packed weights: a few large mappings in huge pages, handed out front to back.

use std::sync::Arc;

use memmap2::MmapMut;

/// Bytes of a mapping, unless a single request needs more.
const CHUNK: usize = 64 << 20;
/// Alignment of every region: a cache line.
const ALIGN: usize = 64;

/// Hands out regions.
#[derive(Debug, Default)]
pub struct WeightMemory {
    chunk: Option<Arc<Chunk>>,
    used: usize,
}

#[derive(Debug)]
struct Chunk {
    /// Keeps the mapping; accessed through `start` only.
    _map: MmapMut,
    start: *mut u8,
    len: usize,
}

// SAFETY: regions of a chunk do not overlap, and each has one owner.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

/// The system has no memory left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot get {bytes} bytes of memory for weights: {reason}")]
pub struct OutOfMemory {
    bytes: usize,
    reason: String,
}

/// Zeroed memory, owned; alive as long as the region.
#[derive(Debug)]
pub(crate) struct Region {
    chunk: Arc<Chunk>,
    offset: usize,
    len: usize,
}

impl WeightMemory {
    pub fn new() -> WeightMemory {
        WeightMemory::default()
    }

    pub(crate) fn region(&mut self, len: usize) -> Result<Region, OutOfMemory> {
        let fits = self.chunk.as_ref().filter(|c| c.len - self.used >= len);
        let chunk = match fits {
            Some(chunk) => Arc::clone(chunk),
            None => {
                let bytes = len.max(CHUNK);
                let mut map = MmapMut::map_anon(bytes)
                    .map_err(|e| OutOfMemory { bytes, reason: e.to_string() })?;
                // Only advice: without huge pages everything works, more slowly.
                #[cfg(target_os = "linux")]
                let _ = map.advise(memmap2::Advice::HugePage);
                let start = map.as_mut_ptr();
                self.used = 0;
                let chunk = Arc::new(Chunk { _map: map, start, len: bytes });
                self.chunk = Some(Arc::clone(&chunk));
                chunk
            }
        };
        let offset = self.used;
        self.used = chunk.len.min((offset + len).next_multiple_of(ALIGN));
        Ok(Region { chunk, offset, len })
    }
}

impl Region {
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the region is inside the chunk's mapping, and nobody else writes it.
        unsafe { std::slice::from_raw_parts(self.chunk.start.add(self.offset), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.chunk.start.add(self.offset), self.len) }
    }
}
