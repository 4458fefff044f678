//! Finds HTTP/1 requests that state their length twice, by Content-Length and by Transfer-Encoding.
//!
//! hyper reads such a request by its chunks and drops the length, so that an application never sees
//! the conflict. RFC 9112 allows that, but two proxies that choose differently see different
//! requests in the same bytes (request smuggling). [`inspect`] therefore parses the bytes on
//! their way to hyper. It never changes them, skips bodies, and keeps at most one line of a head.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::InspectReader;

/// Maximum number of bytes kept of a line: enough for the field names and lengths that matter.
const LINE_BYTES_MAX: usize = 128;
/// The first line of an HTTP/2 connection, which has framing of its own.
const HTTP2: &[u8] = b"PRI * HTTP/2.0";

/// Marker in the extensions of a request that states its length twice, or that follows bytes that
/// could not be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmbiguousLength;

/// Results of [`inspect`], for the application on the same connection.
#[derive(Debug)]
pub(super) struct InspectionResult {
    /// Number of the first ambiguous request.
    ambiguous_from: AtomicU64,
    /// Number of requests that the application has received.
    requests: AtomicU64,
}

impl InspectionResult {
    /// Counts the next request of the connection and returns the marker if it is ambiguous. The
    /// application receives requests in the order in which their heads were read.
    pub(super) fn next(&self) -> Option<AmbiguousLength> {
        let number = self.requests.fetch_add(1, Relaxed);
        (number >= self.ambiguous_from.load(Relaxed)).then_some(AmbiguousLength)
    }
}

/// Returns the stream with an inspection of its requests, if enabled.
pub(super) fn inspect<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    inspects: bool,
) -> (impl AsyncRead + AsyncWrite + Unpin, Option<Arc<InspectionResult>>) {
    let mut inspector = inspects.then(Inspector::new);
    let inspection = inspector.as_ref().map(|inspector| Arc::clone(&inspector.inspection));
    let read = move |bytes: &[u8]| {
        if let Some(inspector) = &mut inspector {
            inspector.read(bytes);
        }
    };
    (InspectReader::new(stream, read), inspection)
}

/// The parser's position in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParseState {
    /// Before a request; empty lines are skipped.
    Between,
    Head(HeadLengths),
    /// The remaining bytes of a body, or of a chunk and its line break.
    Skip(u64, SkippedPart),
    ChunkSize,
    Trailer,
    /// The rest of the connection is not inspected.
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SkippedPart {
    Body,
    Chunk,
}

/// The length fields of a head so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HeadLengths {
    length: Option<u64>,
    chunked: bool,
}

/// Bytes that could not be parsed. hyper refuses them as well; if it did not, everything after them
/// would be ambiguous.
struct Malformed;

struct Inspector {
    state: ParseState,
    /// The beginning of a line whose end has not arrived.
    line: Vec<u8>,
    heads: u64,
    inspection: Arc<InspectionResult>,
}

impl Inspector {
    fn new() -> Self {
        let inspection = InspectionResult { ambiguous_from: u64::MAX.into(), requests: 0.into() };
        let (state, line) = (ParseState::Between, Vec::new());
        Self { state, line, heads: 0, inspection: Arc::new(inspection) }
    }

    fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.state != ParseState::Off {
            bytes = match self.state {
                ParseState::Skip(left, after) => self.skip(left, after, bytes),
                _ => self.gather(bytes),
            };
        }
    }

    fn skip<'b>(&mut self, left: u64, after: SkippedPart, bytes: &'b [u8]) -> &'b [u8] {
        let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        self.state = match (left - here as u64, after) {
            (0, SkippedPart::Body) => ParseState::Between,
            (0, SkippedPart::Chunk) => ParseState::ChunkSize,
            (left, after) => ParseState::Skip(left, after),
        };
        &bytes[here..]
    }

    /// Parses the next line, or buffers the part of it that has arrived.
    fn gather<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let Some(end) = memchr::memchr(b'\n', bytes) else {
            self.keep(bytes);
            return &[];
        };
        let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
        let next = if self.line.is_empty() {
            self.next(line)
        } else {
            self.keep(line);
            let line = std::mem::take(&mut self.line);
            let next = self.next(&line);
            self.line = line;
            self.line.clear();
            next
        };
        self.state = next.unwrap_or_else(|Malformed| {
            self.inspection.ambiguous_from.store(self.heads, Relaxed);
            ParseState::Off
        });
        rest
    }

    /// Keeps the beginning of a line and its last byte, which may be half of a line break.
    fn keep(&mut self, part: &[u8]) {
        let room = LINE_BYTES_MAX.saturating_sub(self.line.len());
        match part.split_at_checked(room) {
            Some((kept, &[.., last])) => {
                self.line.extend_from_slice(kept);
                self.line.truncate(LINE_BYTES_MAX - 1);
                self.line.push(last);
            }
            _ => self.line.extend_from_slice(part),
        }
    }

    /// Returns the state after a line, which is given without its `\n`.
    fn next(&mut self, line: &[u8]) -> Result<ParseState, Malformed> {
        let (text, crlf) = match line.strip_suffix(b"\r") {
            Some(text) => (text, true),
            None => (line, false),
        };
        match self.state {
            ParseState::Between if text.is_empty() => Ok(ParseState::Between),
            ParseState::Between if self.heads == 0 && text == HTTP2 => Ok(ParseState::Off),
            ParseState::Between => Ok(ParseState::Head(HeadLengths::default())),
            ParseState::Head(head) if text.is_empty() => self.end(head),
            ParseState::Head(head) => head.with(text).map(ParseState::Head),
            // From here on only CRLF ends a line.
            _ if !crlf => Err(Malformed),
            ParseState::ChunkSize => match chunk_size(text)? {
                0 => Ok(ParseState::Trailer),
                size => {
                    Ok(ParseState::Skip(size.checked_add(2).ok_or(Malformed)?, SkippedPart::Chunk))
                }
            },
            ParseState::Trailer if text.is_empty() => Ok(ParseState::Between),
            ParseState::Trailer => Ok(ParseState::Trailer),
            ParseState::Skip(..) | ParseState::Off => Ok(self.state),
        }
    }

    fn end(&mut self, head: HeadLengths) -> Result<ParseState, Malformed> {
        let next = match head {
            HeadLengths { length: Some(_), chunked: true } => return Err(Malformed),
            HeadLengths { length: None, chunked: true } => ParseState::ChunkSize,
            HeadLengths { length: None | Some(0), chunked: false } => ParseState::Between,
            HeadLengths { length: Some(length), chunked: false } => {
                ParseState::Skip(length, SkippedPart::Body)
            }
        };
        self.heads += 1;
        Ok(next)
    }
}

