//! Ctrl-C.

use std::sync::{Arc, OnceLock};

use cyb_llm::Cancel;

use crate::failure::WORK_CODE;

static CANCEL: OnceLock<Arc<Cancel>> = OnceLock::new();

/// What an interrupt sets. From the first call on, an interrupt no longer ends the process at once;
/// a second one while the first is being obeyed does.
pub(crate) fn cancel() -> Arc<Cancel> {
    let install = || {
        let cancel = Arc::new(Cancel::new());
        let seen = Arc::clone(&cancel);
        // Where no handler can be had, an interrupt ends the process, as without this call.
        let _ = ctrlc::set_handler(move || {
            if seen.is_set() {
                std::process::exit(WORK_CODE.into());
            }
            seen.set();
        });
        cancel
    };
    Arc::clone(CANCEL.get_or_init(install))
}
