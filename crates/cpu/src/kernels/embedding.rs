//! `embedding`: decodes the rows asked for, straight from the table's own format.

use cyb_exec::Call;
use cyb_tensor::DType;

use super::views::check_index;
use super::{decode_row, decodes};
use crate::io::{Io, RawTensor};
use crate::kernel::{Kernel, Row};

pub(crate) static ROWS: &[Row] = &[Row {
    op: "embedding",
    name: "embedding_rows",
    supports,
    build: |_| Ok(Box::new(Embedding)),
}];

fn supports(call: &Call<'_>) -> bool {
    decodes(call.inputs[0].dtype) && call.inputs[1].dtype == DType::I32
}

#[derive(Debug)]
struct Embedding;

impl Kernel for Embedding {
    fn reads_bytes(&self, input: usize) -> bool {
        input == 0
    }

    fn light(&self, _inputs: &[RawTensor], outputs: &[RawTensor]) -> Option<usize> {
        Some(outputs[0].elements())
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let (table, ids) = (io.bytes(0), io.slice::<i32>(1));
        let (rows, width) = (io.dims(0)[0], io.dims(0)[1]);
        check_index(ids, rows)?;
        let stride = table.len() / rows.max(1);
        let dtype = io.inputs[0].dtype;
        let mut result = Ok(());
        io.rows::<f32>(0, width, |i, out| {
            let row = &table[ids[i] as usize * stride..][..stride];
            if let Err(why) = decode_row(dtype, row, out) {
                result = Err(why);
            }
        });
        result
    }
}
