//! The one place that maps files. A mapping is private and read-only; its length is that of the
//! file when it was opened.

#![allow(unsafe_code, reason = "file mapping is an operating-system contract")]

use std::fs::File;
use std::path::{Path, PathBuf};

/// Why a file could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    #[error("cannot open {path}: {source}")]
    Open { path: PathBuf, source: std::io::Error },
    #[error("{path} is empty")]
    Empty { path: PathBuf },
    #[error("{path} is not a regular file")]
    NotAFile { path: PathBuf },
    #[error("cannot map {path}: {source}")]
    Map { path: PathBuf, source: std::io::Error },
}

/// A file mapped for reading.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Maps the whole file.
    pub fn open(path: &Path) -> Result<MappedFile, MapError> {
        let owned = || path.to_owned();
        let file = File::open(path).map_err(|source| MapError::Open { path: owned(), source })?;
        let meta = file.metadata().map_err(|source| MapError::Open { path: owned(), source })?;
        if !meta.is_file() {
            return Err(MapError::NotAFile { path: owned() });
        }
        if meta.len() == 0 {
            return Err(MapError::Empty { path: owned() });
        }
        // SAFETY: the mapping is private and only read. A file that another process truncates
        // while it is mapped raises SIGBUS; the runtime opens model files only, and `check_len`
        // lets a loader notice a file that shrank before it reads.
        let map = unsafe { memmap2::MmapOptions::new().map_copy_read_only(&file) }
            .map_err(|source| MapError::Map { path: owned(), source })?;
        Ok(MappedFile { path: owned(), map })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Tells the kernel that `range` will not be read again soon, so that its pages stop counting
    /// as resident. Reading it again is allowed and reads the file. Does nothing where the
    /// platform has no such call.
    pub fn release(&self, range: std::ops::Range<usize>) {
        #[cfg(unix)]
        {
            const PAGE: usize = 4096;
            let start = range.start.next_multiple_of(PAGE);
            let end = range.end.min(self.map.len()) / PAGE * PAGE;
            if start < end {
                // SAFETY: the mapping is file-backed, private and never written, so dropped pages
                // are read back from the file unchanged. A failure leaves the pages resident.
                let _ = unsafe {
                    self.map.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        start,
                        end - start,
                    )
                };
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}
