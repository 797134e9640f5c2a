//! The documents tell the truth where that can be checked: tests that SPECIFICATION.md names exist, links lead somewhere, and
//! every flag of the configuration is described.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn tests_that_the_specification_names_exist() {
    let text = read(&root().join("SPECIFICATION.md"));
    let mut named = 0;
    // Code spans alternate with text.
    for span in text.split('`').skip(1).step_by(2) {
        let span = span.split_whitespace().collect::<Vec<_>>().join(" ");
        let Some((file, tests)) = span.split_once(": ").filter(|(file, _)| file.contains('/')) else { continue };
        let source = read(&root().join(file));
        for test in tests.split(", ") {
            assert!(source.contains(&format!("fn {test}(")), "{file} has no test {test}");
            named += 1;
        }
    }
    assert!(named > 30, "only {named} tests are named");
}

#[test]
fn promises_have_numbers_of_their_own() {
    let text = read(&root().join("SPECIFICATION.md"));
    let mut taken = std::collections::BTreeSet::new();
    for line in text.lines() {
        let Some((number, _)) = line.split_once(". ").filter(|(number, _)| number.parse::<u32>().is_ok()) else {
            continue;
        };
        assert!(taken.insert(number.to_owned()), "two promises have number {number}");
    }
    assert!(taken.len() > 80, "only {} promises", taken.len());
}

#[test]
fn links_lead_somewhere() {
    let mut documents: Vec<PathBuf> = Vec::new();
    for folder in [root(), root().join("docs"), root().join("docs/decisions")] {
        let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        documents.extend(files.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    for document in documents {
        for link in read(&document).split("](").skip(1) {
            let target = link.split(')').next().unwrap_or_default();
            if target.starts_with("http") || target.starts_with('#') {
                continue;
            }
            let path = document.parent().unwrap().join(target.split('#').next().unwrap_or_default());
            assert!(path.exists(), "{} links to {target}, which is not there", document.display());
        }
    }
}

#[test]
fn every_flag_of_serve_is_described() {
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_willow")).args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let text = read(&root().join("docs/configuration.md"));
    let flags: Vec<&str> = help.split_whitespace().filter(|word| word.starts_with("--")).collect();
    assert!(flags.contains(&"--media") && flags.len() > 10);
    for flag in flags {
        let flag = flag.trim_end_matches([',', '.', ';', ')', ']']);
        assert!(
            flag == "--help" || text.contains(&format!("`{flag}`")) || text.contains(&format!("`{flag} ")),
            "{flag}"
        );
    }
}
