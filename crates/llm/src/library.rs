//! The models folder: models by name.

use std::env;
use std::path::{Path, PathBuf};

use cyb_formats::edit_distance;

use crate::Error;

/// A model of the models folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name: of a file or of a directory.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Bytes of its files together.
    pub bytes: u64,
}

/// The models folder: `$SOMA_MODELS`, else `$XDG_DATA_HOME/soma/models`, else
/// `~/.local/share/soma/models`. `None` when none of the three variables is set.
pub fn default_models_dir() -> Option<PathBuf> {
    let var = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    var("SOMA_MODELS")
        .or_else(|| var("XDG_DATA_HOME").map(|data| data.join("soma/models")))
        .or_else(|| var("HOME").map(|home| home.join(".local/share/soma/models")))
}

/// The path of a model: a path that exists as it is, else a name in the models folder.
pub(crate) fn resolve(name: &str, dir: Option<&Path>) -> Result<PathBuf, Error> {
    let fail =
        |folder: String, hint: String| Err(Error::NoModel { name: name.to_owned(), folder, hint });
    let path = Path::new(name);
    if !name.is_empty() && path.exists() {
        return Ok(path.to_owned());
    }
    let Some(dir) = dir else {
        return fail("no models folder is set; set SOMA_MODELS".to_owned(), String::new());
    };
    // A name is one step down, never a way out of the folder.
    let mut steps = path.components();
    let is_name =
        matches!(steps.next(), Some(std::path::Component::Normal(_))) && steps.next().is_none();
    if is_name && dir.join(name).exists() {
        return Ok(dir.join(name));
    }
    let entries = list(dir).unwrap_or_default();
    let wanted: String = name.to_lowercase().chars().take(64).collect();
    let distance = |entry: &Entry| {
        let there = entry.name.to_lowercase();
        let apart = edit_distance(there.as_bytes(), wanted.as_bytes());
        // A part of a name is as good as one with a few letters wrong; anything else is no hint.
        let part = !wanted.is_empty() && there.contains(&wanted);
        (part || apart <= there.len() / 3).then_some((!part, apart))
    };
    let near = entries.iter().filter_map(|entry| Some((distance(entry)?, entry)));
    let near = near.min_by_key(|(distance, _)| *distance).map(|(_, entry)| entry);
    let hint =
        near.map_or(String::new(), |entry| format!("; the nearest name is {:?}", entry.name));
    fail(format!("the models folder {} has none of that name", dir.display()), hint)
}

/// The models of a folder, by name; an absent folder has none.
pub(crate) fn list(dir: &Path) -> Result<Vec<Entry>, Error> {
    let fail = |problem| Error::Folder { path: dir.to_owned(), problem };
    let read = match std::fs::read_dir(dir) {
        Ok(read) => read,
        Err(problem) if problem.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(problem) => return Err(fail(problem)),
    };
    let mut entries = Vec::new();
    for entry in read {
        let path = entry.map_err(fail)?.path();
        // Hidden entries are somebody's business but no models, such as downloads under way.
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if !name.starts_with('.') {
            let (name, bytes) = (name.to_owned(), size_of(&path, 4));
            entries.push(Entry { name, path, bytes });
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Bytes of a file, or of the files of a directory down to some depth. What cannot be read counts
/// nothing.
fn size_of(path: &Path, depth: usize) -> u64 {
    let Ok(meta) = path.metadata() else { return 0 };
    if !meta.is_dir() {
        return meta.len();
    }
    let Some(depth) = depth.checked_sub(1) else { return 0 };
    let read = std::fs::read_dir(path).into_iter().flatten();
    read.flatten().map(|entry| size_of(&entry.path(), depth)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let models = dir.path().join("models");
        std::fs::create_dir(&models).unwrap();
        std::fs::write(dir.path().join("outside.gguf"), "x").unwrap();
        std::fs::write(models.join("inside.gguf"), "xy").unwrap();
        assert_eq!(resolve("inside.gguf", Some(&models)).unwrap(), models.join("inside.gguf"));
        assert!(resolve("../outside.gguf", Some(&models)).is_err());
        let error = resolve("insid.gguf", Some(&models)).unwrap_err().to_string();
        assert!(error.contains("nearest name is \"inside.gguf\""), "{error}");
        let error = resolve("other", Some(&models)).unwrap_err().to_string();
        assert!(!error.contains("nearest"), "{error}");
        assert!(resolve("", Some(&models)).is_err());
        assert_eq!(list(&models).unwrap()[0].bytes, 2);
        assert_eq!(list(&models.join("absent")).unwrap(), []);
    }
}
