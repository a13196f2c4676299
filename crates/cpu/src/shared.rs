//! Weights in a kernel's layout, shared by all programs of a backend.
//!
//! A graph that is prepared again, such as for other shapes, has the same weights, and packing them
//! once more would cost their memory and their reading again. What is kept here are weak handles: an
//! entry holds neither the source nor the packed form alive, and is good only while both are.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cyb_tensor::{Bytes, DType, Tensor, WeakBytes};

/// Entries from which those that are gone are looked for and dropped.
const SWEEP_FROM: usize = 256;

/// Which weights, and in what form.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    start: usize,
    dtype: DType,
    shape: Vec<usize>,
    form: String,
}

impl Key {
    fn of(tensor: &Tensor, form: &str) -> Key {
        Key {
            start: tensor.bytes().as_slice().as_ptr() as usize,
            dtype: tensor.dtype(),
            shape: tensor.shape().to_vec(),
            form: form.to_owned(),
        }
    }
}

struct Entry {
    source: WeakBytes,
    packed: Weak<dyn Any + Send + Sync>,
}

impl Entry {
    fn is_gone(&self) -> bool {
        self.source.is_gone() || self.packed.strong_count() == 0
    }

    fn get(&self, source: &Bytes) -> Option<Arc<dyn Any + Send + Sync>> {
        if self.source.is(source) { self.packed.upgrade() } else { None }
    }
}

/// The packed weights that some program of a backend holds.
#[derive(Default)]
pub(crate) struct SharedWeights {
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    by_key: HashMap<Key, Entry>,
    sweep_at: usize,
}

impl fmt::Debug for SharedWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedWeights").finish_non_exhaustive()
    }
}

impl SharedWeights {
    /// What a program packed from this tensor in this form, if it still lives.
    pub(crate) fn get<T: Any + Send + Sync>(&self, tensor: &Tensor, form: &str) -> Option<Arc<T>> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let packed = entries.by_key.get(&Key::of(tensor, form))?.get(tensor.bytes())?;
        packed.downcast().ok()
    }

    pub(crate) fn put<T: Any + Send + Sync>(&self, tensor: &Tensor, form: &str, packed: &Arc<T>) {
        let packed: Arc<dyn Any + Send + Sync> = packed.clone();
        let entry = Entry { source: tensor.bytes().downgrade(), packed: Arc::downgrade(&packed) };
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.by_key.len() >= entries.sweep_at.max(SWEEP_FROM) {
            entries.by_key.retain(|_, entry| !entry.is_gone());
            entries.sweep_at = 2 * entries.by_key.len();
        }
        entries.by_key.insert(Key::of(tensor, form), entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::from_f32(vec![values.len()], values).unwrap()
    }

    #[test]
    fn what_is_packed_is_found_while_both_live() {
        let shared = SharedWeights::default();
        let weight = tensor(&[1.0, 2.0]);
        let packed = Arc::new(vec![1u8]);
        shared.put(&weight, "a", &packed);
        let again = weight.clone();
        assert!(shared.get::<Vec<u8>>(&again, "a").is_some_and(|p| Arc::ptr_eq(&p, &packed)));
        assert!(shared.get::<Vec<u8>>(&again, "b").is_none());
        assert!(shared.get::<Vec<u8>>(&tensor(&[1.0, 2.0]), "a").is_none());
        drop(packed);
        assert!(shared.get::<Vec<u8>>(&again, "a").is_none());
    }

    #[test]
    fn memory_that_is_used_again_is_other_bytes() {
        let shared = SharedWeights::default();
        let packed = Arc::new(0u32);
        for i in 0..3 * SWEEP_FROM {
            let weight = tensor(&[i as f32]);
            assert!(shared.get::<u32>(&weight, "a").is_none(), "{i}");
            shared.put(&weight, "a", &packed);
        }
        let entries = shared.entries.lock().unwrap();
        assert!(entries.by_key.len() <= SWEEP_FROM + 1);
    }
}
