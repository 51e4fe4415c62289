//! `codegen`: the support matrix of the book, from the list of kernels.

use std::fs;

use anyhow::{Context, Result, bail};
use ferroflash_kernels::spec::Constant;
use ferroflash_kernels::variants::{Dtype, HeadDims, Reach, TileShape, VARIANTS, Variant};

use crate::workspace::Workspace;

/// The chapter with the matrix.
const CHAPTER: &str = "docs/src/matrix.md";

/// The lines around the matrix.
const MARKERS: [&str; 2] = [
    "<!-- support-matrix:begin -->",
    "<!-- support-matrix:end -->",
];

/// What to do with what is generated and stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Fail, and name the command that renews it.
    Check,
    /// Renew it.
    Write,
}

impl Mode {
    /// As the option `--check` says.
    pub const fn of(check: bool) -> Mode {
        if check { Mode::Check } else { Mode::Write }
    }
}

/// Renews or checks the matrix.
pub fn codegen(workspace: &Workspace, mode: Mode) -> Result<()> {
    let path = workspace.root.join(CHAPTER);
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let fresh = with_matrix(&text, &matrix(VARIANTS))?;
    match mode {
        _ if fresh == text => Ok(()),
        Mode::Check => {
            bail!("the support matrix of {CHAPTER} is stale; `cargo xtask codegen` renews it")
        }
        Mode::Write => {
            fs::write(&path, fresh).with_context(|| format!("cannot write {}", path.display()))
        }
    }
}

fn with_matrix(text: &str, matrix: &str) -> Result<String> {
    let [begin, end] = MARKERS;
    let missing = || format!("{CHAPTER} has no lines `{begin}` and `{end}`");
    let (before, rest) = text.split_once(begin).with_context(missing)?;
    let (_, after) = rest.split_once(end).with_context(missing)?;
    Ok(format!("{before}{begin}\n{matrix}{end}{after}"))
}

/// A row for all variants that differ in type, head_dim and mask only, and of elements of one size.
fn matrix(variants: &[Variant]) -> String {
    let mut text =
        "| kernel | compute capability | dtype | head_dim | specialised for |\n|---|---|---|---|---|\n"
            .to_owned();
    let mut done = Vec::new();
    for variant in variants {
        let family = |variant: &Variant| {
            let bytes = variant.dtype.map(Dtype::bytes);
            (variant.kind, variant.arch, variant.tiles, bytes)
        };
        let own = family(variant);
        if done.contains(&own) {
            continue;
        }
        done.push(own);
        let members: Vec<&Variant> = variants
            .iter()
            .filter(|other| family(other) == own)
            .collect();
        let name = variant.name.split("_sm").next().unwrap_or(variant.name);
        let tiles = match variant.tiles {
            TileShape::Default => String::new(),
            other => format!(", {} tiles", other.name()),
        };
        let (major, minor) = variant.arch.compute_capability();
        let dtypes = distinct(&members, |member| match member.dtype {
            Some(Dtype::Bf16) => "bf16".to_owned(),
            Some(Dtype::F16) => "fp16".to_owned(),
            Some(Dtype::F32) => "f32".to_owned(),
            Some(Dtype::E4m3) => "e4m3".to_owned(),
            None => "bf16, fp16, f32".to_owned(),
        });
        let devices = match variant.arch.reach() {
            Reach::Newer => " and newer",
            Reach::Alone => " only",
        };
        let head_dims = head_dims(&members);
        let constants = constants(&members);
        text.push_str(&format!(
            "| `{name}`{tiles} | {major}.{minor}{devices} | {dtypes} | {head_dims} | {constants} |\n"
        ));
    }
    text
}

/// The constants that the members ask for; for which head_dim, where some do not.
fn constants(members: &[&Variant]) -> String {
    let mut names = Vec::new();
    for constant in Constant::ALL {
        let asking: Vec<&Variant> = members
            .iter()
            .copied()
            .filter(|member| member.capabilities().has(constant))
            .collect();
        let name = constant.name();
        match distinct(&asking, compiled_for) {
            _ if asking.is_empty() => {}
            all if all.is_empty() || asking.len() == members.len() => names.push(name.to_owned()),
            some => names.push(format!("{name} (of {some})")),
        }
    }
    match names.is_empty() {
        true => "–".to_owned(),
        false => names.join(", "),
    }
}

/// The head_dim that a kernel is compiled for, and the columns of values where they are others; nothing where it is compiled for none.
fn compiled_for(member: &Variant) -> String {
    match (member.head_dim, member.head_dim_v) {
        (None, _) => String::new(),
        (Some(head_dim), None) => head_dim.to_string(),
        (Some(head_dim), Some(head_dim_v)) => format!("{head_dim}/{head_dim_v}"),
    }
}

/// Up to which the members serve, and which they are compiled for, if for any.
fn head_dims(members: &[&Variant]) -> String {
    let compiled = distinct(members, compiled_for);
    let served = members.iter().map(|member| member.head_dims());
    let Some(HeadDims { multiple, most }) = served.max_by_key(|served| served.most) else {
        return compiled;
    };
    match compiled.is_empty() {
        true => format!("any multiple of {multiple} up to {most}"),
        false => format!("any multiple of {multiple} up to {most} (padded to {compiled})"),
    }
}

/// What the members have, each once, in their order.
fn distinct(members: &[&Variant], of: impl Fn(&Variant) -> String) -> String {
    let mut names: Vec<String> = Vec::new();
    for member in members {
        let name = of(member);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_goes_between_its_markers() {
        let [begin, end] = MARKERS;
        let text = format!("# a\n{begin}\nold\n{end}\nb\n");
        let fresh = with_matrix(&text, "new\n").expect("the markers are there");
        assert_eq!(fresh, format!("# a\n{begin}\nnew\n{end}\nb\n"));
        assert_eq!(
            with_matrix(&fresh, "new\n").expect("the markers are still there"),
            fresh
        );
        assert!(with_matrix("# a\n", "new\n").is_err());
    }

    #[test]
    fn variants_of_one_kernel_share_a_row() {
        let row = "| `forward` | 8.0 and newer | bf16, fp16 | any multiple of 8 up to 512 (padded to 32, 64, 128, 256, 512) | \
                   right_bound, left_bound, lengths, prefix, block_mask, pages, score, edit_partial, dropout, pad_columns, sinks, head_scale |\n";
        assert!(matrix(VARIANTS).contains(row), "{}", matrix(VARIANTS));
        let row = "| `forward` | 9.0 only | bf16, fp16 | any multiple of 8 up to 512 (padded to 64, 96, 128, 160, 192, 256, 512, 64/256, 64/512, 192/128) | \
                   right_bound, left_bound, lengths, prefix, block_mask (of 64, 96, 128, 512, 64/512, 192/128), pages, score, edit_partial (of 64, 96, 128, 512, 64/512, 192/128), dropout, sinks |\n";
        assert!(matrix(VARIANTS).contains(row), "{}", matrix(VARIANTS));
        let row = "| `backward`, compact tiles | 8.0 and newer | bf16, fp16 | any multiple of 8 up to 256 (padded to 128, 256) | \
                   right_bound, left_bound, lengths, prefix, block_mask, score, score_gradient, edit_partial, dropout, pad_columns |\n";
        assert!(matrix(VARIANTS).contains(row), "{}", matrix(VARIANTS));
    }
}
