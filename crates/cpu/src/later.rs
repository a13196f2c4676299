//! Weights that are packed after their first use.
//!
//! A packed copy is memory as large as the file, which the system clears first, and which on a virtual
//! machine may have to come from the host: three quarters of a cold start. So products of a first run
//! make each tile in the cache, use it and drop it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::io::RawTensor;
use crate::matmul::PackedMatrix;
use crate::team::{Team, TeamError};

/// The weights of a program that are packed when they are needed a second time, or for many rows at
/// once.
#[derive(Debug, Default)]
pub(crate) struct LaterWeights {
    /// Each with the value that it is multiplied with.
    matrices: Vec<(Arc<PackedMatrix>, usize)>,
    used: AtomicBool,
    packed: AtomicBool,
}

impl LaterWeights {
    /// Rows of a first run from which products take so long that packing before them adds little.
    const ROWS: usize = 64;

    pub(crate) fn new(matrices: Vec<(Arc<PackedMatrix>, usize)>) -> LaterWeights {
        LaterWeights { matrices, ..LaterWeights::default() }
    }

    /// Whether all are packed, so that there is nothing to do before a run.
    pub(crate) fn is_packed(&self) -> bool {
        self.packed.load(Ordering::Acquire)
    }

    /// Packs what a run with these values needs packed.
    ///
    /// # Errors
    /// A worker panicked.
    pub(crate) fn before(&self, team: &Team, values: &[RawTensor]) -> Result<(), TeamError> {
        let rows = |&(_, x): &(_, usize)| -> usize {
            values[x].dims[..values[x].rank.saturating_sub(1)].iter().product()
        };
        let few = self.matrices.iter().all(|m| rows(m) <= LaterWeights::ROWS);
        if !self.used.swap(true, Ordering::AcqRel) && few {
            return Ok(());
        }
        for (matrix, _) in &self.matrices {
            matrix.finish(team)?;
        }
        self.packed.store(true, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use cyb_exec::{PlanMode, Session};
    use cyb_tensor::{AlignedBytes, Bytes, DType, MappedFile, Tensor};

    use super::*;
    use crate::CpuBackend;
    use crate::program::{Prepared, prepare};
    use crate::session::CpuSession;

    const N: usize = 40;
    const K: usize = 96;

    fn weights() -> Vec<u8> {
        let values: Vec<f32> = (0..N * K).map(|i| ((i * 7919) % 257) as f32 - 128.0).collect();
        let mut bytes = Vec::new();
        cyb_tensor::quant::encode(DType::Q4_0, &values, &mut bytes).unwrap();
        bytes
    }

    fn mapped() -> Bytes {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        // Weights are rarely the first in a file.
        file.write_all(&[7; 32]).unwrap();
        file.write_all(&weights()).unwrap();
        let mapped = Arc::new(MappedFile::open(file.path()).unwrap());
        Bytes::mapped(mapped, 32, weights().len()).unwrap()
    }

    /// A program that multiplies `rows` rows with the weights.
    fn program(rows: usize, weights: Bytes) -> Arc<Prepared> {
        let mut b = cyb_ir::Builder::new();
        let x = b.input("x", cyb_ir::Fact::new(DType::F32, [rows, K].map(Into::into)));
        let w = b.weight("w", Tensor::new(DType::Q4_0, vec![N, K], weights).unwrap());
        let y = b.jet(&cyb_jets::LINEAR, cyb_ir::Attrs::new(), &[x, w]).unwrap();
        b.output("y", y);
        let backend = CpuBackend::new(Arc::new(Team::new(2).unwrap()));
        Arc::new(prepare(&backend, b.finish(), PlanMode::Reuse).unwrap())
    }

    fn run(session: &mut CpuSession) -> Vec<u8> {
        for (i, x) in session.input(0).chunks_exact_mut(4).enumerate() {
            x.copy_from_slice(&(i as f32).sin().to_le_bytes());
        }
        session.run().unwrap();
        session.output(0).unwrap().to_vec()
    }

    #[test]
    fn the_second_run_packs_and_gives_the_same_bits() {
        for rows in [1, 2, 3, 20, LaterWeights::ROWS, LaterWeights::ROWS + 1] {
            let owned = Bytes::owned(AlignedBytes::from_slice(&weights()));
            let at_once = program(rows, owned);
            assert!(at_once.later.matrices.is_empty());
            let want = run(&mut CpuSession::new(at_once, &[]).unwrap());

            let program = program(rows, mapped());
            let is_made = || program.later.matrices.iter().all(|(m, _)| m.is_made());
            assert!(!is_made());
            let mut session = CpuSession::new(program.clone(), &[]).unwrap();
            assert_eq!(run(&mut session), want, "{rows} rows, first");
            assert_eq!(is_made(), rows > LaterWeights::ROWS, "{rows} rows");
            assert_eq!(run(&mut session), want, "{rows} rows, second");
            assert!(is_made());
            let packing = session.loading();
            run(&mut session);
            assert!(packing > Duration::ZERO && packing == session.loading());
        }
    }
}
