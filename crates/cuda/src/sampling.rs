//! What choosing tokens needs of an output: the largest element of rows, their first elements in
//! order, sums of exponentials. Whoever asks after a run is expected to ask after the next one too,
//! and is answered behind its steps without a wait in between.

use std::sync::Arc;

use cyb_exec::{TOP, Top};

use crate::driver::{CudaError, Function, Gpu, Launch, Memory, Parameter, Pinned, Stream};
use crate::op::{Device, Operand};

/// Elements of a chunk; `CHUNK` of `sampling.cu`.
const CHUNK: usize = 64;
/// Elements of a part of a sum of exponentials; `PART` there.
const PART: usize = 1024;
/// Threads of the blocks that have a row; `THREADS` there.
const THREADS: u32 = 1024;
/// Bytes of shared memory for the keys of `first_of_rows`.
const KEYS: usize = TOP * CHUNK * 8;
/// Bytes of shared memory for parts' sums; wider rows have none.
const SUMS: usize = 48 << 10;

/// The places of the largest elements of an output's rows.
pub(crate) struct Best {
    function: Function,
    /// Keys of rows, then counts of blocks that have arrived.
    keys: Memory,
    /// Where the GPU puts the places.
    host: Pinned,
    found: Vec<u32>,
    /// Rows that there is memory for.
    room: usize,
    /// The output and the number of its rows that were looked at after the last run.
    done: Option<(usize, usize)>,
    /// The output that was asked for after the last run.
    wanted: Option<usize>,
}

impl Best {
    pub(crate) fn new(device: &Device) -> Result<Best, CudaError> {
        let gpu = &device.gpu;
        Ok(Best {
            function: device.function("sampling", "largest")?,
            keys: gpu.allocate(0)?,
            host: gpu.pinned(0)?,
            found: Vec::new(),
            room: 0,
            done: None,
            wanted: None,
        })
    }

    /// Forgets what was found; gives the output that is to be looked at behind the run to come.
    pub(crate) fn begin(&mut self) -> Option<usize> {
        self.done = None;
        self.wanted.take()
    }

    /// Rows that there is memory for; a recorded search is of no use once there are more.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// The search in output number `index` is on its way.
    pub(crate) fn expect(&mut self, index: usize, output: &Operand) {
        self.done = Some((index, output.rows()));
    }

    /// Queues the search in output number `index`. With `overlap` it may begin before the last kernel
    /// of the run has ended.
    pub(crate) fn queue(
        &mut self,
        gpu: &Arc<Gpu>,
        stream: &Stream,
        index: usize,
        output: &Operand,
        overlap: bool,
    ) -> Result<(), CudaError> {
        let (rows, width) = (output.rows(), output.width());
        if rows > self.room {
            stream.wait()?;
            self.keys = gpu.zeroed(rows * 12, stream)?;
            self.host = gpu.pinned(rows * 4)?;
            self.found.resize(rows, 0);
            self.room = rows;
        }
        let launch = Launch {
            function: self.function,
            grid: (width.div_ceil(256 * 4).clamp(1, 128) as u32, rows as u32, 1),
            block: 256,
            cluster: 1,
            shared: 0,
            parameters: vec![
                Parameter::address(output.address),
                Parameter::address(self.keys.at(0)),
                Parameter::address(self.keys.at(self.room * 8)),
                Parameter::address(self.host.address()),
                Parameter::int(width),
            ],
        };
        stream.launch(&launch, overlap)?;
        self.expect(index, output);
        Ok(())
    }

    /// What was found in output number `index`, or is now.
    pub(crate) fn of(
        &mut self,
        gpu: &Arc<Gpu>,
        stream: &Stream,
        index: usize,
        output: &Operand,
    ) -> Result<&[u32], CudaError> {
        let rows = output.rows();
        if self.done != Some((index, rows)) {
            self.queue(gpu, stream, index, output, false)?;
            stream.wait()?;
        }
        self.wanted = Some(index);
        read(self.host.as_slice(), &mut self.found[..rows], u32::from_ne_bytes);
        Ok(&self.found[..rows])
    }
}

/// The first elements of an output's rows, and sums of exponentials.
pub(crate) struct Firsts {
    chunk_keys: Function,
    first_of_rows: Function,
    exponentials: Function,
    keys: Memory,
    /// Values, then places.
    firsts: Memory,
    sums: Memory,
    host: Pinned,
    host_sums: Pinned,
    values: Vec<f32>,
    places: Vec<u32>,
    totals: Vec<f64>,
    /// Rows, and chunks of all of them, that there is memory for.
    room: (usize, usize),
    done: Option<(usize, usize)>,
    /// Whether `values` and `places` are those of the last search.
    read: bool,
    /// Scale of the sums that were computed after the last run.
    summed: Option<f32>,
    wanted: Option<(usize, Option<f32>)>,
}

impl Firsts {
    pub(crate) fn new(device: &Device) -> Result<Firsts, CudaError> {
        let gpu = &device.gpu;
        let first_of_rows = device.function("sampling", "first_of_rows")?;
        first_of_rows.allow_shared(KEYS)?;
        Ok(Firsts {
            chunk_keys: device.function("sampling", "chunk_keys")?,
            first_of_rows,
            exponentials: device.function("sampling", "exponentials_of_rows")?,
            keys: gpu.allocate(0)?,
            firsts: gpu.allocate(0)?,
            sums: gpu.allocate(0)?,
            host: gpu.pinned(0)?,
            host_sums: gpu.pinned(0)?,
            values: Vec::new(),
            places: Vec::new(),
            totals: Vec::new(),
            room: (0, 0),
            done: None,
            read: false,
            summed: None,
            wanted: None,
        })
    }

