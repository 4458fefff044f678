//! TLS with PEM files that can be replaced while the server runs.
//!
//! A reload builds a new configuration and swaps it in, including the CA of the clients. Sessions
//! of the old configuration cannot be resumed, so a client whose CA is no longer trusted must
//! repeat the handshake. Open connections stay open.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};
use sluicegate_config::ListenerTls;
use sluicegate_core::Timestamp;

/// The TLS configuration of a listener.
#[derive(Debug)]
pub struct Tls {
    files: ListenerTls,
    config: ArcSwap<ServerConfig>,
}

/// A PEM file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read {}: check that it exists and that this user may read it", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is not PEM.
    #[error("{} is not valid PEM: {}: check that the file is complete", path.display(), in_words(source))]
    Pem {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        source: pem::Error,
    },
    /// The file is PEM but contains something else.
    #[error(
        "{} contains no {wanted}: expected a block that begins with -----BEGIN {label}-----",
        path.display()
    )]
    Empty {
        /// The file.
        path: PathBuf,
        /// The expected content.
        wanted: &'static str,
        /// The PEM label of the expected content.
        label: &'static str,
    },
    /// The key or certificate cannot be used.
    #[error("{} contains a {what} that cannot be used: {source}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The content of the file.
        what: &'static str,
        /// The error of rustls.
        source: rustls::Error,
    },
    /// The key belongs to another certificate.
    #[error(
        "the key in {} does not belong to the first certificate in {}: replace both files together",
        key.display(), certificate.display()
    )]
    Mismatch {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the key.
        key: PathBuf,
    },
    /// The CAs of the clients cannot be used for verification.
    #[error("{} cannot be used to verify clients: {source}", path.display())]
    ClientCa {
        /// The file.
        path: PathBuf,
        /// The error of rustls.
        source: VerifierBuilderError,
    },
}

impl Tls {
    /// Loads the files.
    pub fn load(files: ListenerTls) -> Result<Self, Error> {
        let config = ArcSwap::from_pointee(config(&files)?);
        Ok(Self { files, config })
    }

    /// Loads the files again, for new connections. After an error the old certificates stay in use.
    pub fn reload(&self) -> Result<(), Error> {
        self.config.store(Arc::new(config(&self.files)?));
        Ok(())
    }

    /// Returns the configuration for a new connection.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }
}

/// Returns the end of the validity of the certificate in a file that expires first.
pub fn expiry(path: &Path) -> Result<Timestamp, Error> {
    let mut first = Timestamp::from_micros(u64::MAX);
    for certificate in certificates(path)? {
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).map_err(|_| {
            let source = rustls::Error::InvalidCertificate(rustls::CertificateError::BadEncoding);
            Error::Unusable { path: path.to_owned(), what: "certificate", source }
        })?;
        let seconds = parsed.validity().not_after.timestamp();
        first = first.min(Timestamp::from_secs(u64::try_from(seconds).unwrap_or(0)));
    }
    Ok(first)
}

/// Formats an error of the parser, which prints text as lists of numbers.
fn in_words(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            format!("the line -----END {}----- is missing", String::from_utf8_lossy(end_marker))
        }
        pem::Error::IllegalSectionStart { line } => {
            format!("cannot parse the line {}", String::from_utf8_lossy(line))
        }
        error => error.to_string(),
    }
}

fn config(files: &ListenerTls) -> Result<ServerConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let key = certified_key(files, &provider)?;
    let verifier = match &files.client_ca {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(path) => client_verifier(path, &provider)?,
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])
        .expect("ring has cipher suites for both versions")
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn certified_key(files: &ListenerTls, provider: &CryptoProvider) -> Result<CertifiedKey, Error> {
    let ListenerTls { cert: certificate, key, .. } = files;
    let chain = certificates(certificate)?;
    let der = private_key(key)?;
    let unusable = |path: &Path, what| {
        let path = path.to_owned();
        move |source| Error::Unusable { path, what, source }
    };
    let signer =
        provider.key_provider.load_private_key(der).map_err(unusable(key, "private key"))?;
    let certified = CertifiedKey::new(chain, signer);
    match certified.keys_match() {
        // Some keys do not support the check; a wrong one then fails in the first handshake.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(Error::Mismatch { certificate: certificate.clone(), key: key.clone() })
        }
        Err(error) => Err(unusable(certificate, "certificate")(error)),
    }
}

fn client_verifier(
    path: &Path,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|source| Error::Unusable {
            path: path.to_owned(),
            what: "certificate",
            source,
        })?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map_err(|source| Error::ClientCa { path: path.to_owned(), source })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.map_err(|source| Error::Pem { path: path.to_owned(), source })?;
    if found.is_empty() {
        let path = path.to_owned();
        return Err(Error::Empty { path, wanted: "certificate", label: "CERTIFICATE" });
    }
    Ok(found)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|source| {
        let path = path.to_owned();
        match source {
            pem::Error::NoItemsFound => {
                Error::Empty { path, wanted: "private key", label: "PRIVATE KEY" }
            }
            source => Error::Pem { path, source },
        }
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::Unreadable { path: path.to_owned(), source })
}
