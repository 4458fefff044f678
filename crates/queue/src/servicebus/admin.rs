//! The management API: creates queues and counts their messages. It needs the right Manage.

use hyper::{Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sluicegate_core::Span;

use super::connection::BusConnection;
use super::failure::{refused, unavailable};
use crate::Error;

const VERSION: &str = "api-version=2021-05";
const ATOM: &str = "http://www.w3.org/2005/Atom";
const SERVICE_BUS: &str = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect";
/// Characters that stay as they are in the path of a queue.
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');
/// Number of deliveries after which Service Bus moves a message to the dead-letter subqueue. High: a
/// redelivered or returned message is sent again, so our consumers do not reach it.
const DELIVERIES_MAX: u32 = 100;
/// Maximum lock duration.
const LOCK_MAX: Span = Span::from_secs(300);

/// The number of messages in a queue and in its dead-letter subqueue. Locked messages are active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) active: u64,
    pub(super) scheduled: u64,
    pub(super) dead: u64,
}

/// Creates a queue that drops messages whose id it has seen in the last `deduplication`; zero for one
/// that keeps all.
pub(super) async fn create(
    connection: &BusConnection,
    queue: &str,
    deduplication: Span,
) -> Result<(), Error> {
    check_name(queue)?;
    let (detects, window) = match deduplication {
        Span::ZERO => ("", String::new()),
        window => (
            "<RequiresDuplicateDetection>true</RequiresDuplicateDetection>",
            format!(
                "<DuplicateDetectionHistoryTimeWindow>PT{}S</DuplicateDetectionHistoryTimeWindow>",
                window.as_secs_ceil()
            ),
        ),
    };
    let lock = connection.options.lock.clamp(Span::from_secs(5), LOCK_MAX).as_secs_ceil();
    let body = format!(
        "<entry xmlns=\"{ATOM}\"><content type=\"application/xml\">\
         <QueueDescription xmlns=\"{SERVICE_BUS}\"><LockDuration>PT{lock}S</LockDuration>\
         {detects}<DeadLetteringOnMessageExpiration>true</DeadLetteringOnMessageExpiration>\
         {window}<MaxDeliveryCount>{DELIVERIES_MAX}</MaxDeliveryCount></QueueDescription></content></entry>"
    );
    let (status, answer) = send(connection, Method::PUT, queue, body).await?;
    match status {
        // Another process was faster.
        StatusCode::CONFLICT => Ok(()),
        status if status.is_success() => Ok(()),
        status => Err(unavailable(format!("can't create queue {queue}: {status}: {answer}"))),
    }
}

/// Counts the messages of a queue.
pub(super) async fn counts(connection: &BusConnection, queue: &str) -> Result<Counts, Error> {
    // An unknown queue is an empty list.
    let answer = describe(connection, queue).await?;
    read_counts(&answer).ok_or_else(|| Error::NoQueue { queue: queue.to_owned() })
}

/// Returns the time for which a queue drops messages whose id it has seen; zero if it drops none.
pub(super) async fn deduplication(connection: &BusConnection, queue: &str) -> Result<Span, Error> {
    let answer = describe(connection, queue).await?;
    read_deduplication(&answer).ok_or_else(|| Error::NoQueue { queue: queue.to_owned() })
}

/// Returns the description of a queue.
async fn describe(connection: &BusConnection, queue: &str) -> Result<String, Error> {
    let (status, answer) = send(connection, Method::GET, queue, String::new()).await?;
    match status {
        StatusCode::NOT_FOUND => Err(Error::NoQueue { queue: queue.to_owned() }),
        status if status.is_success() => Ok(answer),
        status => Err(unavailable(format!("can't describe queue {queue}: {status}: {answer}"))),
    }
}

fn read_deduplication(answer: &str) -> Option<Span> {
    let document = roxmltree::Document::parse(answer).ok()?;
    let read = |name: &str| {
        document.descendants().find(|node| node.tag_name().name() == name)?.text().map(str::trim)
    };
    match read("RequiresDuplicateDetection")? {
        "true" => read_duration(read("DuplicateDetectionHistoryTimeWindow")?),
        _ => Some(Span::ZERO),
    }
}

/// Reads a duration of ISO 8601 in whole seconds, such as `P1DT12H` or `PT10M`.
fn read_duration(text: &str) -> Option<Span> {
    let mut seconds = 0_u64;
    let mut number = String::new();
    for c in text.strip_prefix('P')?.chars() {
        let unit = match c {
            'T' => continue,
            'D' => 86_400,
            'H' => 3_600,
            'M' => 60,
            'S' => 1,
            digit => {
                number.push(digit);
                continue;
            }
        };
        let whole = number.split('.').next().unwrap_or_default();
        seconds = seconds.checked_add(whole.parse::<u64>().ok()?.checked_mul(unit)?)?;
        number.clear();
    }
    Some(Span::from_secs(seconds))
}

