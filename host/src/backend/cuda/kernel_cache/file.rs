//! The contents of a file of a kernel cache: a header, then a cubin.

use sha2::{Digest, Sha256};

use super::source::Key;

/// The format of files, which is part of their keys: it grows with every change of the header, and of how cubins are made.
pub(super) const FORMAT: u32 = 2;

/// The first bytes of a file.
const MAGIC: [u8; 8] = *b"ffcubin\n";

/// Bytes of each of the header's fields: what the file is, its format, its key, length and digest of the cubin.
const FIELDS: [usize; 5] = [MAGIC.len(), 4, 32, 8, 32];

/// Bytes of the header.
const HEADER: usize = FIELDS[0] + FIELDS[1] + FIELDS[2] + FIELDS[3] + FIELDS[4];

/// Why a file is not a valid file of a kernel cache.
///
/// The [module](crate::backend::cuda) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// It is something else.
    #[error("not a file of a kernel cache")]
    Foreign,
    /// It is of another format.
    #[error("a file of format {found}; this program reads format {needed}")]
    Format {
        /// The file's format.
        found: u32,
        /// The one that is read.
        needed: u32,
    },
    /// It was compiled from something other than its name says.
    #[error("the file of another kernel")]
    OtherKernel,
    /// A part is missing, or bytes follow its end.
    #[error("the cubin has {found} bytes; {needed} were written")]
    Length {
        /// Bytes after the header.
        found: u64,
        /// Bytes that the header says.
        needed: u64,
    },
    /// Its bytes differ from those that were written.
    #[error("the cubin is not what was written")]
    Contents,
}

/// A file's bytes.
pub(super) fn with_header(key: Key, cubin: &[u8]) -> Vec<u8> {
    let digest = Sha256::digest(cubin);
    let n_bytes = cubin.len() as u64;
    let fields: [&[u8]; 6] = [
        &MAGIC,
        &FORMAT.to_le_bytes(),
        &key.0,
        &n_bytes.to_le_bytes(),
        &digest,
        cubin,
    ];
    fields.concat()
}

/// The cubin in a file's bytes, if they are complete and of this key.
pub(super) fn cubin(key: Key, bytes: &[u8]) -> Result<&[u8], Damage> {
    if !bytes.starts_with(&MAGIC) {
        return Err(Damage::Foreign);
    }
    let (header, cubin) = bytes.split_at_checked(HEADER).ok_or(Damage::Length {
        found: 0,
        needed: HEADER as u64,
    })?;
    let mut rest = header;
    let [_, format, of_key, n_bytes, digest] = FIELDS.map(|len| {
        let (field, behind) = rest.split_at(len);
        rest = behind;
        field
    });
    let number = |field: &[u8]| {
        let digits = field.iter().rev();
        digits.fold(0, |number, &byte| number << 8 | u64::from(byte))
    };
    let format = number(format) as u32;
    if format != FORMAT {
        return Err(Damage::Format {
            found: format,
            needed: FORMAT,
        });
    }
    if of_key != key.0 {
        return Err(Damage::OtherKernel);
    }
    let (found, needed) = (cubin.len() as u64, number(n_bytes));
    if found != needed {
        return Err(Damage::Length { found, needed });
    }
    if digest != &Sha256::digest(cubin)[..] {
        return Err(Damage::Contents);
    }
    Ok(cubin)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key([7; 32]);

    #[test]
    fn a_whole_file_gives_its_cubin() {
        for cubin_of in [&b""[..], b"\x7fELF and more"] {
            assert_eq!(cubin(KEY, &with_header(KEY, cubin_of)), Ok(cubin_of));
        }
    }

    #[test]
    fn no_other_byte_and_no_other_length_is_taken() {
        let whole = with_header(KEY, b"\x7fELF and more");
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            let expected = match at {
                0..8 => Damage::Foreign,
                8..12 => {
                    let found = FORMAT ^ 0x10 << (8 * (at - 8));
                    let needed = FORMAT;
                    Damage::Format { found, needed }
                }
                12..44 => Damage::OtherKernel,
                44..52 => Damage::Length {
                    found: 13,
                    needed: 13 ^ 0x10 << (8 * (at - 44)),
                },
                _ => Damage::Contents,
            };
            assert_eq!(cubin(KEY, &bytes), Err(expected), "byte {at}");
            assert!(cubin(KEY, &whole[..at]).is_err(), "{at} bytes");
        }
        let longer = [&whole[..], b"x"].concat();
        let (found, needed) = (14, 13);
        assert_eq!(cubin(KEY, &longer), Err(Damage::Length { found, needed }));
        assert_eq!(cubin(Key([8; 32]), &whole), Err(Damage::OtherKernel));
    }
}
