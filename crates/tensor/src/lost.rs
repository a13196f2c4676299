//! Files that become shorter while they are mapped.

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
