//! TLS from PEM files, which may be replaced while the server runs.
//!
//! A reload builds a whole new configuration and swaps it in. It reaches the clients' CA too, and
//! sessions that the old one began can't be resumed: a client whose CA is no longer trusted has to
//! shake hands again. Connections that are open stay open.

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

/// The certificates of a listener.
#[derive(Debug)]
pub struct Tls {
    files: Files,
    config: ArcSwap<ServerConfig>,
}

/// Where the certificates are, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The server's certificate, followed by those that lead to its CA.
    pub certificate: PathBuf,
    /// The private key of the first certificate.
    pub key: PathBuf,
    /// The CAs that clients must have their certificates from; without them, clients need none.
    pub client_ca: Option<PathBuf>,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It can't be read.
    #[error("can't read {}: {source}: does it exist, and may this user read it?", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is not PEM.
    #[error("{} is not valid PEM: {}: was it cut off?", path.display(), in_words(source))]
    Pem {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        source: pem::Error,
    },
    /// It is PEM of something else.
    #[error(
        "{} holds no {wanted}: expected a block that begins with -----BEGIN {label}-----",
        path.display()
    )]
    Empty {
        /// The file.
        path: PathBuf,
        /// What should be in it.
        wanted: &'static str,
        /// How PEM calls that.
        label: &'static str,
    },
    /// Its key or certificate can't be used.
    #[error("{} holds a {what} that can't be used: {source}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is in it.
        what: &'static str,
        /// What rustls says.
        source: rustls::Error,
    },
    /// The key belongs to another certificate.
    #[error(
        "the key in {} does not belong to the first certificate in {}: were they renewed together?",
        key.display(), certificate.display()
    )]
    Mismatch {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the key.
        key: PathBuf,
    },
    /// The clients' CAs make no verifier.
    #[error("{} can't be used to verify clients: {source}", path.display())]
    ClientCa {
        /// The file.
        path: PathBuf,
        /// What rustls says.
        source: VerifierBuilderError,
    },
}

impl Tls {
    /// Reads the files.
    pub fn load(files: Files) -> Result<Self, Error> {
        let config = ArcSwap::from_pointee(config(&files)?);
        Ok(Self { files, config })
    }

    /// Reads the files again, for connections from now on. After an error the old certificates
    /// stay in use.
    pub fn reload(&self) -> Result<(), Error> {
        self.config.store(Arc::new(config(&self.files)?));
        Ok(())
    }

    /// What a connection that comes now is given.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }
}

/// The parser shows text as lists of numbers.
fn in_words(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            format!("no line says -----END {}-----", String::from_utf8_lossy(end_marker))
        }
        pem::Error::IllegalSectionStart { line } => {
            format!("can't understand the line {}", String::from_utf8_lossy(line))
        }
        error => error.to_string(),
    }
}

fn config(files: &Files) -> Result<ServerConfig, Error> {
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

fn certified_key(files: &Files, provider: &CryptoProvider) -> Result<CertifiedKey, Error> {
    let Files { certificate, key, .. } = files;
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
        // Some keys can't tell; a wrong one would then fail in the first handshake.
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
