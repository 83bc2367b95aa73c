//! LLNL's UMap, to compare with, where its sources are given: UMAP=DIR.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// UMap with a program that touches what it maps; removed when this is dropped.
pub struct Umap {
    directory: PathBuf,
}

impl Umap {
    /// Builds what UMAP names; says why where that is not set or does not compile.
    pub fn given() -> Result<Self, String> {
        let sources = std::env::var_os("UMAP").map(PathBuf::from).ok_or("UMAP=DIR gives UMap's sources")?;
        let directory = std::env::temp_dir().join(format!("bench-vm-umap-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let umap = Self { directory };
        umap.build(&sources).map_err(|why| format!("UMap does not compile: {why}"))?;
        Ok(umap)
    }

    fn build(&self, sources: &Path) -> Result<(), String> {
        // What its cmake would write.
        let config =
            "#define UMAP_VERSION_MAJOR 2\n#define UMAP_VERSION_MINOR 1\n#define UMAP_VERSION_PATCH 0\n";
        let include = self.directory.join("umap");
        std::fs::create_dir_all(&include).map_err(|error| error.to_string())?;
        std::fs::write(include.join("config.h"), config).map_err(|error| error.to_string())?;
        let walk = self.directory.join("umap_walk.cc");
        std::fs::write(&walk, include_str!("umap_walk.cc")).map_err(|error| error.to_string())?;
        let source = sources.join("src");
        let mut command = Command::new("c++");
        command.args(["-O2", "-std=c++17", "-w", "-pthread", "-o"]).arg(self.directory.join("umap_walk"));
        command.arg("-I").arg(&self.directory).arg("-I").arg(&source).arg(&walk);
        for part in ["umap", "umap/store", "umap/util"] {
            let entries = std::fs::read_dir(source.join(part)).map_err(|error| error.to_string())?;
            let is_source = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "cpp");
            command.args(entries.flatten().map(|entry| entry.path()).filter(is_source));
        }
        let output = command.output().map_err(|error| format!("c++: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("c++ failed").to_owned())
    }

    /// Pages a second of `file` touched in `order`, 4 KiB a fault, with a buffer of so many pages or of the size that UMap chooses.
    pub fn walk(&self, file: &Path, order: &[u64], buffer_pages: Option<u64>) -> f64 {
        let path = self.directory.join("order");
        let mut words = std::fs::File::create(&path).unwrap();
        let bytes: Vec<u8> = order.iter().flat_map(|page| page.to_le_bytes()).collect();
        words.write_all(&bytes).unwrap();
        let output = Command::new(self.directory.join("umap_walk"))
            .env("UMAP_PAGESIZE", "4096")
            .envs(buffer_pages.map(|pages| ("UMAP_BUFSIZE", pages.to_string())))
            .args([file, path.as_path()])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        said.trim().parse().unwrap_or_else(|_| panic!("{said}{}", String::from_utf8_lossy(&output.stderr)))
    }
}

impl Drop for Umap {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