fn read_counts(answer: &str) -> Option<Counts> {
    let document = roxmltree::Document::parse(answer).ok()?;
    let mut all = document.descendants();
    let details = all.find(|node| node.tag_name().name() == "CountDetails")?;
    let read = |name: &str| {
        let node = details.children().find(|node| node.tag_name().name() == name)?;
        node.text()?.trim().parse().ok()
    };
    Some(Counts {
        active: read("ActiveMessageCount")?,
        scheduled: read("ScheduledMessageCount")?,
        dead: read("DeadLetterMessageCount")?,
    })
}

async fn send(
    connection: &BusConnection,
    method: Method,
    queue: &str,
    body: String,
) -> Result<(StatusCode, String), Error> {
    let (token, _) = connection.token(&connection.audience(queue)).await?;
    let path = utf8_percent_encode(queue, ENCODED);
    let url = format!("{}/{path}?{VERSION}", connection.options.admin());
    let (status, answer) = connection.web.manage(method, &url, token.header(), body).await?;
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return Err(refused(format!(
            "the management API answered {status}: {}; the key needs the right Manage, an Entra \
             identity the role Azure Service Bus Data Owner, or create queue {queue} by \
             `az servicebus queue create`",
            detail(&answer)
        )));
    }
    Ok((status, detail(&answer)))
}

/// Returns the text of an error, or the answer itself.
fn detail(answer: &str) -> String {
    let document = roxmltree::Document::parse(answer).ok();
    let detail = document.as_ref().and_then(|document| {
        document.descendants().find(|node| node.tag_name().name() == "Detail")?.text()
    });
    detail.unwrap_or(answer).to_owned()
}

/// Checks the name of a queue that is to be created.
fn check_name(name: &str) -> Result<(), Error> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_valid = name.len() <= 260
        && name.chars().all(allowed)
        && ends(name.chars().next())
        && ends(name.chars().last());
    if is_valid {
        return Ok(());
    }
    let remedy =
        "write 1 to 260 letters, digits, -, _, . and /, with a letter or digit at both ends";
    Err(Error::Invalid(format!("{name:?} is not a valid Service Bus queue name: {remedy}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_by_their_names_whatever_the_prefix() {
        let answer = format!(
            "<entry xmlns='{ATOM}'><content><QueueDescription xmlns='{SERVICE_BUS}'>\
             <MessageCount>9</MessageCount><CountDetails xmlns:d2p1='x'>\
             <d2p1:ActiveMessageCount>5</d2p1:ActiveMessageCount>\
             <d2p1:DeadLetterMessageCount>3</d2p1:DeadLetterMessageCount>\
             <d2p1:ScheduledMessageCount>1</d2p1:ScheduledMessageCount></CountDetails>\
             </QueueDescription></content></entry>"
        );
        assert_eq!(read_counts(&answer), Some(Counts { active: 5, scheduled: 1, dead: 3 }));
        for other in ["", "<feed/>", "not XML"] {
            assert_eq!(read_counts(other), None, "{other:?}");
        }
    }

    #[test]
    fn the_window_of_duplicates_is_read() {
        let answer = |detects: &str, window: &str| {
            format!(
                "<entry xmlns='{ATOM}'><content><QueueDescription xmlns='{SERVICE_BUS}'>\
                 <RequiresDuplicateDetection>{detects}</RequiresDuplicateDetection>\
                 <DuplicateDetectionHistoryTimeWindow>{window}</DuplicateDetectionHistoryTimeWindow>\
                 </QueueDescription></content></entry>"
            )
        };
        for (detects, window, seconds) in [
            ("false", "PT10M", 0),
            ("true", "PT10M", 600),
            ("true", "P1DT2H3M4S", 93_784),
            ("true", "PT20.5S", 20),
        ] {
            let found = read_deduplication(&answer(detects, window));
            assert_eq!(found, Some(Span::from_secs(seconds)), "{window}");
        }
        assert_eq!(read_deduplication("<feed/>"), None);
        assert_eq!(read_deduplication(&answer("true", "ten minutes")), None);
    }

    #[test]
    fn a_name_that_service_bus_refuses_is_an_error_with_a_remedy() {
        for name in ["", "-a", "a/", "a b", "größe", &"x".repeat(261)] {
            let error = check_name(name).expect_err("invalid").to_string();
            assert!(error.contains("letters, digits"), "{error}");
        }
        check_name("team/raw-analysis_queue.1").expect("valid");
    }
}
