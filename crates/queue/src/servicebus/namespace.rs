//! [`Options`]: the namespace, its transport and the credential, also from a connection string.

use sluicegate_core::Span;

use super::credential::Credential;
use crate::Error;

/// Domain of namespaces in the public cloud, for names without one.
const DOMAIN: &str = ".servicebus.windows.net";
/// Ports: AMQP over TLS, WebSockets over TLS, AMQP of Microsoft's emulator.
const AMQPS: u16 = 5671;
const HTTPS: u16 = 443;
const EMULATOR: u16 = 5672;

/// Options of a Service Bus namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Host name of the namespace.
    pub host: String,
    /// Port. Default: 5671, or 443 for WebSockets.
    pub port: Option<u16>,
    /// True if the server is a local emulator without TLS.
    pub emulator: bool,
    /// Transport of the AMQP protocol.
    pub transport: Transport,
    /// Proof of identity.
    pub credential: Credential,
    /// Address of the management API. Default: the namespace by HTTPS, the emulator at port 5300.
    pub admin_url: Option<String>,
    /// Lock duration of the queues that we create. A consumer that dies holds its messages for so
    /// long; one that lives renews its locks.
    pub lock: Span,
    /// Time for which the queues that we create drop messages whose id they have seen. Default: zero,
    /// which turns it off.
    pub deduplication: Span,
    /// Lifetime of the tokens that are made from a key.
    pub token_lifetime: Span,
}

/// The transport of the AMQP protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// TCP, port 5671.
    #[default]
    Tcp,
    /// WebSockets, port 443, for networks that block other ports.
    WebSockets,
}

impl Options {
    /// Creates options for a namespace, such as `orders` or `orders.servicebus.windows.net`.
    pub fn new(namespace: &str, credential: Credential) -> Self {
        let domain = if namespace.contains('.') { "" } else { DOMAIN };
        Self {
            host: format!("{namespace}{domain}"),
            port: None,
            emulator: false,
            transport: Transport::Tcp,
            credential,
            admin_url: None,
            lock: Span::from_secs(60),
            deduplication: Span::ZERO,
            token_lifetime: Span::from_secs(3_600),
        }
    }

    /// Reads a connection string, as Azure shows it.
    pub fn from_connection_string(text: &str) -> Result<Self, Error> {
        // No message repeats the text, because it contains a key.
        let wrong = |problem: &str| {
            Error::Invalid(format!(
                "queue.connection_string {problem}: write \
                 Endpoint=sb://NAMESPACE.servicebus.windows.net/;SharedAccessKeyName=NAME;\
                 SharedAccessKey=KEY"
            ))
        };
        let parts = text.split(';').filter_map(|part| part.split_once('='));
        let parts: Vec<_> =
            parts.map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim())).collect();
        let read = |wanted: &str| {
            let found = parts.iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| *value).filter(|value| !value.is_empty())
        };
        let endpoint = read("endpoint").ok_or_else(|| wrong("has no Endpoint"))?;
        let address = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
        let address = address.split('/').next().unwrap_or_default();
        let (host, port) = match address.rsplit_once(':') {
            None => (address, None),
            Some((host, port)) => {
                (host, Some(port.parse().map_err(|_| wrong("has an invalid port"))?))
            }
        };
        if host.is_empty() {
            return Err(wrong("has no host"));
        }
        if read("entitypath").is_some() {
            return Err(wrong("is for one queue (EntityPath): use one of the namespace"));
        }
        let credential = match (read("sharedaccesssignature"), read("sharedaccesskeyname")) {
            (Some(signature), _) => Credential::Signature(signature.to_owned()),
            (None, Some(name)) => {
                let key = read("sharedaccesskey").ok_or_else(|| wrong("has no SharedAccessKey"))?;
                Credential::SharedKey { name: name.to_owned(), key: key.to_owned() }
            }
            (None, None) => return Err(wrong("has no SharedAccessKeyName")),
        };
        let emulator = read("usedevelopmentemulator").is_some_and(|value| value == "true");
        let named = Self::new(host, credential);
        // The host of an emulator may have no domain.
        Ok(Self { host: host.to_owned(), port, emulator, ..named })
    }

    /// Returns the port of the AMQP protocol.
    pub(super) fn amqp_port(&self) -> u16 {
        self.port.unwrap_or(match (self.emulator, self.transport) {
            (true, _) => EMULATOR,
            (false, Transport::Tcp) => AMQPS,
            (false, Transport::WebSockets) => HTTPS,
        })
    }

    /// Returns the address of the management API, without a slash at its end.
    pub(super) fn admin(&self) -> String {
        let host = &self.host;
        match &self.admin_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None if self.emulator => format!("http://{host}:5300"),
            None => format!("https://{host}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_string_of_azure_is_read() {
        let text = "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=root;\
                    SharedAccessKey=c2VjcmV0aw==";
        let options = Options::from_connection_string(text).expect("it is complete");
        assert_eq!(
            (options.host.as_str(), options.amqp_port()),
            ("ns.servicebus.windows.net", 5671)
        );
        assert_eq!(options.admin(), "https://ns.servicebus.windows.net");
        let key = Credential::SharedKey { name: "root".into(), key: "c2VjcmV0aw==".into() };
        assert_eq!(options.credential, key);
        let sockets = Options { transport: Transport::WebSockets, ..options };
        assert_eq!(sockets.amqp_port(), 443);
    }

    #[test]
    fn the_emulator_has_its_own_ports_and_no_tls() {
        let text = "Endpoint=sb://localhost;SharedAccessKeyName=a;SharedAccessKey=b;\
                    UseDevelopmentEmulator=true;";
        let options = Options::from_connection_string(text).expect("it is complete");
        assert_eq!((options.emulator, options.amqp_port()), (true, 5672));
        assert_eq!(options.admin(), "http://localhost:5300");
    }

    #[test]
    fn what_is_missing_is_named_and_no_key_is_repeated() {
        for (text, words) in [
            ("", "has no Endpoint"),
            ("Endpoint=sb://;SharedAccessKeyName=a;SharedAccessKey=geheim", "has no host"),
            ("Endpoint=sb://h:x;SharedAccessKeyName=a;SharedAccessKey=geheim", "an invalid port"),
            ("Endpoint=sb://h;SharedAccessKey=geheim", "has no SharedAccessKeyName"),
            ("Endpoint=sb://h;SharedAccessKeyName=a", "has no SharedAccessKey"),
            (
                "Endpoint=sb://h;SharedAccessKeyName=a;SharedAccessKey=geheim;EntityPath=q",
                "EntityPath",
            ),
        ] {
            let error = Options::from_connection_string(text).expect_err("incomplete").to_string();
            assert!(error.contains(words) && !error.contains("geheim"), "{error}");
        }
    }

    #[test]
    fn a_short_name_is_in_the_public_cloud() {
        let named = |name| Options::new(name, Credential::Signature(String::new())).host;
        assert_eq!(named("orders"), "orders.servicebus.windows.net");
        assert_eq!(
            named("orders.servicebus.usgovcloudapi.net"),
            "orders.servicebus.usgovcloudapi.net"
        );
    }
}
