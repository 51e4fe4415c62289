//! The output file: written under a temporary name, then renamed, so that nobody ever sees half of it.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use safetensors::SafeTensorError;
use safetensors::tensor::TensorView;

use crate::failure::Failure;
use crate::input::Bytes;

/// One tensor to write.
#[derive(Debug)]
pub struct Result {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub dtype: safetensors::Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its elements, little-endian.
    pub bytes: Vec<u8>,
}

impl Result {
    /// From elements.
    pub fn new<T: Bytes>(name: &'static str, shape: Vec<usize>, elements: &[T]) -> Result {
        Result {
            name,
            dtype: match T::DTYPE {
                ferroflash::Dtype::Bf16 => safetensors::Dtype::BF16,
                ferroflash::Dtype::F16 => safetensors::Dtype::F16,
                ferroflash::Dtype::F32 => safetensors::Dtype::F32,
            },
            shape,
            bytes: bytemuck::cast_slice(elements).to_vec(),
        }
    }
}

/// Refuses an output, of this option, that is the input, by whatever name.
pub fn not_the_input(
    option: &str,
    input: &Path,
    output: &Path,
) -> std::result::Result<(), Failure> {
    match (input.canonicalize(), output.canonicalize()) {
        (Ok(input), Ok(given)) if input == given => Err(Failure::Option(format!(
            "{option} {} is the input",
            output.display()
        ))),
        _ => Ok(()),
    }
}

/// Writes the results.
pub fn write(
    path: &Path,
    results: &[Result],
    metadata: HashMap<String, String>,
) -> std::result::Result<(), Failure> {
    let views = results.iter().map(|result| {
        let view = TensorView::new(result.dtype, result.shape.clone(), &result.bytes)?;
        Ok((result.name, view))
    });
    let views = views.collect::<std::result::Result<Vec<_>, SafeTensorError>>();
    let bytes = views.and_then(|views| safetensors::serialize(views, Some(metadata)));
    let bytes = bytes.map_err(Failure::of_file(path))?;
    replace(path, &bytes)
}

/// Puts a file there, or in place of the one that is there, as a whole.
pub fn replace(path: &Path, bytes: &[u8]) -> std::result::Result<(), Failure> {
    let io = Failure::of_file(path);
    // Of `name` alone the parent is "".
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let mut partial = tempfile::Builder::new();
    partial.prefix(".").suffix(".partial");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As of other files: what the process takes away is taken away.
        partial.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = partial
        .tempfile_in(folder.unwrap_or(Path::new(".")))
        .map_err(io)?;
    file.write_all(bytes).map_err(io)?;
    file.persist(path).map_err(|refused| io(refused.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the folder holds but for the output stays as it is, links and their targets too, whatever their names.
    #[cfg(unix)]
    #[test]
    fn a_link_beside_the_output_is_not_followed() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let folder = tempfile::tempdir().unwrap();
        let [output, other] = ["o.safetensors", "other"].map(|name| folder.path().join(name));
        std::fs::write(&other, "somebody's").unwrap();
        let name = format!("o.safetensors.{}.partial", std::process::id());
        symlink(&other, folder.path().join(&name)).unwrap();
        for bytes in [&b"first"[..], b"second"] {
            replace(&output, bytes).unwrap();
            assert_eq!(std::fs::read(&output).unwrap(), bytes);
        }
        assert_eq!(std::fs::read(&other).unwrap(), b"somebody's");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
        // Others may read it, as they may what is written beside it.
        let mode = |path| std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&output), mode(&other));
        // A link in the place of the output is replaced, not followed.
        symlink(&other, folder.path().join("link")).unwrap();
        replace(&folder.path().join("link"), b"third").unwrap();
        assert_eq!(std::fs::read(&other).unwrap(), b"somebody's");
    }

    #[test]
    fn an_output_that_cannot_be_written_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("folder");
        std::fs::create_dir(&taken).unwrap();
        std::fs::write(taken.join("inside"), "").unwrap();
        let Err(Failure::File { path, .. }) = replace(&taken, b"bytes") else {
            panic!("a folder was replaced");
        };
        assert_eq!(path, taken);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
