//! [`Dependencies`]: the crates that the binary contains, for the SBOM and the list of licenses.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

use crate::sh;

/// The crates of the binary, in the order of their names.
pub(super) struct Dependencies(Vec<Dependency>);

/// A crate that the binary contains.
struct Dependency {
    name: String,
    version: String,
    license: String,
    /// Address of its repository; empty if unknown.
    repository: String,
    /// SHA-256 of its package, unless it is a crate of this workspace.
    checksum: Option<String>,
    folder: PathBuf,
    features: Vec<String>,
}

/// A C library whose sources are in a crate.
struct BundledLibrary {
    name: &'static str,
    version: String,
    /// SPDX identifier.
    license: &'static str,
}

/// The package of the command line.
const PACKAGE: &str = "sluicegate-cli";

impl Dependencies {
    /// Reads the dependencies of the command line on this platform, without those of tests and
    /// build scripts.
    pub(super) fn read() -> anyhow::Result<Self> {
        let host = sh::read(&["rustc", "-vV"])?;
        let host = host.lines().find_map(|line| line.strip_prefix("host: ")).context("no host")?;
        let line =
            ["cargo", "metadata", "--format-version=1", "--locked", "--filter-platform", host];
        let metadata: Value = serde_json::from_str(&sh::read(&line)?)?;
        let lockfile: toml::Table = toml::from_str(&std::fs::read_to_string("Cargo.lock")?)?;
        Self::of(&metadata, &lockfile)
    }

    fn of(metadata: &Value, lockfile: &toml::Table) -> anyhow::Result<Self> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let nodes: BTreeMap<String, Value> = list(&metadata["resolve"]["nodes"])
            .into_iter()
            .map(|node| (word(&node, "id"), node))
            .collect();
        let packages: BTreeMap<String, Value> = list(&metadata["packages"])
            .into_iter()
            .map(|package| (word(&package, "id"), package))
            .collect();
        let root = packages.iter().find(|(_, package)| package["name"] == PACKAGE);
        let mut waiting = vec![root.with_context(|| format!("no package {PACKAGE}"))?.0.clone()];
        let mut found = BTreeSet::new();
        while let Some(id) = waiting.pop() {
            if !found.insert(id.clone()) {
                continue;
            }
            let node = nodes.get(&id).with_context(|| format!("{id} is not resolved"))?;
            for dependency in list(&node["deps"]) {
                // `null` is a normal dependency.
                if list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()) {
                    waiting.push(word(&dependency, "pkg"));
                }
            }
        }
        let checksums = checksums(lockfile);
        let mut dependencies: Vec<_> = found
            .iter()
            .filter_map(|id| packages.get(id))
            .map(|package| {
                let (name, version) = (word(package, "name"), word(package, "version"));
                let manifest = PathBuf::from(word(package, "manifest_path"));
                Dependency {
                    checksum: checksums.get(&(name.clone(), version.clone())).cloned(),
                    license: word(package, "license"),
                    repository: word(package, "repository"),
                    folder: manifest.parent().unwrap_or(Path::new("")).to_owned(),
                    features: word_list(&nodes[&word(package, "id")]["features"]),
                    name,
                    version,
                }
            })
            .collect();
        dependencies.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        Ok(Self(dependencies))
    }

    /// Returns the software bill of materials, in the JSON format of CycloneDX 1.5.
    pub(super) fn sbom(&self, version: &str) -> anyhow::Result<String> {
        let component = |dependency: &Dependency| {
            let Dependency { name, version, license, checksum, repository, .. } = dependency;
            let mut component = json!({
                "type": "library",
                "bom-ref": format!("{name}@{version}"),
                "name": name,
                "version": version,
                "purl": format!("pkg:cargo/{name}@{version}"),
                "licenses": [{ "expression": expression(license) }],
            });
            if let Some(checksum) = checksum {
                component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
            }
            if !repository.is_empty() {
                let reference = json!({ "type": "vcs", "url": repository });
                component["externalReferences"] = json!([reference]);
            }
            component
        };
        let others = self.0.iter().filter(|dependency| dependency.name != PACKAGE);
        let mut components: Vec<_> = others.map(component).collect();
        for dependency in &self.0 {
            components.extend(dependency.bundled()?.map(|library| library.component(dependency)));
        }
        let sbom = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {
                "component": {
                    "type": "application",
                    "bom-ref": format!("sluicegate@{version}"),
                    "name": "sluicegate",
                    "version": version,
                    "licenses": [{ "expression": "Apache-2.0" }],
                },
            },
            "components": components,
        });
        Ok(format!("{sbom:#}\n"))
    }

    /// Returns all dependencies with their licenses, and each license text once.
    pub(super) fn licenses(&self) -> anyhow::Result<String> {
        let mut list = String::from("This program contains the following libraries.\n\n");
        let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for dependency in self.0.iter().filter(|dependency| dependency.checksum.is_some()) {
            let Dependency { name, version, license, repository, folder, .. } = dependency;
            list += format!("{name} {version}: {license} {repository}").trim_end();
            list += "\n";
            let mut files = Vec::new();
            license_files(folder, &mut files).with_context(|| format!("no sources of {name}"))?;
            for path in files {
                let text = String::from_utf8_lossy(&std::fs::read(&path)?).trim().to_owned();
                let part = path.parent().and_then(|part| part.strip_prefix(folder).ok());
                let part = part.unwrap_or(Path::new("")).display().to_string();
                // The sources of others in a crate have licenses of their own.
                let part = if part.is_empty() { part } else { format!(" ({part})") };
                texts.entry(text).or_default().push(format!("{name} {version}{part}"));
            }
        }
        for (text, names) in texts {
            list += &format!("\n\n{}\n{}\n\n{text}\n", "=".repeat(80), names.join(", "));
        }
        Ok(list)
    }
}

