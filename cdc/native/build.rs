//! Records in the module the checksum of its sources: cdc.native rejects a module that was built from other sources.

use std::path::PathBuf;
use std::{env, fs, io};

fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

fn main() -> io::Result<()> {
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("src");
    let mut paths = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    paths.sort();
    let mut sources = Vec::new();
    for path in paths {
        sources.extend(fs::read(path)?);
    }
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rustc-env=SOURCES_CRC32={}", crc32(&sources));
    Ok(())
}
