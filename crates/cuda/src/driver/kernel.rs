//! Modules, their kernels, and what a launch gives them.

use std::ffi::CString;
use std::fmt;
use std::ptr::null_mut;

use cudarc::driver::sys;

use super::{Checked, CudaError, check};

/// A loaded module; it stays loaded as long as the context.
#[derive(Clone, Copy)]
pub(crate) struct Module(pub(super) sys::CUmodule);

// SAFETY: a module may be used from any thread.
unsafe impl Send for Module {}

impl Module {
    pub(crate) fn function(&self, name: &str) -> Checked<Function> {
        let text = CString::new(name)
            .map_err(|e| CudaError::Call { call: "cuModuleGetFunction", why: e.to_string() })?;
        let mut function = null_mut();
        // SAFETY: the module is loaded, the name zero-terminated.
        check("cuModuleGetFunction", unsafe {
            sys::cuModuleGetFunction(&mut function, self.0, text.as_ptr())
        })?;
        Ok(Function(function))
    }
}

/// A kernel of a loaded module.
#[derive(Clone, Copy)]
pub(crate) struct Function(pub(super) sys::CUfunction);

// SAFETY: as for modules.
unsafe impl Send for Function {}
// SAFETY: as for modules.
unsafe impl Sync for Function {}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Function")
    }
}

impl Function {
    /// Lets launches have at least up to `bytes` of dynamic shared memory.
    pub(crate) fn allow_shared(&self, bytes: usize) -> Checked<()> {
        let attribute =
            sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let mut now = 0;
        // SAFETY: the function is loaded; the pointer is to a local.
        check("cuFuncGetAttribute", unsafe {
            sys::cuFuncGetAttribute(&mut now, attribute, self.0)
        })?;
        if usize::try_from(now).is_ok_and(|now| now >= bytes) {
            return Ok(());
        }
        // SAFETY: the function is loaded.
        check("cuFuncSetAttribute", unsafe {
            sys::cuFuncSetAttribute(self.0, attribute, bytes as i32)
        })
    }

    /// Blocks of `threads` threads and `shared` bytes that a multiprocessor holds at once.
    pub(crate) fn resident(&self, threads: u32, shared: usize) -> Checked<usize> {
        let mut blocks = 0;
        // SAFETY: the function is loaded; the pointer is to a local.
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", unsafe {
            let threads = threads as i32;
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, self.0, threads, shared)
        })?;
        Ok(usize::try_from(blocks).unwrap_or(1).max(1))
    }
}

/// A kernel with its grid and parameters.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) function: Function,
    pub(crate) grid: (u32, u32, u32),
    pub(crate) block: u32,
    /// Neighbouring blocks that run together and see each other's shared memory.
    pub(crate) cluster: u32,
    /// Bytes of dynamic shared memory.
    pub(crate) shared: u32,
    pub(crate) parameters: Vec<Parameter>,
}

/// A parameter's bytes, laid out as C does: each field at a multiple of its size.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parameter(pub(super) Vec<u64>, usize);

impl Parameter {
    pub(crate) fn new() -> Parameter {
        Parameter::default()
    }

    pub(crate) fn address(value: u64) -> Parameter {
        Parameter::new().u64(value)
    }

    pub(crate) fn int(value: usize) -> Parameter {
        Parameter::new().i32(value)
    }

    pub(crate) fn long(value: usize) -> Parameter {
        Parameter::new().u64(value as u64)
    }

    pub(crate) fn u64(mut self, value: u64) -> Parameter {
        self.1 = self.1.next_multiple_of(8) + 8;
        self.0.push(value);
        self
    }

    /// An `int`; sizes of this crate's tensors are checked to fit.
    pub(crate) fn i32(self, value: usize) -> Parameter {
        self.word(value as u32)
    }

    pub(crate) fn f32(self, value: f32) -> Parameter {
        self.word(value.to_bits())
    }

    pub(crate) fn word(mut self, value: u32) -> Parameter {
        match self.0.last_mut() {
            Some(last) if self.1 % 8 == 4 => *last |= u64::from(value) << 32,
            _ => self.0.push(u64::from(value)),
        }
        self.1 += 4;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_lie_as_in_c() {
        // struct { int a; int b; void *p; float f; void *q; }
        let p = Parameter::new().i32(1).i32(2).u64(7).f32(1.0).u64(9);
        let one = u64::from(1f32.to_bits());
        assert_eq!(p.0, [1 | 2 << 32, 7, one, 9]);
    }
}