impl Dependency {
    /// Returns the C library that the crate compiles into the program. Fails if its version is not where
    /// it was.
    fn bundled(&self) -> anyhow::Result<Option<BundledLibrary>> {
        let header = |path: &str| {
            let path = self.folder.join(path);
            std::fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))
        };
        let library = match self.name.as_str() {
            "libsqlite3-sys" => BundledLibrary {
                name: "sqlite",
                version: defined(&header("sqlite3/sqlite3.h")?, "SQLITE_VERSION")?,
                license: "blessing",
            },
            "libmimalloc-sys" => {
                let branch =
                    if self.features.iter().any(|name| name == "v2") { "v2" } else { "v3" };
                let header = header(&format!("c_src/mimalloc/{branch}/include/mimalloc.h"))?;
                // 30302 is 3.3.2.
                let number: u32 = defined(&header, "MI_MALLOC_VERSION")?.parse()?;
                let (major, minor, patch) = (number / 10_000, number / 100 % 100, number % 100);
                let version = format!("{major}.{minor}.{patch}");
                BundledLibrary { name: "mimalloc", version, license: "MIT" }
            }
            _ => return Ok(None),
        };
        Ok(Some(library))
    }
}

impl BundledLibrary {
    /// Returns the entry of the SBOM. `within` is the crate that contains the sources.
    fn component(&self, within: &Dependency) -> Value {
        let Self { name, version, license } = self;
        let purl = format!("pkg:generic/{name}@{version}");
        json!({
            "type": "library",
            // A crate may have the same name.
            "bom-ref": purl,
            "name": name,
            "version": version,
            "purl": purl,
            "licenses": [{ "expression": license }],
            "description": format!("C sources in the crate {} {}", within.name, within.version),
        })
    }
}

/// Returns the value of a macro in a C header, without quotation marks.
fn defined(header: &str, name: &str) -> anyhow::Result<String> {
    let value = header.lines().find_map(|line| {
        let mut words = line.strip_prefix("#define ")?.split_whitespace();
        (words.next()? == name).then(|| words.next())?
    });
    Ok(value
        .with_context(|| format!("the header does not define {name}"))?
        .trim_matches('"')
        .to_owned())
}

