//! Stopping work from another thread.

use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that every step of a model looks at. Work that finds it set ends with
/// [`crate::Error::Interrupted`].
#[derive(Debug, Default)]
pub struct Cancel(AtomicBool);

impl Cancel {
    /// Not set.
    pub const fn new() -> Cancel {
        Cancel(AtomicBool::new(false))
    }

    /// Asks for the end.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Takes the wish back, so that new work can start.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether the end was asked for.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