impl HeadLengths {
    fn with(mut self, field: &[u8]) -> Result<Self, Malformed> {
        let colon = memchr::memchr(b':', field);
        // A name longer than the buffer is neither of the two fields.
        let Some(colon) = colon else { return Ok(self) };
        let (name, value) = (&field[..colon], field[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.chunked = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            if field.len() >= LINE_BYTES_MAX - 1 {
                return Err(Malformed);
            }
            let digits = std::str::from_utf8(value).ok().filter(|text| !text.starts_with('+'));
            let length = digits.and_then(|text| text.parse().ok()).ok_or(Malformed)?;
            if self.length.replace(length).is_some_and(|before| before != length) {
                return Err(Malformed);
            }
        }
        Ok(self)
    }
}

fn chunk_size(line: &[u8]) -> Result<u64, Malformed> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let digits = std::str::from_utf8(&line[..digits]).map_err(|_| Malformed)?;
    u64::from_str_radix(digits, 16).map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which of the first eight requests on a connection are ambiguous: `!` if ambiguous,
    /// `.` if not. The result does not depend on how the bytes are split into reads.
    #[track_caller]
    fn check(bytes: &str, expected: &str) {
        for step in 1..=bytes.len() {
            let mut inspector = Inspector::new();
            bytes.as_bytes().chunks(step).for_each(|part| inspector.read(part));
            let inspection = inspector.inspection;
            let found: String =
                (0..8).map(|_| if inspection.next().is_some() { '!' } else { '.' }).collect();
            assert_eq!(found, expected, "{bytes:?} in steps of {step}");
            assert!(inspector.line.len() <= LINE_BYTES_MAX);
        }
    }

    const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    const BOTH: &str = "POST / HTTP/1.1\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n";
    const CHUNKED: &str = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";

    #[test]
    fn both_lengths_are_found_in_either_order_and_however_they_are_written() {
        check(BOTH, "!!!!!!!!");
        check(
            "P / HTTP/1.1\r\nTransfer-Encoding:chunked\r\nCONTENT-length:\t4\r\n\r\n",
            "!!!!!!!!",
        );
        check("P / HTTP/1.1\ncontent-length: 4\ntransfer-encoding: x\n\n", "!!!!!!!!");
    }

    #[test]
    fn they_are_found_behind_requests_of_every_kind() {
        check(&format!("{GET}{GET}{BOTH}"), "..!!!!!!");
        check(&format!("\r\n\r\n{GET}\r\n\n{BOTH}"), ".!!!!!!!");
        check(&format!("P / HTTP/1.1\r\ncontent-length: 5\r\n\r\n\r\n\r\n:{BOTH}"), ".!!!!!!!");
        check(&format!("P / HTTP/1.1\r\ncontent-length: 00\r\n\r\n{BOTH}"), ".!!!!!!!");
        let chunks = "a;x=y\r\n0\r\n\r\n01234\r\n3 \r\n\r\n\r\r\n0\r\n";
        check(&format!("{CHUNKED}{chunks}\r\n{BOTH}"), ".!!!!!!!");
        check(&format!("{CHUNKED}{chunks}a: b\r\ncontent-length: 3\r\n\r\n{BOTH}"), ".!!!!!!!");
    }

    #[test]
    fn bodies_may_say_what_they_like() {
        check(
            &format!("P / HTTP/1.1\r\ncontent-length: {}\r\n\r\n{BOTH}{GET}", BOTH.len()),
            "........",
        );
        check(&format!("{CHUNKED}{:x}\r\n{BOTH}\r\n0\r\n\r\n{GET}", BOTH.len()), "........");
    }

    #[test]
    fn long_lines_are_not_kept() {
        let long = "x".repeat(300);
        check(
            &format!("GET /{long} HTTP/1.1\r\n{long}: {long}\r\na: {long}\r\n\r\n{BOTH}"),
            ".!!!!!!!",
        );
        check(
            &format!("P / HTTP/1.1\r\ncontent-length: {}1\r\n\r\nx", "0".repeat(300)),
            "!!!!!!!!",
        );
    }

    #[test]
    fn bytes_that_cannot_be_parsed_are_ambiguous() {
        for length in ["+1", "1,1", "0x1", "-1", "", "99999999999999999999"] {
            check(&format!("{GET}P / HTTP/1.1\r\ncontent-length: {length}\r\n\r\n"), ".!!!!!!!");
        }
        check("P / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", "!!!!!!!!");
        for chunks in ["\r\n", "x\r\n", "0\n\r\n", "ffffffffffffffff\r\n", "0\r\na: b\n\r\n"] {
            check(&format!("{CHUNKED}{chunks}"), ".!!!!!!!");
        }
    }

    #[test]
    fn http2_is_left_alone() {
        check(&format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{BOTH}{BOTH}"), "........");
    }
}
