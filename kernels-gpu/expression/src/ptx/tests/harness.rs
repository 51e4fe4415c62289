//! A kernel of one tile, one block and one fragment, and a launch of it.

use super::reference::{Data, Site, given};
use super::tree::{Random, tensors};
use crate::ptx::interpret::Machine;
use crate::ptx::{
    Edit, ParamOffsets, Program, RowTerms, ScoreRows, TENSOR_BYTES, TENSOR_LEN, TENSOR_STRIDE,
};
use crate::{ElementType, Expression, Index};

/// Where values lie in the parameter of the tests' kernels; what is given to the instructions lies behind.
pub const PLACES: ParamOffsets = ParamOffsets {
    scale: 16,
    inverse_unit: 20,
    params: 24,
    tensors: 48,
};

/// Bytes of the parameter.
pub const PARAMETER_BYTES: usize = 48 + 4 * TENSOR_BYTES as usize + 64;

/// A launch, with all that a fragment meets.
pub struct Launch {
    pub rows: ScoreRows,
    pub terms: RowTerms,
    pub scale: f32,
    pub tile: [i32; 7],
    pub first: i32,
    pub column: i32,
    pub x: [f32; 4],
    pub params: Vec<u32>,
    pub tensors: Vec<Data>,
}

impl Launch {
    pub fn random(random: &mut Random) -> Launch {
        let (params, tensors) = given(random);
        let scale = random.of(&[0.125, 0.088_388_35, 1.0, 0.3]);
        let own = random.below(100) as i32;
        let first = 8 * random.below(14) as i32;
        let tile = [
            random.below(4) as i32,
            random.below(6) as i32,
            random.below(3) as i32,
            110 + random.below(20) as i32,
            110 + random.below(20) as i32,
            own,
            own + 8,
        ];
        Launch {
            rows: random.of(&[ScoreRows::Queries, ScoreRows::Keys]),
            terms: random.of(&[RowTerms::InScores, RowTerms::Apart]),
            scale,
            tile,
            first,
            column: 2 * random.below(32) as i32,
            x: [(); 4].map(|()| random.number() * 8.0),
            params,
            tensors,
        }
    }

