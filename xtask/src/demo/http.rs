//! A minimal HTTP client for the callers of the demo: one request per connection.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

/// Maximum time for each step of a request. The gateway lets requests wait for up to 5 seconds.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Sends JSON to `address`; returns the status and the body.
pub(super) fn post(address: &str, path: &str, body: &str) -> io::Result<(u16, String)> {
    let mut addresses = address.to_socket_addrs()?;
    let address = addresses.next().ok_or(io::ErrorKind::NotFound)?;
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or(io::ErrorKind::InvalidData)?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    Ok((status, body.unwrap_or_default()))
}
