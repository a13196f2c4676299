//! A driver library without a GPU: memory is the machine's, kernels do nothing. Environment variables
//! say what it claims to be and which call fails:
//!
//! - `FAKE_CUDA_VERSION` (12040), `FAKE_CUDA_DEVICES` (1), `FAKE_CUDA_CAPABILITY` (80)
//! - `FAKE_CUDA_MEMORY`: bytes of the GPU (1 << 30)
//! - `FAKE_CUDA_FAIL`: `call:code:n`, the call fails with that code from its n-th time on
//!
//! Tests compile it alone and put it where the loader looks.

#![allow(non_snake_case, reason = "the driver's names")]
#![allow(unused_unsafe, reason = "some of the calls touch no memory")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::Mutex;

type Code = c_int;

const OUT_OF_MEMORY: Code = 2;
const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
const COMPUTE_CAPABILITY_MINOR: c_int = 76;
const MULTIPROCESSORS: c_int = 16;

/// Sizes of allocations by address, and how often each call came.
static MEMORY: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
static CALLS: Mutex<Option<HashMap<String, u32>>> = Mutex::new(None);

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What a call answers: 0, unless it is the one that fails.
fn answer(call: &str) -> Code {
    let Ok(fail) = std::env::var("FAKE_CUDA_FAIL") else { return 0 };
    let mut parts = fail.split(':');
    if parts.next() != Some(call) {
        return 0;
    }
    let mut next = || parts.next().and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
    let (code, from) = (next(), next());
    let mut calls = CALLS.lock().unwrap();
    let count = calls.get_or_insert_default().entry(call.to_owned()).or_default();
    *count += 1;
    if *count >= from { code as Code } else { 0 }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 4096).unwrap()
}

fn take(bytes: usize) -> usize {
    // SAFETY: callers ask for at least a byte.
    let start = unsafe { alloc_zeroed(layout(bytes)) } as usize;
    MEMORY.lock().unwrap().push((start, bytes));
    start
}

fn give(start: usize) {
    let mut memory = MEMORY.lock().unwrap();
    if let Some(at) = memory.iter().position(|&(s, _)| s == start) {
        let (start, bytes) = memory.swap_remove(at);
        // SAFETY: from `take`, with this size, given once.
        unsafe { dealloc(start as *mut u8, layout(bytes)) };
    }
}

fn free_bytes() -> usize {
    let held: usize = MEMORY.lock().unwrap().iter().map(|&(_, bytes)| bytes).sum();
    number("FAKE_CUDA_MEMORY", 1 << 30).saturating_sub(held)
}

macro_rules! calls {
    ($($name:ident($($arg:ident: $type:ty),*) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> Code {
                match answer(stringify!($name)) {
                    // SAFETY: callers keep the driver's contract, which these calls have too.
                    0 => unsafe { $body },
                    code => code,
                }
            }
        )*
    };
}

