//! The Debian package: the files of all packages, a system user, a systemd unit and a configuration.

use std::path::Path;

use anyhow::Context;

use super::{Distribution, run_or_fail, set_modes, text};

/// Creates the user and restarts a running service after an upgrade.
const POSTINST: &str = r#"#!/bin/sh
set -e
if [ "$1" = configure ]; then
    if ! getent passwd sluicegate >/dev/null; then
        useradd --system --user-group --home-dir /var/lib/sluicegate --no-create-home \
            --shell /usr/sbin/nologin sluicegate
    fi
    # Only at the first installation: later, owner and mode are the administrator's, and the file may be gone.
    if [ -z "$2" ] && [ -e /etc/sluicegate/sluicegate.yaml ]; then
        chown root:sluicegate /etc/sluicegate/sluicegate.yaml
        chmod 640 /etc/sluicegate/sluicegate.yaml
    fi
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        systemctl try-restart sluicegate.service
    fi
fi
"#;

/// Stops the service before its removal.
const PRERM: &str = r#"#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now sluicegate.service
fi
"#;

/// Files that dpkg keeps as the administrator changed them.
const CONFFILES: &str = "/etc/sluicegate/sluicegate.yaml\n/etc/logrotate.d/sluicegate\n";

/// Deletes data and user when the package is purged.
const POSTRM: &str = r#"#!/bin/sh
set -e
if [ "$1" = purge ]; then
    rm -rf /var/lib/sluicegate /var/log/sluicegate
    userdel sluicegate 2>/dev/null || true
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
"#;

pub(super) fn build(distribution: &Distribution) -> anyhow::Result<()> {
    let root = distribution.output.join("deb");
    let control = root.join("DEBIAN");
    let (etc, units) = (root.join("etc/sluicegate"), root.join("usr/lib/systemd/system"));
    let rotation = root.join("etc/logrotate.d");
    for folder in [&control, &etc, &units, &rotation] {
        std::fs::create_dir_all(folder)?;
    }
    run_or_fail(&[
        "cp",
        "-a",
        &format!("{}/.", text(&distribution.tree)),
        &text(&root.join("usr")),
    ])?;
    std::fs::copy("deploy/systemd/sluicegate.service", units.join("sluicegate.service"))?;
    std::fs::copy("deploy/systemd/sluicegate.logrotate", rotation.join("sluicegate"))?;
    let starter = "crates/app/src/cli/starter/inference-limiter.yaml";
    std::fs::copy(starter, etc.join("sluicegate.yaml"))?;
    std::fs::write(control.join("conffiles"), CONFFILES)?;
    for (name, script) in [("postinst", POSTINST), ("prerm", PRERM), ("postrm", POSTRM)] {
        std::fs::write(control.join(name), script)?;
        run_or_fail(&["chmod", "u+x", &text(&control.join(name))])?;
    }
    let arch = architecture(distribution.arch)?;
    let version = &distribution.version;
    let libc = distribution.libc_min()?;
    let size = kilobytes(&root)?;
    let fields = format!(
        "Package: sluicegate\nVersion: {version}\nArchitecture: {arch}\nMaintainer: The Sluicegate authors\n\
         Installed-Size: {size}\nDepends: libc6 (>= {libc}), libgcc-s1, passwd\nRecommends: ca-certificates, logrotate\n\
         Section: net\nPriority: optional\n\
         Description: rate limiter for APIs, AI models and queues\n \
         Decides whether a request may go now, later or never, across every limit that applies to it:\n \
         a decision service, a pacing reverse proxy, and a job dispatcher with workers.\n"
    );
    std::fs::write(control.join("control"), fields)?;
    set_modes(&root)?;
    let file = distribution.output.join(format!("sluicegate_{version}_{arch}.deb"));
    // A low level of compression: the tests build the package, too.
    let (root_text, file) = (text(&root), text(&file));
    let options = ["--root-owner-group", "-Zxz", "-z2"];
    run_or_fail(&[&["dpkg-deb"], &options[..], &["--build", &root_text, &file]].concat())?;
    std::fs::remove_dir_all(&root)?;
    Ok(())
}

/// Returns the Debian name of an architecture.
fn architecture(arch: &str) -> anyhow::Result<&'static str> {
    let known = [("x86_64", "amd64"), ("aarch64", "arm64")];
    let found = known.into_iter().find(|(name, _)| *name == arch);
    found.map(|(_, debian)| debian).with_context(|| format!("unknown architecture {arch}"))
}

/// Returns the size of all files below a folder.
fn kilobytes(folder: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        bytes +=
            if kind.is_dir() { kilobytes(&entry.path())? * 1024 } else { entry.metadata()?.len() };
    }
    Ok(bytes.div_ceil(1024))
}
