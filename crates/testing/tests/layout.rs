//! No test is left out of the programs that several files of tests make together.

use std::fs;
use std::path::{Path, PathBuf};

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).into_iter().flatten().map(|entry| entry.expect("an entry").path())
}

#[test]
fn every_file_of_tests_is_a_module_of_its_program() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the directory of all crates");
    let programs = entries(crates).flat_map(|package| entries(&package.join("tests")).collect::<Vec<_>>());
    let mut files = 0;
    for program in programs {
        let Ok(main) = fs::read_to_string(program.join("main.rs")) else { continue };
        for file in
            entries(&program).filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
        {
            let name = file.file_stem().expect("a name").to_string_lossy();
            let module = format!("\nmod {name};\n");
            assert!(name == "main" || main.contains(&module), "{}: in no program", file.display());
            files += 1;
        }
    }
    assert!(files > 0, "there are programs of several files");
}