    /// As [`Best::begin`], with the scale of the sums.
    pub(crate) fn begin(&mut self) -> Option<(usize, Option<f32>)> {
        (self.done, self.summed) = (None, None);
        self.wanted.take()
    }

    /// Queues the search in output number `index`.
    pub(crate) fn queue(
        &mut self,
        gpu: &Arc<Gpu>,
        stream: &Stream,
        index: usize,
        output: &Operand,
    ) -> Result<(), CudaError> {
        let (rows, width) = (output.rows(), output.width());
        let chunks = width.div_ceil(CHUNK);
        if rows > self.room.0 || rows * chunks > self.room.1 {
            stream.wait()?;
            self.keys = gpu.allocate(rows * chunks * 8)?;
            self.firsts = gpu.allocate(rows * TOP * 8)?;
            self.sums = gpu.allocate(rows * 8)?;
            self.host = gpu.pinned(rows * TOP * 8)?;
            self.host_sums = gpu.pinned(rows * 8)?;
            self.values.resize(rows * TOP, 0.0);
            self.places.resize(rows * TOP, 0);
            self.totals.resize(rows, 0.0);
            self.room = (rows, rows * chunks);
        }
        let width = || Parameter::int(width);
        let (x, keys) = (output.address, self.keys.at(0));
        let find_keys = Launch {
            function: self.chunk_keys,
            grid: (chunks.div_ceil(8) as u32, rows as u32, 1),
            block: 256,
            cluster: 1,
            shared: 0,
            parameters: vec![Parameter::address(x), Parameter::address(keys), width()],
        };
        stream.launch(&find_keys, false)?;
        let places = self.firsts.at(rows * TOP * 4);
        let addresses = [x, keys, self.firsts.at(0), places].map(Parameter::address);
        let find_firsts = Launch {
            function: self.first_of_rows,
            grid: (rows as u32, 1, 1),
            block: THREADS,
            cluster: 1,
            shared: KEYS as u32,
            parameters: addresses.into_iter().chain([width()]).collect(),
        };
        stream.launch(&find_firsts, false)?;
        stream.fetch(self.firsts.at(0), &self.host, rows * TOP * 8)?;
        (self.done, self.summed, self.read) = (Some((index, rows)), None, false);
        Ok(())
    }

    /// Queues the sums of exponentials of the output that was searched; whether rows are not too wide
    /// for that.
    pub(crate) fn queue_sums(
        &mut self,
        stream: &Stream,
        output: &Operand,
        scale: f32,
    ) -> Result<bool, CudaError> {
        let shared = output.width().div_ceil(PART) * 8;
        if shared > SUMS {
            return Ok(false);
        }
        let addresses = [output.address, self.firsts.at(0), self.sums.at(0)];
        let rest = [Parameter::int(output.width()), Parameter::new().f32(scale)];
        let launch = Launch {
            function: self.exponentials,
            grid: (output.rows() as u32, 1, 1),
            block: THREADS,
            cluster: 1,
            shared: shared as u32,
            parameters: addresses.map(Parameter::address).into_iter().chain(rest).collect(),
        };
        stream.launch(&launch, false)?;
        stream.fetch(self.sums.at(0), &self.host_sums, output.rows() * 8)?;
        self.summed = Some(scale);
        Ok(true)
    }

    /// The first elements of output number `index`, found behind the last run or now.
    pub(crate) fn of(
        &mut self,
        gpu: &Arc<Gpu>,
        stream: &Stream,
        index: usize,
        output: &Operand,
    ) -> Result<Top<'_>, CudaError> {
        let n = output.rows() * TOP;
        if self.done != Some((index, output.rows())) {
            self.queue(gpu, stream, index, output)?;
            stream.wait()?;
        }
        if self.wanted.is_none_or(|(of, _)| of != index) {
            self.wanted = Some((index, None));
        }
        if !self.read {
            let (values, places) = self.host.as_slice().split_at(n * 4);
            read(values, &mut self.values[..n], f32::from_ne_bytes);
            read(places, &mut self.places[..n], u32::from_ne_bytes);
            self.read = true;
        }
        Ok(Top { values: &self.values[..n], places: &self.places[..n] })
    }

    /// The sums of exponentials of output number `index`, likewise.
    pub(crate) fn sums(
        &mut self,
        gpu: &Arc<Gpu>,
        stream: &Stream,
        index: usize,
        output: &Operand,
        scale: f32,
    ) -> Result<Option<&[f64]>, CudaError> {
        if self.done != Some((index, output.rows())) {
            self.queue(gpu, stream, index, output)?;
        }
        if self.summed != Some(scale) {
            if !self.queue_sums(stream, output, scale)? {
                return Ok(None);
            }
            stream.wait()?;
        }
        self.wanted = Some((index, Some(scale)));
        let totals = &mut self.totals[..output.rows()];
        for (to, from) in totals.iter_mut().zip(self.host_sums.as_slice().as_chunks::<8>().0) {
            *to = f64::from_ne_bytes(*from);
        }
        Ok(Some(totals))
    }
}

fn read<T>(from: &[u8], to: &mut [T], number: fn([u8; 4]) -> T) {
    for (to, from) in to.iter_mut().zip(from.as_chunks::<4>().0) {
        *to = number(*from);
    }
}
