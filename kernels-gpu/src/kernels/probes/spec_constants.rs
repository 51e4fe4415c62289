//! The probe of specialisation constants.

use super::put_all;
use crate::ptx::spec;
use crate::spec::{Constant, for_each_constant, with_optional_inputs};

macro_rules! values {
    ($($(#[$doc:meta])* $constant:ident $reader:ident $name:literal;)*) => {
        [$(spec::$reader()),*]
    };
}

pub(super) unsafe fn spec_constants(_: u64, output: u64) {
    let constants: [bool; Constant::ALL.len()] = for_each_constant!(values);
    put_all(output, 0, &constants.map(u32::from));
}
