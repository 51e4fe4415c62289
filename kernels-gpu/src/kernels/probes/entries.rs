//! The list expanded into the entries `probe_<name>` and, of Hopper, `probe_sm90a_<name>` and `probe_sm90a_cluster_<name>`.

use super::cluster;
use super::hopper::{self, ProbeMaps};
use crate::ptx::parameters::parameter_address;
use crate::{for_each_cluster_probe, for_each_hopper_probe, for_each_probe};

macro_rules! entries {
    ($($name:ident { $($shape:tt)* })*) => { $(
        const _: () = {
            #[unsafe(export_name = concat!("probe_", stringify!($name)))]
            unsafe extern "ptx-kernel" fn probe(input: u64, output: u64) {
                // SAFETY: the launch and the buffers are as the row says.
                unsafe { super::$name(input, output) }
            }
        };
    )* };
}

// The builder compiles the list of kernels in parts, of which one has the probes.
#[cfg(any(not(ferroflash_part), ferroflash_probes))]
for_each_probe!(entries);

macro_rules! hopper_entries {
    ($($name:ident { $($shape:tt)* })*) => { $(
        const _: () = {
            #[unsafe(export_name = concat!("probe_sm90a_", stringify!($name)))]
            unsafe extern "ptx-kernel" fn probe(input: u64, output: u64, maps: ProbeMaps) {
                let maps =
                    parameter_address!(concat!("probe_sm90a_", stringify!($name)), 2, &maps);
                // SAFETY: the launch and the buffers are as the row says.
                unsafe { hopper::$name(input, output, maps) }
            }
        };
    )* };
}

#[cfg(any(not(ferroflash_part), ferroflash_probes))]
for_each_hopper_probe!(hopper_entries);

macro_rules! cluster_entries {
    ($($name:ident { $($shape:tt)* })*) => { $(
        const _: () = {
            #[unsafe(export_name = concat!("probe_sm90a_cluster_", stringify!($name)))]
            unsafe extern "ptx-kernel" fn probe(input: u64, output: u64, maps: ProbeMaps) {
                let maps = parameter_address!(
                    concat!("probe_sm90a_cluster_", stringify!($name)),
                    2,
                    &maps
                );
                // SAFETY: the launch and the buffers are as the row says.
                unsafe { cluster::$name(input, output, maps) }
            }
        };
    )* };
}

#[cfg(any(not(ferroflash_part), ferroflash_probes))]
for_each_cluster_probe!(cluster_entries);
