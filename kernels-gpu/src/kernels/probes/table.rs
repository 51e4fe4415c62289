//! The probes as data: what to give them and how closely two machines must agree on what comes out.

use super::cluster;
use super::hopper::{self, ProbeMaps};
use crate::config::PROBE_CLUSTER;
use crate::ptx::parameters::parameter_address;
use crate::{for_each_cluster_probe, for_each_hopper_probe, for_each_probe};

/// What the input of a probe is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    /// Any bits.
    Bits,
    /// `f32` of all magnitudes, zeros, infinities, NaN and subnormal numbers among them.
    Floats,
    /// `f32` between −130 and 130 and the special ones.
    Exponents,
    /// `f32` of the magnitudes that `f16` has, a little beyond, and the special ones.
    HalfFloats,
    /// `f32` whole numbers between −8 and 8, whose products and sums are exact.
    Whole,
    /// `f32` between −2 and 2.
    Real,
    /// Pairs of `bf16` whole numbers between −8 and 8, whose products and sums are exact.
    WholeBf16,
    /// Pairs of `f16` whole numbers between −8 and 8.
    WholeF16,
    /// `e4m3` whole numbers between −4 and 4.
    WholeE4m3,
    /// `e5m2` whole numbers between −4 and 4.
    WholeE5m2,
    /// Pairs of `bf16` between −2 and 2.
    RealBf16,
    /// Pairs of `f16` between −2 and 2.
    RealF16,
}

/// How closely two outputs must agree, word by word.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Agreement {
    /// Bit for bit.
    Exact,
    /// As `f32`, with at most so many numbers between them; any two NaN agree.
    Ulps(u32),
    /// As `f32`, within this share of the greater magnitude, or of 1; any two NaN agree.
    Within(f32),
}

/// A word on which two machines do not agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// Its index in the output.
    pub index: usize,
    /// Its value on the one machine.
    pub left: u32,
    /// Its value on the other.
    pub right: u32,
}

/// What a probe takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// The addresses of its input and its output.
    Addresses,
    /// Besides them, tensor maps of both: it runs on Hopper alone.
    TensorMaps,
}

/// One probe: a launch of one block, or of one cluster, with two addresses as its parameters and, for those of Hopper, tensor maps.
///
/// Only the lists here make probes: the sizes of one are those of its kernel, and whoever launches it may rely on that.
///
/// ```compile_fail,E0451
/// use ferroflash_kernels::kernels::probes::{PROBES, Probe};
///
/// let wider = Probe { threads: 1024, ..PROBES[0] };
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    name: &'static str,
    entry: &'static str,
    takes: Takes,
    cluster: u32,
    threads: u32,
    shared_bytes: u32,
    fill: Fill,
    input_words: u32,
    output_words: u32,
    agreement: Agreement,
    run: fn(u64, u64, &ProbeMaps),
}

impl Probe {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its entry in the PTX module `probes`: for those of Hopper, in that for `sm_90a`.
    pub fn entry(&self) -> &'static str {
        self.entry
    }

    /// Its parameters.
    pub fn takes(&self) -> Takes {
        self.takes
    }

    /// Its blocks, which form a cluster where it is more than one.
    pub fn cluster(&self) -> u32 {
        self.cluster
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// Bytes of dynamic shared memory.
    pub fn shared_bytes(&self) -> u32 {
        self.shared_bytes
    }

    /// Words of input that its threads read together.
    pub fn input_len(&self) -> usize {
        (self.cluster * self.threads * self.input_words) as usize
    }

    /// The kernel, to be called by every thread that [`crate::emu`] runs, with the addresses of input and output, and
    /// tensor maps of both.
    pub fn run(&self, input: u64, output: u64, maps: &ProbeMaps) {
        (self.run)(input, output, maps)
    }

    /// The input for a seed; never empty, so that it has an address.
    pub fn input(&self, seed: u64) -> Vec<u32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as u32
        };
        let count = self.input_len().max(4);
        (0..count).map(|_| self.fill.word(&mut draw)).collect()
    }

    /// An output for the probe to write.
    pub fn output(&self) -> Vec<u32> {
        vec![0; (self.cluster * self.threads * self.output_words) as usize]
    }

    /// The first word on which two outputs do not agree.
    pub fn compare(&self, left: &[u32], right: &[u32]) -> Result<(), Disagreement> {
        assert_eq!(
            left.len(),
            right.len(),
            "outputs of one probe have one length"
        );
        let differs = |index: &usize| !self.agreement.holds(left[*index], right[*index]);
        match (0..left.len()).find(differs) {
            Some(index) => Err(Disagreement {
                index,
                left: left[index],
                right: right[index],
            }),
            None => Ok(()),
        }
    }
}

/// Numbers at which arithmetic is apt to go wrong.
const SPECIAL: [u32; 12] = [
    0x0000_0000, // 0
    0x8000_0000, // −0
    0x7f80_0000, // ∞
    0xff80_0000, // −∞
    0x7fc0_0001, // NaN
    0x0000_0001, // the least subnormal number
    0x807f_ffff, // the greatest negative subnormal number
    0x0080_0000, // the least normal number
    0x7f7f_ffff, // the greatest number
    0x3f80_0000, // 1
    0xbf80_0000, // −1
    0x3f80_8000, // halfway between two bf16
];

