//! [`Listeners`]: the addresses that the service listens on, and their TLS certificates.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The listeners of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listeners {
    /// REST. Default: 127.0.0.1:8080.
    pub http: Listener,
    /// gRPC and Envoy's rate limit service. Default: 127.0.0.1:8081.
    pub grpc: Listener,
    /// Metrics and administration, separate from callers. Default: 127.0.0.1:9090.
    pub admin: Listener,
}

/// Options of one listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Address. By default only this machine can reach it.
    pub address: Address,
    /// Certificate. Default: none, so that connections are not encrypted.
    pub tls: Option<ListenerTls>,
    /// True if other machines may reach it although it does not authenticate them. Default: false,
    /// because that has to be a decision.
    pub insecure: bool,
}

/// The files of a certificate. They are read when the service starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTls {
    /// Certificate chain, in PEM.
    pub cert: PathBuf,
    /// Private key, in PEM.
    pub key: PathBuf,
    /// Authority that must have signed the certificates of clients, in PEM. Default: none, so that
    /// clients need no certificate.
    pub client_ca: Option<PathBuf>,
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// A host name or an IP address, without brackets.
    pub host: String,
    /// The port; 0 lets the system choose.
    pub port: u16,
}

impl Address {
    pub(crate) fn local(port: u16) -> Self {
        Self { host: "127.0.0.1".to_owned(), port }
    }

    /// Returns true if only this machine can reach the address.
    pub fn is_loopback(&self) -> bool {
        match self.host.parse::<IpAddr>() {
            Ok(ip) => ip.to_canonical().is_loopback(),
            Err(_) => self.host == "localhost",
        }
    }

    /// Returns true if a process can't listen on both addresses at the same time.
    pub(crate) fn collides_with(&self, other: &Self) -> bool {
        let any =
            |address: &Self| address.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
        let same_host = self.host == other.host || any(self) || any(other);
        self.port == other.port && self.port != 0 && same_host
    }
}

impl FromStr for Address {
    type Err = ();

    /// Parses `host:port`, with brackets around an IPv6 address.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (host, port) = text.rsplit_once(':').ok_or(())?;
        let ipv6 = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let host = match ipv6 {
            Some(ip) => ip.parse::<std::net::Ipv6Addr>().map(|_| ip).map_err(|_| ())?,
            None => host,
        };
        let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let is_name = ipv6.is_some() || host.chars().all(in_name);
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        if host.is_empty() || host.len() > 255 || !is_name || !digits {
            return Err(());
        }
        Ok(Self { host: host.to_owned(), port: port.parse().map_err(|_| ())? })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_print_as_they_are_written() {
        for (text, loopback) in [
            ("127.0.0.1:8080", true),
            ("127.8.0.1:0", true),
            ("[::1]:8080", true),
            ("[::ffff:127.0.0.1]:80", true),
            ("localhost:1", true),
            ("0.0.0.0:8080", false),
            ("[::]:8080", false),
            ("10.0.0.7:8080", false),
            ("limiter.internal:65535", false),
        ] {
            let address: Address = text.parse().unwrap_or_else(|()| panic!("{text}"));
            assert_eq!((address.to_string().as_str(), address.is_loopback()), (text, loopback));
        }
    }

    #[test]
    fn nonsense_is_no_address() {
        for text in [
            "",
            ":",
            "8080",
            ":8080",
            "host",
            "host:",
            "host:65536",
            "host:+1",
            "::1:80",
            "a b:1",
            "[x]:1",
        ] {
            assert_eq!(text.parse::<Address>(), Err(()), "{text}");
        }
    }

    #[test]
    fn an_address_of_all_interfaces_collides_with_each() {
        let collide = |a: &str, b: &str| {
            let [a, b]: [Address; 2] = [a, b].map(|text| text.parse().expect("an address"));
            a.collides_with(&b)
        };
        assert!(collide("0.0.0.0:80", "10.0.0.1:80"));
        assert!(collide("10.0.0.1:80", "10.0.0.1:80"));
        assert!(!collide("10.0.0.1:80", "10.0.0.2:80"));
        assert!(!collide("10.0.0.1:80", "10.0.0.1:81"));
        assert!(!collide("127.0.0.1:0", "127.0.0.1:0"));
    }
}
