//! The bytes to learn, those held out, and the batches made of them.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// Files joined, the last tenth of each held out.
#[derive(Default)]
pub struct Text {
    pub train: Vec<u8>,
    pub held_out: Vec<u8>,
    pub files: usize,
}

/// Tokens and what follows each of them.
pub struct Batch {
    /// u32 `[batch, seqlen]`.
    pub tokens: Tensor,
    /// u32 `[batch · seqlen]`.
    pub next: Tensor,
}

impl Text {
    /// Files, and of folders all files with one of these extensions; a text that comes twice is taken once.
    pub fn read(paths: &[PathBuf], extensions: &[&str]) -> Result<Text> {
        let mut files = Vec::new();
        for path in paths {
            collect(path, extensions, &mut files)?;
        }
        let mut text = Text::default();
        let mut seen = HashSet::new();
        for path in files {
            let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
            if !bytes.is_empty() && seen.insert(bytes.clone()) {
                text.add(&bytes);
            }
        }
        Ok(text)
    }

    /// Another file.
    pub fn add(&mut self, bytes: &[u8]) {
        let (train, held_out) = bytes.split_at(bytes.len() - bytes.len() / 10);
        self.train.extend_from_slice(train);
        self.held_out.extend_from_slice(held_out);
        self.files += 1;
    }

    /// Whether sequences of this length can be drawn from both parts.
    pub fn check(&self, seqlen: usize) -> Result<()> {
        let (train, held_out) = (self.train.len(), self.held_out.len());
        ensure!(
            train.min(held_out) > seqlen,
            "the text has {train} bytes to learn and {held_out} held out; allowed: more than seqlen ({seqlen}) of each. \
             --text takes files and folders"
        );
        Ok(())
    }

    /// At most `count` batches of the held-out part, the same ones each time.
    pub fn validation(
        &self,
        count: usize,
        batch: usize,
        seqlen: usize,
        device: &Device,
    ) -> Result<Vec<Batch>> {
        let windows = (self.held_out.len() - 1) / seqlen;
        let starts: Vec<usize> = (0..windows).map(|i| i * seqlen).collect();
        starts
            .chunks(batch)
            .take(count)
            .map(|starts| Batch::of(&self.held_out, starts, seqlen, device))
            .collect()
    }
}

impl Batch {
    fn of(bytes: &[u8], starts: &[usize], seqlen: usize, device: &Device) -> Result<Batch> {
        let from = |shift: usize| -> Vec<u32> {
            let window = |&start: &usize| &bytes[start + shift..start + shift + seqlen];
            starts
                .iter()
                .flat_map(window)
                .map(|&byte| byte.into())
                .collect()
        };
        Ok(Batch {
            tokens: Tensor::from_vec(from(0), (starts.len(), seqlen), device)?,
            next: Tensor::from_vec(from(1), starts.len() * seqlen, device)?,
        })
    }
}

/// Draws batches. One seed gives the same batches each time.
pub struct Sampler<'a> {
    bytes: &'a [u8],
    rng: StdRng,
}

impl<'a> Sampler<'a> {
    pub fn new(bytes: &'a [u8], seed: u64) -> Sampler<'a> {
        Sampler {
            bytes,
            rng: StdRng::seed_from_u64(seed),
        }
    }

    /// Sequences from random places of the text, which is longer than `seqlen`.
    pub fn draw(&mut self, batch: usize, seqlen: usize, device: &Device) -> Result<Batch> {
        let places = self.bytes.len() - seqlen;
        let starts: Vec<usize> = (0..batch)
            .map(|_| self.rng.random_range(0..places))
            .collect();
        Batch::of(self.bytes, &starts, seqlen, device)
    }
}

/// Files below a path, by name. Hidden folders and cargo's `target` are left out.
fn collect(path: &Path, extensions: &[&str], files: &mut Vec<PathBuf>) -> Result<()> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let mut entries = fs::read_dir(path)
        .and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>())
        .with_context(|| path.display().to_string())?;
    entries.sort_by_key(fs::DirEntry::path);
    for entry in entries {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if entry.file_type()?.is_dir() {
            if !name.starts_with('.') && name != "target" {
                collect(&path, extensions, files)?;
            }
        } else if extensions.iter().any(|end| name.ends_with(end)) && path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}
