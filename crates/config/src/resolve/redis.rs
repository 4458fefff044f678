//! Parses the addresses of Redis servers: URLs, or the form that Azure shows. No message repeats
//! them, because a password may be anywhere in them.

use percent_encoding::percent_decode_str;
use url::Url;

use super::item::Item;
use crate::config::{Address, RedisEndpoint, RedisStore};
use crate::report::Report;

pub(super) const FORM: &str = "write redis://[[user]:password@]host[:port][/db], rediss:// for TLS, \
                    or host:port,password=…,ssl=True";

/// Reads the address of one server.
pub(super) fn address(item: &Item<'_>, report: &mut Report) -> Option<RedisEndpoint> {
    let mut servers = addresses(item, report)?;
    if servers.len() > 1 {
        let remedy = "write cluster: true if they are one Redis Cluster, or only one of them";
        item.fail(report, "more than one server", remedy);
        return None;
    }
    servers.pop()
}

/// Reads the addresses of one or more servers, separated by commas.
pub(super) fn addresses(item: &Item<'_>, report: &mut Report) -> Option<Vec<RedisEndpoint>> {
    let text = item.scalar(report, FORM)?.text();
    parse(text).map_err(|message| item.fail(report, message, FORM)).ok()
}

/// Parses one or more servers, separated by commas; at least one is returned.
pub(super) fn parse(text: &str) -> Result<Vec<RedisEndpoint>, &'static str> {
    if !text.contains("://") {
        return options(text);
    }
    // A password may contain a comma: a part that is no server belongs to the one before it.
    let mut texts: Vec<String> = Vec::new();
    for part in text.split(',') {
        let is_server = part.contains("://") || part.trim().parse::<Address>().is_ok();
        match texts.last_mut() {
            Some(last) if !is_server => {
                last.push(',');
                last.push_str(part);
            }
            _ => texts.push(part.trim().to_owned()),
        }
    }
    let mut servers: Vec<RedisEndpoint> = Vec::new();
    for text in texts {
        let server = match (servers.first(), text.parse()) {
            (Some(first), Ok(Address { host, port })) => {
                RedisEndpoint { host, port, ..first.clone() }
            }
            _ => url(&text)?,
        };
        servers.push(server);
    }
    Ok(servers)
}

/// Parses `REDIS_CLUSTER_MODE`, or an option that contains its value.
pub(super) fn cluster_mode(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
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

/// Parses `host:6380,password=…,ssl=True`, with one or more servers before the options. Options of
/// other clients are ignored.
fn options(text: &str) -> Result<Vec<RedisEndpoint>, &'static str> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let (options, servers): (Vec<_>, Vec<_>) = parts.partition(|part| part.contains('='));
    let mut common = RedisStore::default_server();
    for option in options {
        let (name, value) = option.split_once('=').unwrap_or_default();
        match name.trim().to_ascii_lowercase().as_str() {
            "password" => common.password = Some(value.to_owned()),
            "user" => common.username = Some(value.to_owned()),
            "ssl" => common.tls = value.eq_ignore_ascii_case("true"),
            "defaultdatabase" => common.db = database(value)?,
            _ => {}
        }
    }
    if servers.is_empty() {
        return Err("the Redis address has no host");
    }
    let port = if common.tls { 6_380 } else { 6_379 };
    let server = |text: &str| {
        let Address { host, port } = match text.rsplit_once(':') {
            Some(_) => text.parse().map_err(|()| "not a Redis address")?,
            None => checked(text, port)?,
        };
        Ok(RedisEndpoint { host, port, ..common.clone() })
    };
    servers.into_iter().map(server).collect()
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
        let shown = parse(text).map(|servers| {
            let shown: Vec<_> = servers.into_iter().map(show).collect();
            shown.join(" and ")
        });
        assert_eq!(shown.unwrap_or_else(str::to_owned), expected, "{text}");
    }

    fn show(server: RedisEndpoint) -> String {
        let RedisEndpoint { host, port, tls, username, password, db } = server;
        let login = format!("{}:{}", username.unwrap_or_default(), password.unwrap_or_default());
        format!("{login}@{host}:{port}/{db}{}", if tls { " tls" } else { "" })
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
        check("", "the Redis address has no host");
        check("password=x,ssl=True", "the Redis address has no host");
        check("a:1,b:x", "not a Redis address");
    }

    #[test]
    fn several_servers_are_separated_by_commas() {
        check("redis://a:1,redis://b:2", ":@a:1/0 and :@b:2/0");
        check("rediss://:pw@a:1, b:2", ":pw@a:1/0 tls and :pw@b:2/0 tls");
        check("a:1,b,password=p,ssl=True", ":p@a:1/0 tls and :p@b:6380/0 tls");
    }

    #[test]
    fn a_comma_in_a_password_separates_nothing() {
        check("redis://:a,b@host:1", ":a,b@host:1/0");
        check("redis://u:6379,x:1@host,redis://b:2", "u:6379,x:1@host:6379/0 and :@b:2/0");
    }
}
