//! Files that appear whole or not at all: written beside their place, then renamed into it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::error::FormatError;

/// Writes `path` through `body`. On any failure the partial file is removed and what was at `path`
/// stays.
pub(crate) fn write_file(
    path: &Path,
    body: impl FnOnce(&mut BufWriter<&mut File>) -> std::io::Result<()>,
) -> Result<(), FormatError> {
    write_io(path, body).map_err(|problem| FormatError::Write { path: path.to_owned(), problem })
}

fn write_io(
    path: &Path,
    body: impl FnOnce(&mut BufWriter<&mut File>) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".part-").suffix(".tmp");
    #[cfg(unix)]
    {
        // The default of the library is private to the user; the umask decides here, as for any
        // other new file.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut temp = builder.tempfile_in(dir)?;
    let mut out = BufWriter::with_capacity(1 << 20, temp.as_file_mut());
    body(&mut out)?;
    out.flush()?;
    drop(out);
    temp.as_file().sync_all()?;
    temp.persist(path).map_err(|e| e.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_nothing_and_keeps_the_old() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        write_file(&path, |w| w.write_all(b"old")).unwrap();
        let err = write_file(&path, |w| {
            w.write_all(b"half")?;
            Err(std::io::Error::other("disk on fire"))
        })
        .unwrap_err();
        assert_eq!(err.to_string(), format!("cannot write {}: disk on fire", path.display()));
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        write_file(&path, |w| w.write_all(b"new")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }
}