    /// What the reference is told of an element.
    pub fn place(&self, element: usize) -> Site<'_> {
        let own = self.tile[5 + element / 2];
        let running = self.first + self.column + (element % 2) as i32;
        let (query, key) = match self.rows {
            ScoreRows::Queries => (own, running),
            ScoreRows::Keys => (running, own),
        };
        let [batch, head, kv_head, seqlen_q, seqlen_k, ..] = self.tile;
        Site {
            x: self.x[element],
            scale: self.scale,
            indices: [batch, head, kv_head, query, key, seqlen_q, seqlen_k],
            params: &self.params,
            tensors: &self.tensors,
        }
    }

    /// What the edit's scores are measured in.
    pub fn unit(&self, edit: &Edit) -> f32 {
        edit.unit().of_launch(self.scale, &mut self.params.clone())
    }

    /// The machine before the entry begins.
    fn machine(&self, edit: &Edit) -> Machine {
        let mut params = self.params.clone();
        let unit = edit.unit().of_launch(self.scale, &mut params);
        let mut machine = Machine {
            parameter: vec![0xA5; PARAMETER_BYTES],
            ..Machine::default()
        };
        let mut put = |at: u32, bytes: &[u8]| {
            machine.parameter[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        };
        put(PLACES.scale, &self.scale.to_le_bytes());
        put(PLACES.inverse_unit, &(1.0 / unit).to_le_bytes());
        for (nth, param) in params.iter().enumerate() {
            put(PLACES.params + 4 * nth as u32, &param.to_le_bytes());
        }
        let mut pieces = Vec::new();
        for (nth, (data, tensor)) in self.tensors.iter().zip(tensors()).enumerate() {
            let at = PLACES.tensors + TENSOR_BYTES * nth as u32;
            let address = (nth as u64 + 3) << 33;
            put(at, &address.to_le_bytes());
            for (dim, len) in data.len.iter().enumerate() {
                put(at + TENSOR_LEN + 4 * dim as u32, &len.to_le_bytes());
                let stride = data.stride[dim].to_le_bytes();
                put(at + TENSOR_STRIDE + 8 * dim as u32, &stride);
            }
            let element = |bits: &u32| match tensor.element {
                ElementType::F32 | ElementType::I32 => bits.to_le_bytes().to_vec(),
                ElementType::Bf16 => ((bits >> 16) as u16).to_le_bytes().to_vec(),
                ElementType::F16 => half(*bits).to_le_bytes().to_vec(),
            };
            pieces.push((address, data.bits.iter().flat_map(element).collect()));
        }
        machine.memory = pieces;
        let given = self.tile.iter().chain([&self.first]);
        for (nth, value) in given.enumerate() {
            machine
                .registers
                .insert(format!("%r{nth}"), u64::from(*value as u32));
        }
        for (nth, x) in self.x.iter().enumerate() {
            machine
                .registers
                .insert(format!("%f{nth}"), u64::from(x.to_bits()));
        }
        for term in ["%m0", "%m1"] {
            machine.registers.insert(term.to_owned(), 0);
        }
        machine
    }

    /// The new scores, divided by their unit, and, where the program has them, derivatives.
    pub fn run(&self, edit: &Edit, gradient: bool) -> [f32; 8] {
        self.run_with_error(edit, gradient, 0.0)
    }

    /// The same where approximations are off by this.
    pub fn run_with_error(&self, edit: &Edit, gradient: bool, error: f32) -> [f32; 8] {
        let score = if gradient {
            format!(
                "ferroflash_score_gradient %f0, %f1, %f2, %f3, %d0, %d1, %d2, %d3, {};",
                self.column
            )
        } else {
            format!("ferroflash_score %f0, %f1, %f2, %f3, {};", self.column)
        };
        let (block, rows) = match self.terms {
            RowTerms::InScores => ("ferroflash_score_block", ""),
            RowTerms::Apart => (
                "ferroflash_score_block_apart",
                "\tferroflash_score_with_rows %m0, %m1;\n",
            ),
        };
        let text = format!(
            ".entry k(.param .align 8 .b8 k_param_0[{PARAMETER_BYTES}])\n{{\n\
             \tferroflash_score_tile %r0, %r1, %r2, %r3, %r4, %r5, %r6;\n\
             \t{block} %r7;\n\t// begin inline asm\n\t{score}\n\t// end inline asm\n{rows}\tret;\n}}\n"
        );
        let program = Program::with_row_terms(edit, self.rows, PLACES, self.terms).unwrap();
        let text = program.splice(&text).unwrap();
        let body = text.split_once('{').unwrap().1;
        let mut machine = self.machine(edit);
        machine.error = error;
        if let Err(error) = machine.run(body) {
            panic!("{error} in\n{text}");
        }
        let register = |name: &str| {
            let bits = machine.registers.get(name).copied().unwrap_or(0);
            f32::from_bits(bits as u32)
        };
        let names = ["%f0", "%f1", "%f2", "%f3", "%d0", "%d1", "%d2", "%d3"];
        let mut found = names.map(register);
        // What the scores lack makes them whole. As in the kernels' softmax, −∞ stays: a term may be no number.
        for (element, x) in found[..4].iter_mut().enumerate() {
            if *x != f32::NEG_INFINITY {
                *x += register(["%m0", "%m1"][element / 2]);
            }
        }
        found
    }
}

/// Whether indices of tensors that are plainly batches or heads have enough elements; the host checks that.
pub fn fits(launch: &Launch, expression: &Expression) -> bool {
    use crate::Node;
    expression.nodes().iter().all(|node| {
        let Node::Read(nth, indices) = node else {
            return true;
        };
        let len = &launch.tensors[usize::from(*nth)].len;
        len.iter().zip(indices).all(|(&len, &index)| {
            let plain = expression.nodes()[index as usize];
            match plain {
                Node::Index(Index::Batch) => launch.tile[0] < len,
                Node::Index(Index::Head) => launch.tile[1] < len,
                Node::Index(Index::KvHead) => launch.tile[2] < len,
                _ => true,
            }
        })
    })
}

/// f16 of a number that it holds without loss.
fn half(bits: u32) -> u16 {
    let x = f32::from_bits(bits);
    let sign = (bits >> 16 & 0x8000) as u16;
    if x == 0.0 {
        return sign;
    }
    let exponent = (bits >> 23 & 0xFF) as i32 - 112;
    sign | (exponent as u16) << 10 | (bits >> 13 & 0x3FF) as u16
}

pub fn program(edit: &Edit, rows: ScoreRows) -> Program {
    Program::new(edit, rows, PLACES).unwrap()
}
