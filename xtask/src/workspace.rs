//! Where things are, and how other programs are called.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The checkout that this program was compiled from.
pub struct Workspace {
    /// The folder of the workspace's manifest.
    pub root: PathBuf,
    /// cargo's folder for whatever is built.
    pub target: PathBuf,
}

impl Workspace {
    /// The workspace around xtask's own sources.
    pub fn find() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask is a folder of the workspace")?;
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| PathBuf::from("target"), PathBuf::from);
        Ok(Self {
            root: root.to_owned(),
            target: root.join(target),
        })
    }

    /// The folder for PTX, which the build script of `ferroflash` shares.
    pub fn ptx(&self) -> PathBuf {
        self.target.join("ptx")
    }

    /// The folder for tools that are not part of the system.
    pub fn tools(&self) -> PathBuf {
        self.target.join("tools")
    }

    /// The cargo that runs this program.
    pub fn cargo(&self) -> PathBuf {
        std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
    }

    /// What cargo says of the packages of the workspace with this manifest.
    pub fn metadata(&self, manifest: &str) -> Result<serde_json::Value> {
        let mut cargo = Command::new(self.cargo());
        cargo.current_dir(&self.root);
        let arguments = ["metadata", "--no-deps", "--format-version", "1"];
        let output = cargo
            .args(arguments)
            .args(["--manifest-path", manifest])
            .output()?;
        if !output.status.success() {
            bail!(
                "cargo metadata: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// cargo's `verb` (`build` or `run`) on the command `ferroflash`, in release, with these features beside those that it has by default.
    pub fn ferroflash(&self, verb: &str, features: &[&str]) -> Command {
        let mut command = Command::new(self.cargo());
        command.current_dir(&self.root).args([verb, "--release"]);
        command.args(["--package", "ferroflash-cli"]);
        for feature in features {
            command.args(["--features", feature]);
        }
        command
    }

    /// A shell in the root of the workspace.
    pub fn shell(&self) -> Result<xshell::Shell> {
        let shell = xshell::Shell::new()?;
        shell.change_dir(&self.root);
        Ok(shell)
    }
}