impl Fill {
    fn word(self, draw: &mut impl FnMut() -> u32) -> u32 {
        let pair = |f: &mut dyn FnMut() -> u16| u32::from(f()) | u32::from(f()) << 16;
        let special = draw();
        // Between −1 and 1, in steps of 2⁻²³.
        let mut unit = || (draw() >> 8) as f32 / (1 << 23) as f32 - 1.0;
        let specially = |ordinary: f32| match special % 4 {
            0 => SPECIAL[special as usize / 4 % SPECIAL.len()],
            _ => ordinary.to_bits(),
        };
        match self {
            Fill::Bits => draw(),
            Fill::Floats => match special % 4 {
                0 => SPECIAL[special as usize / 4 % SPECIAL.len()],
                // Exponents from −42 to 42: products stay normal.
                _ => (unit() * (unit() * 42.0).exp2()).to_bits(),
            },
            Fill::Exponents => specially(unit() * 130.0),
            Fill::HalfFloats => match special % 4 {
                0 => SPECIAL[special as usize / 4 % SPECIAL.len()],
                _ => (unit() * (unit() * 26.0 - 9.0).exp2()).to_bits(),
            },
            Fill::Whole => (unit() * 8.0).round().to_bits(),
            Fill::Real => (unit() * 2.0).to_bits(),
            Fill::WholeBf16 => pair(&mut || half::bf16::from_f32((unit() * 8.0).round()).to_bits()),
            Fill::WholeF16 => pair(&mut || half::f16::from_f32((unit() * 8.0).round()).to_bits()),
            Fill::WholeE4m3 => u32::from_le_bytes(std::array::from_fn(|_| {
                float8::F8E4M3::from_f32((unit() * 4.0).round()).to_bits()
            })),
            Fill::WholeE5m2 => u32::from_le_bytes(std::array::from_fn(|_| {
                float8::F8E5M2::from_f32((unit() * 4.0).round()).to_bits()
            })),
            Fill::RealBf16 => pair(&mut || half::bf16::from_f32(unit() * 2.0).to_bits()),
            Fill::RealF16 => pair(&mut || half::f16::from_f32(unit() * 2.0).to_bits()),
        }
    }
}

impl Agreement {
    fn holds(self, left: u32, right: u32) -> bool {
        let (a, b) = (f32::from_bits(left), f32::from_bits(right));
        match self {
            Agreement::Exact => left == right,
            _ if a.is_nan() || b.is_nan() => a.is_nan() && b.is_nan(),
            Agreement::Ulps(most) => order(left).abs_diff(order(right)) <= u64::from(most),
            Agreement::Within(_) if a == b => true,
            Agreement::Within(share) => (a - b).abs() <= share * a.abs().max(b.abs()).max(1.0),
        }
    }
}

/// The place of an `f32` among all of them in ascending order, −0 just below 0.
fn order(bits: u32) -> i64 {
    match bits >> 31 {
        0 => i64::from(bits),
        _ => -1 - i64::from(bits & 0x7fff_ffff),
    }
}

macro_rules! row {
    ($takes:ident, $cluster:expr, $entry:literal, $prefix:literal, $run:expr, $name:ident { $threads:literal, $shared:literal, $fill:ident, $input:literal, $output:expr, $($agreement:tt)* }) => {
        Probe {
            name: concat!($prefix, stringify!($name)),
            entry: concat!($entry, $prefix, stringify!($name)),
            takes: Takes::$takes,
            cluster: $cluster,
            threads: $threads,
            shared_bytes: $shared,
            fill: Fill::$fill,
            input_words: $input,
            output_words: $output,
            agreement: Agreement::$($agreement)*,
            run: $run,
        }
    };
}

macro_rules! table {
    ($($name:ident { $($shape:tt)* })*) => {
        /// Every probe, in the order of the list.
        pub const PROBES: &[Probe] = &[$(
            // SAFETY: the emulator checks every access.
            row!(Addresses, 1, "probe_", "", |input, output, _| unsafe { super::$name(input, output) }, $name { $($shape)* }),
        )*];
    };
}
for_each_probe!(table);

macro_rules! hopper_table {
    ($($name:ident { $($shape:tt)* })*) => {
        /// Every probe of Hopper's instructions, in the order of the list.
        pub const HOPPER_PROBES: &[Probe] = &[$(row!(
            TensorMaps,
            1,
            "probe_sm90a_",
            "",
            |input, output, maps| {
                let maps = parameter_address!(stringify!($name), 2, maps);
                // SAFETY: the emulator checks every access.
                unsafe { hopper::$name(input, output, maps) }
            },
            $name { $($shape)* }
        ),)*];
    };
}
for_each_hopper_probe!(hopper_table);

macro_rules! cluster_table {
    ($($name:ident { $($shape:tt)* })*) => {
        /// Every probe of clusters, in the order of the list: on Hopper alone.
        pub const CLUSTER_PROBES: &[Probe] = &[$(row!(
            TensorMaps,
            PROBE_CLUSTER,
            "probe_sm90a_",
            "cluster_",
            |input, output, maps| {
                let maps = parameter_address!(stringify!($name), 2, maps);
                // SAFETY: the emulator checks every access.
                unsafe { cluster::$name(input, output, maps) }
            },
            $name { $($shape)* }
        ),)*];
    };
}
for_each_cluster_probe!(cluster_table);
