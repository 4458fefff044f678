//! [`Key`]: reads the value of a dimension from a request.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::HeaderName;
use http::request::Parts;

/// The source of a dimension's value.
///
/// A closure is one, too: `|request: &http::request::Parts| Some(String::new())`.
pub trait Key: Send + Sync + 'static {
    /// Returns the value, or `None` if the request has none. Then the dimension is missing, and the
    /// rules decide if that is an error.
    fn value<'r>(&self, request: &'r Parts) -> Option<Cow<'r, str>>;
}

impl<F> Key for F
where
    F: Fn(&Parts) -> Option<String> + Send + Sync + 'static,
{
    fn value<'r>(&self, request: &'r Parts) -> Option<Cow<'r, str>> {
        self(request).map(Cow::Owned)
    }
}

/// The value of a header field. A field that is missing, empty, or not text has no value.
///
/// Clients choose their header fields: use one that your proxy or your authentication sets.
#[derive(Clone, Debug)]
pub struct Header(HeaderName);

impl Header {
    /// Creates a key from the name of a field, in lower case, such as `x-user-id`.
    ///
    /// # Panics
    ///
    /// If the name is not a header name in lower case.
    pub const fn new(name: &'static str) -> Self {
        Self(HeaderName::from_static(name))
    }
}

impl Key for Header {
    fn value<'r>(&self, request: &'r Parts) -> Option<Cow<'r, str>> {
        let value = request.headers.get(&self.0)?.to_str().ok()?;
        Some(value.trim()).filter(|value| !value.is_empty()).map(Cow::Borrowed)
    }
}

/// The address of the peer of the connection, without its port. Of an IPv6 address the first 56 bits
/// count, because a client usually has all addresses of such a network.
///
/// The address is that of your proxy, if there is one: then use a [`Header`] that the proxy sets.
///
/// | server | feature | serve with |
/// |---|---|---|
/// | axum | `axum` | `into_make_service_with_connect_info::<SocketAddr>()` |
/// | tonic | `tonic` | nothing |
/// | others | | a `SocketAddr` in the extensions of each request |
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress;

impl Key for PeerAddress {
    fn value<'r>(&self, request: &'r Parts) -> Option<Cow<'r, str>> {
        Some(network(peer(&request.extensions)?.ip()).into())
    }
}

fn peer(extensions: &http::Extensions) -> Option<SocketAddr> {
    let plain = extensions.get::<SocketAddr>().copied();
    #[cfg(feature = "axum")]
    let plain = plain
        .or_else(|| extensions.get::<axum::extract::ConnectInfo<SocketAddr>>().map(|info| info.0));
    #[cfg(feature = "tonic")]
    let plain = plain
        .or_else(|| extensions.get::<tonic::transport::server::TcpConnectInfo>()?.remote_addr());
    plain
}

fn network(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{}/56", Ipv6Addr::new(a, b, c, d & 0xff00, 0, 0, 0, 0))
        }
    }
}

/// The path of the URI; of a gRPC request, the method.
#[derive(Clone, Copy, Debug)]
pub struct Path;

impl Key for Path {
    fn value<'r>(&self, request: &'r Parts) -> Option<Cow<'r, str>> {
        Some(request.uri.path()).filter(|path| !path.is_empty()).map(Cow::Borrowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_count_by_host_or_by_network() {
        for (address, expected) in [
            ("192.0.2.7", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("2001:db8:1:2ff:3:4:5:6", "2001:db8:1:200::/56"),
            ("::1", "::/56"),
        ] {
            assert_eq!(network(address.parse().expect(address)), expected);
        }
    }

    #[test]
    fn headers_have_a_value_unless_they_are_missing_empty_or_no_text() {
        let request = |value: &[u8]| {
            let request = http::Request::builder().header("x-user-id", value);
            request.body(()).expect("a request").into_parts().0
        };
        let value = |request: &Parts| Header::new("x-user-id").value(request).map(Cow::into_owned);
        assert_eq!(value(&request(b"ann")).as_deref(), Some("ann"));
        assert_eq!(value(&request(b" ann ")).as_deref(), Some("ann"));
        assert_eq!(value(&request(b" ")), None);
        assert_eq!(value(&request(b"\xff")), None);
        assert_eq!(value(&http::Request::new(()).into_parts().0), None);
    }
}
