//! Parses the address of a Redis server: a URL, or the form that Azure shows. No message repeats
//! it, because a password may be anywhere in it.

use percent_encoding::percent_decode_str;
use url::Url;

use super::item::Item;
use crate::config::{Address, RedisEndpoint, RedisStore};
use crate::report::Report;

const FORM: &str = "write redis://[[user]:password@]host[:port][/db], rediss:// for TLS, \
                    or host:port,password=…,ssl=True";

pub(super) fn address(item: &Item<'_>, report: &mut Report) -> Option<RedisEndpoint> {
    let text = item.scalar(report, FORM)?.text();
    let parsed = if text.contains("://") { url(text) } else { options(text) };
    parsed.map_err(|message| item.fail(report, message, FORM)).ok()
}

/// Parses `rediss://user:password@host:6380/0`.
fn url(text: &str) -> Result<RedisEndpoint, &'static str> {
    let tls = match text.split_once("://") {
        Some(("redis", _)) => false,
        Some(("rediss", _)) => true,
        _ => return Err("unknown scheme in the Redis address"),
    };
    let escape = "not a Redis address (in a password, write @ / ? # % as %40 %2F %3F %23 %25)";
    let url = Url::parse(text).map_err(|_| escape)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err("? and # are not supported in a Redis address");
    }
    let decoded = |part: &str| {
        percent_decode_str(part).decode_utf8().map(|text| text.into_owned()).map_err(|_| escape)
    };
    let host = url.host_str().ok_or("the Redis address has no host")?;
    let Address { host, port } = checked(host, url.port().unwrap_or(6_379))?;
    let username = match url.username() {
        "" => None,
        username => Some(decoded(username)?),
    };
    let password = url.password().map(decoded).transpose()?;
    let db = match url.path().trim_start_matches('/') {
        "" => 0,
        digits => database(digits)?,
    };
    Ok(RedisEndpoint { host, port, tls, username, password, db })
}

/// Parses `host:6380,password=…,ssl=True`. Options of other clients are ignored.
fn options(text: &str) -> Result<RedisEndpoint, &'static str> {
    let mut parts = text.split(',').map(str::trim);
    let server = parts.next().unwrap_or_default();
    let mut address = RedisStore::default_server();
    for part in parts.filter(|part| !part.is_empty()) {
        let Some((name, value)) = part.split_once('=') else {
            return Err("more than one server: list them in store.cluster");
        };
        match name.trim().to_ascii_lowercase().as_str() {
            "password" => address.password = Some(value.to_owned()),
            "user" => address.username = Some(value.to_owned()),
            "ssl" => address.tls = value.eq_ignore_ascii_case("true"),
            "defaultdatabase" => address.db = database(value)?,
            _ => {}
        }
    }
    let Address { host, port } = match server.rsplit_once(':') {
        Some(_) => server.parse().map_err(|()| "not a Redis address")?,
        None => checked(server, if address.tls { 6_380 } else { 6_379 })?,
    };
    Ok(RedisEndpoint { host, port, ..address })
}

fn database(digits: &str) -> Result<u32, &'static str> {
    let only_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse().ok().filter(|_| only_digits);
    number.ok_or("the database in the Redis address is not a whole number")
}

fn checked(host: &str, port: u16) -> Result<Address, &'static str> {
    format!("{host}:{port}")
        .parse()
        .map_err(|()| "the host in the Redis address is not a valid name or IP address")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let parsed = if text.contains("://") { url(text) } else { options(text) };
        let shown = parsed.map(|address| {
            let RedisEndpoint { host, port, tls, username, password, db } = address;
            let login =
                format!("{}:{}", username.unwrap_or_default(), password.unwrap_or_default());
            format!("{login}@{host}:{port}/{db}{}", if tls { " tls" } else { "" })
        });
        assert_eq!(shown.unwrap_or_else(str::to_owned), expected, "{text}");
    }

    #[test]
    fn urls_are_read() {
        check("redis://127.0.0.1:6379", ":@127.0.0.1:6379/0");
        check("redis://localhost/3", ":@localhost:6379/3");
        check(
            "rediss://user:p%40ss@cache.example.com:6380/0",
            "user:p@ss@cache.example.com:6380/0 tls",
        );
        check("redis://:pw@[::1]:7000/", ":pw@::1:7000/0");
    }

    #[test]
    fn the_form_of_azure_is_read() {
        let azure = "x.redis.cache.windows.net:6380,password=ab+c/d=,ssl=True,abortConnect=False";
        check(azure, ":ab+c/d=@x.redis.cache.windows.net:6380/0 tls");
        check("x.net,ssl=true", ":@x.net:6380/0 tls");
        check("x.net:6379", ":@x.net:6379/0");
        check("x.net,user=u,defaultDatabase=2", "u:@x.net:6379/2");
    }

    #[test]
    fn nonsense_is_refused_without_repeating_it() {
        check("http://host", "unknown scheme in the Redis address");
        check("redis://", "the Redis address has no host");
        check(
            "redis://:pw@:6379",
            "not a Redis address (in a password, write @ / ? # % as %40 %2F %3F %23 %25)",
        );
        check(
            "redis://:p#w@host",
            "not a Redis address (in a password, write @ / ? # % as %40 %2F %3F %23 %25)",
        );
        check("redis://host/one", "the database in the Redis address is not a whole number");
        check("redis://host?a=b", "? and # are not supported in a Redis address");
        check("host:port,password=x", "not a Redis address");
        check("a:1,b:2", "more than one server: list them in store.cluster");
        check("", "the host in the Redis address is not a valid name or IP address");
    }
}
