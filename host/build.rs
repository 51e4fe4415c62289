//! With the feature `build-kernels`, compiles the kernels (`build/kernels.rs`). Without it there is nothing to do: the crate
//! `ferroflash-ptx` brings them.

#[cfg(feature = "build-kernels")]
#[path = "build/kernels.rs"]
mod kernels;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "build-kernels")]
    kernels::embed_all()?;
    Ok(())
}