calls! {
    cuDriverGetVersion(out: *mut c_int) {
        *out = number("FAKE_CUDA_VERSION", 12040) as c_int;
        0
    }
    cuInit(_flags: c_uint) { 0 }
    cuDeviceGetCount(out: *mut c_int) {
        *out = number("FAKE_CUDA_DEVICES", 1) as c_int;
        0
    }
    cuDeviceGetName(out: *mut c_char, _size: c_int, _device: c_int) {
        let name = b"fake GPU\0";
        std::ptr::copy_nonoverlapping(name.as_ptr(), out.cast(), name.len());
        0
    }
    cuDeviceGetAttribute(out: *mut c_int, which: c_int, _device: c_int) {
        let capability = number("FAKE_CUDA_CAPABILITY", 80) as c_int;
        *out = match which {
            COMPUTE_CAPABILITY_MAJOR => capability / 10,
            COMPUTE_CAPABILITY_MINOR => capability % 10,
            MULTIPROCESSORS => 8,
            _ => 1 << 17,
        };
        0
    }
    cuDevicePrimaryCtxRetain(out: *mut usize, _device: c_int) { *out = 1; 0 }
    cuDevicePrimaryCtxRelease_v2(_device: c_int) { 0 }
    cuDeviceTotalMem_v2(out: *mut usize, _device: c_int) {
        *out = number("FAKE_CUDA_MEMORY", 1 << 30);
        0
    }
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        *free = free_bytes();
        *total = number("FAKE_CUDA_MEMORY", 1 << 30);
        0
    }
    cuCtxSetCurrent(_context: usize) { 0 }
    cuMemAlloc_v2(out: *mut usize, bytes: usize) {
        if bytes > free_bytes() {
            OUT_OF_MEMORY
        } else {
            *out = take(bytes);
            0
        }
    }
    cuMemFree_v2(start: usize) { give(start); 0 }
    cuMemHostAlloc(out: *mut usize, bytes: usize, _flags: c_uint) {
        *out = alloc_zeroed(layout(bytes)) as usize;
        0
    }
    cuMemFreeHost(_start: usize) { 0 }
    cuMemsetD8Async(start: usize, value: u8, bytes: usize, _stream: usize) {
        std::ptr::write_bytes(start as *mut u8, value, bytes);
        0
    }
    cuMemcpyHtoD_v2(to: usize, from: *const u8, bytes: usize) {
        std::ptr::copy(from, to as *mut u8, bytes);
        0
    }
    cuMemcpyHtoDAsync_v2(to: usize, from: *const u8, bytes: usize, _stream: usize) {
        std::ptr::copy(from, to as *mut u8, bytes);
        0
    }
    cuMemcpyDtoHAsync_v2(to: *mut u8, from: usize, bytes: usize, _stream: usize) {
        std::ptr::copy(from as *const u8, to, bytes);
        0
    }
    cuMemcpyDtoDAsync_v2(to: usize, from: usize, bytes: usize, _stream: usize) {
        std::ptr::copy(from as *const u8, to as *mut u8, bytes);
        0
    }
    cuStreamCreate(out: *mut usize, _flags: c_uint) { *out = 1; 0 }
    cuStreamDestroy_v2(_stream: usize) { 0 }
    cuStreamSynchronize(_stream: usize) { 0 }
    cuStreamBeginCapture_v2(_stream: usize, _mode: c_uint) { 0 }
    cuStreamEndCapture(_stream: usize, out: *mut usize) { *out = 1; 0 }
    cuGraphInstantiateWithFlags(out: *mut usize, _graph: usize, _flags: u64) { *out = 1; 0 }
    cuGraphDestroy(_graph: usize) { 0 }
    cuGraphLaunch(_graph: usize, _stream: usize) { 0 }
    cuGraphExecDestroy(_graph: usize) { 0 }
    cuLaunchKernelEx(_config: usize, _function: usize, _args: usize, _extra: usize) { 0 }
    cuModuleLoadDataEx(
        out: *mut usize, _image: usize, _n: c_uint, _options: usize, _values: usize
    ) { *out = 1; 0 }
    cuModuleGetFunction(out: *mut usize, _module: usize, _name: usize) { *out = 1; 0 }
    cuFuncGetAttribute(out: *mut c_int, _which: c_int, _function: usize) { *out = 0; 0 }
    cuFuncSetAttribute(_function: usize, _which: c_int, _value: c_int) { 0 }
    cuOccupancyMaxActiveBlocksPerMultiprocessor(
        out: *mut c_int, _function: usize, _threads: c_int, _shared: usize
    ) { *out = 2; 0 }
    cuEventCreate(out: *mut usize, _flags: c_uint) { *out = 1; 0 }
    cuEventDestroy_v2(_event: usize) { 0 }
    cuEventRecord(_event: usize, _stream: usize) { 0 }
    cuEventElapsedTime(out: *mut f32, _begin: usize, _end: usize) { *out = 1.0; 0 }
}

/// Static texts for the codes that tests use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: Code, out: *mut *const c_char) -> Code {
    let text: &'static CStr = match code {
        OUT_OF_MEMORY => c"out of memory",
        719 => c"unspecified launch failure",
        _ => c"some error",
    };
    // SAFETY: callers give the address of a pointer.
    unsafe { *out = text.as_ptr() };
    0
}
