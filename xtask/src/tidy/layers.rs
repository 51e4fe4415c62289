//! The layers of the host crate: a module names those below it and none above, so that no two need each other.

use super::source::Source;

/// The host crate's code.
const ROOM: &str = "host/src/";

/// Its modules from the bottom to the top. The CPU's attention is a layer of its own below planning, which asks it for its memory;
/// its rows of weights lie above the backends, since they copy from a GPU.
const LAYERS: [&str; 30] = [
    "dtype",
    "terms",
    "error",
    "tensor",
    "problem",
    "arguments",
    "quantize",
    "lengths",
    "validate",
    "dropout",
    "backend::cpu",
    "plan",
    "backend",
    "backend::cpu::weights",
    "rotary",
    "device",
    "prepared",
    "operation",
    "attention",
    "place",
    "attend",
    "weights",
    "merge",
    "append",
    "kv_cache",
    "rotate",
    "fp8",
    "cache",
    "raw",
    "ahead",
];

/// The place of the layer that a path names or lies in.
fn layer_of(path: &str) -> Option<usize> {
    let begins = |layer: &&str| {
        let rest = path.strip_prefix(*layer);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    let longest = LAYERS
        .into_iter()
        .filter(begins)
        .max_by_key(|layer| layer.len())?;
    LAYERS.iter().position(|&layer| layer == longest)
}

/// Names of a higher layer, or of none, in a file of the host crate. Tests may name all.
pub fn check_layers(source: &Source, faults: &mut Vec<String>) {
    let path = &source.path;
    let Some(module) = path.strip_prefix(ROOM).filter(|_| source.is_rust()) else {
        return;
    };
    if module == "lib.rs" || module.starts_with("bin/") || module.contains("/tests/") {
        return;
    }
    let module = module.trim_end_matches(".rs").replace('/', "::");
    let Some(own) = layer_of(&module) else {
        faults.push(format!("{path}:1: a module of no layer"));
        return;
    };
    let code = source.code.split("#[cfg(test)]\nmod tests {").next();
    for (at, line) in code.unwrap_or_default().lines().enumerate() {
        for named in line.split("crate::").skip(1) {
            let end = named.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | ':')));
            let named = named[..end.unwrap_or(named.len())].trim_end_matches(':');
            match layer_of(named) {
                Some(layer) if layer <= own => {}
                Some(layer) => faults.push(format!(
                    "{path}:{}: `{}` lies above `{}`",
                    at + 1,
                    LAYERS[layer],
                    LAYERS[own]
                )),
                None => faults.push(format!(
                    "{path}:{}: `crate::{named}` is of no layer: name its module",
                    at + 1
                )),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn faults_of(path: &str, text: &str) -> Vec<String> {
        let mut faults = Vec::new();
        check_layers(
            &Source::new(PathBuf::from(path), text.to_owned()),
            &mut faults,
        );
        faults
    }

    #[test]
    fn a_higher_layer_is_a_fault() {
        for (path, text) in [
            ("host/src/error/plan.rs", "use crate::plan::Plan;\n"),
            ("host/src/plan/mod.rs", "use crate::backend::cuda;\n"),
            ("host/src/backend/cpu/mod.rs", "use crate::plan::Plan;\n"),
            ("host/src/tensor/mod.rs", "use crate::{Problem};\n"),
            ("host/src/elsewhere.rs", "\n"),
        ] {
            assert_eq!(faults_of(path, text).len(), 1, "{path}");
        }
    }

    #[test]
    fn a_lower_layer_and_tests_are_none() {
        for (path, text) in [
            ("host/src/plan/mod.rs", "use crate::backend::cpu;\n"),
            (
                "host/src/prepared/layouts.rs",
                "use crate::validate::Pass;\n",
            ),
            ("host/src/lib.rs", "pub use crate::plan::Plan;\n"),
            (
                "host/src/dtype.rs",
                "#[cfg(test)]\nmod tests {\n    use crate::Attention;\n}\n",
            ),
        ] {
            assert_eq!(faults_of(path, text), [""; 0], "{path}");
        }
    }
}