/// Adds the files with licenses and copyright notices below a folder, in the order of their paths.
fn license_files(folder: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(folder)?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        let file = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_dir() {
            license_files(&path, found)?;
        } else if ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"]
            .iter()
            .any(|word| file.starts_with(word))
        {
            found.push(path);
        }
    }
    Ok(())
}

/// Returns an SPDX expression: older crates separate alternatives with a slash.
fn expression(license: &str) -> String {
    license.replace('/', " OR ").replace("  ", " ")
}

/// Returns the checksums of the packages in a lockfile, by name and version.
fn checksums(lockfile: &toml::Table) -> BTreeMap<(String, String), String> {
    let packages = lockfile.get("package").and_then(toml::Value::as_array).cloned();
    let field = |package: &toml::Value, name: &str| Some(package.get(name)?.as_str()?.to_owned());
    let packages = packages.unwrap_or_default();
    let entries = packages.iter().filter_map(|package| {
        let names = (field(package, "name")?, field(package, "version")?);
        Some((names, field(package, "checksum")?))
    });
    entries.collect()
}

fn word_list(value: &Value) -> Vec<String> {
    let words = value.as_array().into_iter().flatten().filter_map(Value::as_str);
    words.map(str::to_owned).collect()
}

fn word(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_of_tests_are_not_in_the_binary() {
        let metadata = json!({
            "packages": [
                {"id": "s", "name": PACKAGE, "version": "1.0.0", "license": "Apache-2.0", "manifest_path": "/s/Cargo.toml"},
                {"id": "a", "name": "a", "version": "0.1.0", "license": "MIT/Apache-2.0", "manifest_path": "/a/Cargo.toml", "repository": "https://a"},
                {"id": "t", "name": "t", "version": "0.1.0", "license": "MIT", "manifest_path": "/t/Cargo.toml"},
            ],
            "resolve": {"nodes": [
                {"id": "s", "deps": [
                    {"pkg": "a", "dep_kinds": [{"kind": null}]},
                    {"pkg": "t", "dep_kinds": [{"kind": "dev"}]},
                ]},
                {"id": "a", "deps": []},
                {"id": "t", "deps": []},
            ]},
        });
        let lockfile = "[[package]]\nname = \"a\"\nversion = \"0.1.0\"\nchecksum = \"abc\"\n";
        let lockfile = toml::from_str(lockfile).unwrap();
        let dependencies = Dependencies::of(&metadata, &lockfile).unwrap();
        let sbom: Value = serde_json::from_str(&dependencies.sbom("1.0.0").unwrap()).unwrap();
        let components = sbom["components"].as_array().unwrap();
        assert_eq!(components.len(), 1, "{sbom}");
        assert_eq!(components[0]["purl"], "pkg:cargo/a@0.1.0");
        assert_eq!(components[0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(components[0]["hashes"][0]["content"], "abc");
    }

    #[test]
    fn versions_are_read_from_headers() {
        let header =
            "#define SQLITE_VERSION_NUMBER 3050002\n#define SQLITE_VERSION        \"3.50.2\"\n";
        assert_eq!(defined(header, "SQLITE_VERSION").unwrap(), "3.50.2");
        assert_eq!(defined("#define MI 30302  // x\n", "MI").unwrap(), "30302");
        assert!(defined("#define", "MI").is_err());
    }

    #[test]
    fn licenses_inside_of_a_crate_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        std::fs::create_dir_all(folder.join("c_src/v3")).unwrap();
        for name in ["license.txt", "lib.rs", "c_src/v3/LICENSE", "c_src/v3/a.c"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let mut found = Vec::new();
        license_files(folder, &mut found).unwrap();
        assert_eq!(found, [folder.join("c_src/v3/LICENSE"), folder.join("license.txt")]);
    }
}
