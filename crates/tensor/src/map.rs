//! The one place that maps files. A mapping is private and read-only; its length is that of the
//! file when it was opened.

#![allow(unsafe_code, reason = "file mapping is an operating-system contract")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Why a file could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    #[error("cannot open {path}: {source}")]
    Open { path: PathBuf, source: std::io::Error },
    #[error("{path} is empty; fetch it again")]
    Empty { path: PathBuf },
    #[error("{path} is not a regular file")]
    NotAFile { path: PathBuf },
    #[error("cannot map {path}: {source}")]
    Map { path: PathBuf, source: std::io::Error },
    #[error("{path} changed while it was open; load it again once it is completely written")]
    Changed { path: PathBuf },
}

/// A file mapped for reading.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    /// Kept open so that `check_unchanged` asks about the mapped file, not about whatever has its
    /// name by then.
    file: File,
    modified: Option<SystemTime>,
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Maps the whole file.
    pub fn open(path: &Path) -> Result<MappedFile, MapError> {
        let owned = || path.to_owned();
        let fail = |source| MapError::Open { path: owned(), source };
        // Asked before it is opened, because opening a named pipe waits for its other end.
        if !std::fs::metadata(path).map_err(fail)?.is_file() {
            return Err(MapError::NotAFile { path: owned() });
        }
        let file = File::open(path).map_err(fail)?;
        let meta = file.metadata().map_err(fail)?;
        if !meta.is_file() {
            return Err(MapError::NotAFile { path: owned() });
        }
        if meta.len() == 0 {
            return Err(MapError::Empty { path: owned() });
        }
        // SAFETY: the mapping is private and only read. A file that another process truncates
        // while it is mapped raises SIGBUS; the runtime opens model files only, and
        // `check_unchanged` lets a loader notice a file that shrank before it reads.
        let map = unsafe { memmap2::MmapOptions::new().map_copy_read_only(&file) }
            .map_err(|source| MapError::Map { path: owned(), source })?;
        // Not every file system keeps modification times.
        let modified = meta.modified().ok();
        Ok(MappedFile { path: owned(), file, modified, map })
    }

    /// Fails when the file's length or modification time is no longer what it was when it was
    /// mapped. A file that was only renamed or unlinked is unchanged: the mapping keeps it.
    pub fn check_unchanged(&self) -> Result<(), MapError> {
        let path = || self.path.clone();
        let meta =
            self.file.metadata().map_err(|source| MapError::Open { path: path(), source })?;
        if meta.len() != self.map.len() as u64 || meta.modified().ok() != self.modified {
            return Err(MapError::Changed { path: path() });
        }
        Ok(())
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

/// From now on, reading a mapped page that its file no longer has ends the process with exit code 1
/// and one line on stderr. Without this call, such a read kills the process without a word. It is for
/// programs, not for libraries: the signal has one handler. On systems other than Linux it does
/// nothing.
#[cfg(target_os = "linux")]
pub fn end_on_lost_pages() {
    const LINE: &[u8] = b"error: a file in use became shorter, and what it held is gone; \
        fetch or copy it again, and start anew\n";
    extern "C" fn end(_signal: libc::c_int) {
        // SAFETY: a signal handler may write to a descriptor and may end the process; the line is
        // static.
        unsafe {
            libc::write(libc::STDERR_FILENO, LINE.as_ptr().cast(), LINE.len());
            libc::_exit(1);
        }
    }
    // SAFETY: the handler does only what a signal handler may do.
    unsafe { libc::signal(libc::SIGBUS, end as *const () as libc::sighandler_t) };
}

#[cfg(not(target_os = "linux"))]
pub fn end_on_lost_pages() {}
