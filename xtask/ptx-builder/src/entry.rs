//! What an entry's PTX says beyond rustc's: launch bounds, and the alignment of tensor maps.

use std::fmt::Write;

use ferroflash_kernels::config::PROBE_CLUSTER;
use ferroflash_kernels::variants::{self, Kind, TileConfig};

/// What the names of probes of Hopper's instructions start with.
pub const HOPPER_PROBE_PREFIX: &str = "probe_sm90a_";

/// What the names of those start with that run as a cluster of blocks.
const CLUSTER_PROBE_PREFIX: &str = "probe_sm90a_cluster_";

/// The threads of the largest probe of Hopper's instructions. Without a bound ptxas ignores `setmaxnreg`.
const HOPPER_PROBE_THREADS: u32 = 128;

/// The entry of this name and text with what rustc cannot say.
pub fn finished(name: &str, text: &str) -> String {
    match variants::by_name(name) {
        Some(variant) => {
            let TileConfig {
                threads,
                blocks_per_sm,
                cluster,
                ..
            } = variant.tile_config;
            let bounded = with_launch_bounds(text, threads, blocks_per_sm);
            let bounded = with_cluster(&bounded, cluster);
            match variant.kind {
                Kind::TmaForward | Kind::TmaForwardMla | Kind::TmaBackward => {
                    with_alignment(&bounded)
                }
                _ => bounded,
            }
        }
        None if name.starts_with(HOPPER_PROBE_PREFIX) => {
            let bounded = with_launch_bounds(text, HOPPER_PROBE_THREADS, 1);
            let cluster = match name.starts_with(CLUSTER_PROBE_PREFIX) {
                true => PROBE_CLUSTER,
                false => 1,
            };
            with_alignment(&with_cluster(&bounded, cluster))
        }
        None => text.to_owned(),
    }
}

/// The entry with the threads of its block and the blocks that an SM should hold: rustc has no attribute for them.
fn with_launch_bounds(entry: &str, threads: u32, blocks_per_sm: u32) -> String {
    let body = entry.find('{').unwrap_or(entry.len());
    let mut text = entry[..body].trim_end().to_owned();
    let _ = write!(
        text,
        "\n.maxntid {threads}, 1, 1\n.minnctapersm {blocks_per_sm}\n{}",
        &entry[body..]
    );
    text
}

/// The entry with the blocks of its cluster, where that is more than one: then a launch needs no attribute for it.
fn with_cluster(entry: &str, cluster: u32) -> String {
    if cluster == 1 {
        return entry.to_owned();
    }
    let body = entry.find('{').unwrap_or(entry.len());
    let head = entry[..body].trim_end();
    let size = format!(".explicitcluster\n.reqnctapercluster {cluster}, 1, 1");
    format!("{head}\n{size}\n{}", &entry[body..])
}

/// The entry with its tensor maps where the copy engine wants them: at a multiple of 64 bytes. rustc cannot pass a struct
/// of that alignment; the driver lays parameters out as the PTX says.
fn with_alignment(entry: &str) -> String {
    let body = entry.find('{').unwrap_or(entry.len());
    let parameters = entry[..body].replace(".param .align 16 ", ".param .align 64 ");
    parameters + &entry[body..]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str =
        ".visible .entry e(\n\t.param .align 16 .b8 p[16]\n)\n{\n\t.param .align 16 .b8 q;\n}";

    fn entry(name: &str) -> String {
        finished(name, ENTRY)
    }

    #[test]
    fn launch_bounds_stand_between_parameters_and_body() {
        let row = &variants::VARIANTS[0];
        let bounds = format!(
            ")\n.maxntid {}, 1, 1\n.minnctapersm {}\n{{",
            row.tile_config.threads, row.tile_config.blocks_per_sm
        );
        assert_eq!(entry(row.name), ENTRY.replace(")\n{", &bounds));
        assert_eq!(entry("probe_add"), ENTRY);
        let probe = entry("probe_sm90a_setmaxnreg");
        assert!(probe.contains(")\n.maxntid 128, 1, 1\n.minnctapersm 1\n{"));
        let probe = entry("probe_sm90a_cluster_barrier");
        assert!(probe.contains(".minnctapersm 1\n.explicitcluster\n.reqnctapercluster 2, 1, 1\n{"));
    }

    #[test]
    fn only_parameters_with_tensor_maps_are_aligned_to_64_bytes() {
        let aligned = "\t.param .align 64 .b8 p[16]";
        for row in variants::compiled() {
            let text = entry(row.name);
            let with_maps = [Kind::TmaForward, Kind::TmaForwardMla, Kind::TmaBackward];
            let holds_maps = with_maps.contains(&row.kind);
            assert_eq!(text.contains(aligned), holds_maps, "{}", row.name);
            assert!(text.contains("\t.param .align 16 .b8 q;"), "{text}");
        }
        assert!(entry("probe_sm90a_tma_loads").contains(aligned));
        assert!(!entry("probe_copies").contains(aligned));
    }
}
