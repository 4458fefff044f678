//! The mutations to apply to logs, with the expected result of each.

use serde_json::{Map, Value, json};
use sluicegate_core::Timestamp;

/// Lines of the logs of one installation, one file per process.
pub(crate) type Logs = Vec<Vec<String>>;

/// The expected result of a mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedResult {
    /// It is detected: a limit is exceeded, or the log is not proven.
    Noticed,
    /// It is harmless: the result stays the same.
    Same,
    /// It is detected, or the result stays the same: not every log depends on the changed data.
    NoticedOrSame,
    /// It is harmless: a shorter time is proven, and the output states it.
    Less,
}

/// One mutation. It returns false if it does not apply to a log.
pub(crate) struct Mutation {
    pub(crate) name: &'static str,
    pub(crate) expected: ExpectedResult,
    pub(crate) change: fn(&mut Logs) -> bool,
}

/// Edits the fields of one line.
fn edit(line: &mut String, change: impl FnOnce(&mut Map<String, Value>)) {
    let mut fields: Map<String, Value> = serde_json::from_str(line).expect("a line");
    change(&mut fields);
    *line = Value::Object(fields).to_string();
}

fn fields(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_default()
}

/// Returns the middle one of these lines that has other lines of the same process around it.
fn middle(logs: &Logs, fits: impl Fn(&Value) -> bool) -> Option<(usize, usize)> {
    let mut places = places(logs, fits);
    places.retain(|&(log, line)| 0 < line && line + 2 < logs[log].len());
    places.get(places.len() / 2).copied()
}

/// Returns the positions of matching lines.
pub(crate) fn places(logs: &Logs, fits: impl Fn(&Value) -> bool) -> Vec<(usize, usize)> {
    let lines = logs.iter().enumerate().flat_map(|(log, lines)| {
        lines.iter().enumerate().map(move |(line, text)| (log, line, text))
    });
    lines.filter(|(.., text)| fits(&fields(text))).map(|(log, line, _)| (log, line)).collect()
}

/// Returns true for an admission by the store with charges.
fn is_admission(line: &Value) -> bool {
    let charge = &line["charges"][0];
    line["allowed"] == true
        && line["decided"] == "store"
        && ["acquire", "book"].iter().any(|&name| line["operation"] == name)
        && charge["take"].as_u64() > Some(0)
        && charge["shadow"].is_null()
}

/// Edits the admission in the middle.
fn admission(logs: &mut Logs, change: impl FnOnce(&mut Map<String, Value>)) -> bool {
    let Some((log, line)) = middle(logs, is_admission) else { return false };
    edit(&mut logs[log][line], change);
    true
}

/// Edits an admission with earlier and later ones on its counter: only later counts by the store
/// show that it is missing.
fn admission_between_places(logs: &Logs) -> Option<(usize, usize)> {
    let of = |(log, line): &(usize, usize), name: &str| fields(&logs[*log][*line])[name].clone();
    let mut places = places(logs, is_admission);
    places.sort_by_key(|place| of(place, "at").to_string());
    let keys: Vec<_> = places.iter().map(|place| of(place, "charges")[0]["key"].clone()).collect();
    let alike = |others: &[Value], key: &Value| others.iter().filter(|other| *other == key).count();
    let between = |number: &usize| {
        let (before, after) = (&keys[..*number], &keys[*number + 1..]);
        alike(before, &keys[*number]) > 1 && alike(after, &keys[*number]) > 1
    };
    let between: Vec<_> = (0..keys.len()).filter(between).collect();
    between.get(between.len() / 2).map(|&number| places[number])
}

/// Changes the fields of that admission.
fn admission_between(logs: &mut Logs, change: impl FnOnce(&mut Map<String, Value>)) -> bool {
    let Some((log, line)) = admission_between_places(logs) else { return false };
    edit(&mut logs[log][line], change);
    true
}

/// Edits the first charge of the admission in the middle.
fn charge(logs: &mut Logs, change: impl FnOnce(&mut Value)) -> bool {
    admission(logs, |fields| change(&mut fields["charges"][0]))
}

fn remove(logs: &mut Logs, fits: impl Fn(&Value) -> bool) -> bool {
    let Some((log, line)) = middle(logs, fits) else { return false };
    logs[log].remove(line);
    true
}

fn insert(logs: &mut Logs, text: &str) -> bool {
    let middle = logs[0].len() / 2;
    logs[0].insert(middle, text.to_owned());
    true
}

/// Moves a timestamp by this number of microseconds.
fn moved(instant: &Value, micros: i64) -> Value {
    let at: Timestamp = instant.as_str().expect("an instant").parse().expect("an instant");
    let at = at.as_micros().checked_add_signed(micros).expect("an instant");
    Timestamp::from_micros(at).to_string().into()
}

const HOUR: i64 = 3_600_000_000;

/// Moves every timestamp of a line.
fn move_all(fields: &mut Map<String, Value>, micros: i64) {
    for name in ["timestamp", "at", "start", "until", "latest", "retryAt", "windowResetAt"] {
        if let Some(instant) = fields.get_mut(name) {
            *instant = moved(instant, micros);
        }
    }
    for charge in fields.get_mut("charges").and_then(Value::as_array_mut).into_iter().flatten() {
        if !charge["at"].is_null() {
            charge["at"] = moved(&charge["at"], micros);
        }
    }
}

fn raised(limit: &Value) -> Value {
    format!("9{}", limit.as_str().expect("a limit")).into()
}

pub(crate) const MUTATIONS: &[Mutation] = &[
    Mutation { name: "nothing", expected: ExpectedResult::Same, change: |_| true },
    // Delete.
    Mutation {
        name: "delete an admission",
        expected: ExpectedResult::Noticed,
        change: |logs| remove(logs, is_admission),
    },
    Mutation {
        name: "delete a denial",
        expected: ExpectedResult::Noticed,
        change: |logs| remove(logs, |line| line["allowed"] == false),
    },
    Mutation {
        name: "delete a settlement, release, cancellation or claim",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            remove(logs, |line| {
                let follows = ["settle", "release", "cancel", "claim", "renew", "refund", "reset"];
                follows.iter().any(|&name| line["operation"] == name)
            })
        },
    },
    Mutation {
        name: "delete the first line of a process",
        expected: ExpectedResult::Less,
        change: |logs| {
            logs[0].remove(0);
            true
        },
    },
    Mutation {
        name: "delete the first half (a later slice)",
        expected: ExpectedResult::Less,
        change: |logs| {
            let middle = logs[0].len() / 2;
            logs[0].drain(..middle);
            true
        },
    },
    Mutation {
        name: "delete the end line (kill -9)",
        expected: ExpectedResult::Less,
        change: |logs| {
            logs[0].pop();
            true
        },
    },
    Mutation {
        name: "delete the file of a node",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            let several = logs.len() > 1;
            logs.truncate(logs.len() - usize::from(several));
            several
        },
    },
    Mutation {
        name: "delete the numbers of a line (an older version)",
        expected: ExpectedResult::Noticed,
        change: |logs| admission(logs, |fields| fields.retain(|name, _| name != "seq")),
    },
    // Duplicate.
    Mutation {
        name: "duplicate an admission",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            let Some(&(log, line)) = places(logs, is_admission).last() else { return false };
            let again = logs[log][line].clone();
            logs[log].insert(line, again);
            true
        },
    },
    Mutation {
        name: "duplicate a file",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            let again = logs[0].clone();
            logs.push(again);
            true
        },
    },
    Mutation {
        name: "duplicate the end line",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            let end = logs[0].last().expect("a line").clone();
            logs[0].push(end);
            true
        },
    },
    // Shift.
    Mutation {
        name: "shift an admission an hour ahead",
        expected: ExpectedResult::Noticed,
        change: |logs| admission(logs, |fields| fields["at"] = moved(&fields["at"], HOUR)),
    },
    Mutation {
        name: "shift an admission an hour back",
        expected: ExpectedResult::Noticed,
        change: |logs| admission(logs, |fields| fields["at"] = moved(&fields["at"], -HOUR)),
    },
    Mutation {
        name: "shift the whole log by an hour",
        expected: ExpectedResult::Same,
        change: |logs| {
            logs.iter_mut().flatten().for_each(|line| edit(line, |fields| move_all(fields, HOUR)));
            true
        },
    },
    // Reorder.
    Mutation {
        name: "swap neighbours",
        expected: ExpectedResult::Same,
        change: |logs| {
            logs.iter_mut().for_each(|log| log.chunks_exact_mut(2).for_each(|two| two.swap(0, 1)));
            true
        },
    },
    Mutation {
        name: "reverse every ten lines",
        expected: ExpectedResult::Same,
        change: |logs| {
            logs.iter_mut().for_each(|log| log.chunks_mut(10).for_each(<[_]>::reverse));
            true
        },
    },
    Mutation {
        name: "the files in another order",
        expected: ExpectedResult::Same,
        change: |logs| {
            logs.reverse();
            true
        },
    },
    Mutation {
        name: "all files in one",
        expected: ExpectedResult::Same,
        change: |logs| {
            *logs = vec![logs.concat()];
            true
        },
    },
    // Truncate.
    Mutation {
        name: "cut off the second half (a prefix)",
        expected: ExpectedResult::Less,
        change: |logs| {
            let middle = logs[0].len() / 2;
            logs[0].truncate(middle);
            true
        },
    },
    Mutation {
        name: "cut off the last line",
        expected: ExpectedResult::Less,
        change: |logs| {
            let last = logs.last_mut().and_then(|log| log.last_mut()).expect("a line");
            last.truncate(last.len() / 2);
            true
        },
    },
    Mutation {
        name: "cut off a line in the middle",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            let Some(&(log, line)) = places(logs, is_admission).first() else { return false };
            let half = logs[log][line].len() / 2;
            logs[log][line].truncate(half);
            true
        },
    },
    Mutation {
        name: "join two lines",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            let next = logs[0].remove(1);
            logs[0][0].push_str(&next);
            true
        },
    },
    // Change an amount.
    Mutation {
        name: "take 0",
        expected: ExpectedResult::Noticed,
        change: |logs| charge(logs, |charge| charge["take"] = 0.into()),
    },
    Mutation {
        // A settled admission counts as its actual cost.
        name: "take a thousand million times as much",
        expected: ExpectedResult::NoticedOrSame,
        change: |logs| {
            charge(logs, |charge| {
                let take = charge["take"].as_u64().expect("an amount");
                charge["take"] = take.saturating_mul(1_000_000_000).into();
                charge.as_object_mut().expect("a charge").remove("need");
            })
        },
    },
    Mutation {
        name: "no charges",
        expected: ExpectedResult::Noticed,
        change: |logs| admission(logs, |fields| fields.retain(|name, _| name != "charges")),
    },
    Mutation {
        name: "an empty list of charges",
        expected: ExpectedResult::Noticed,
        change: |logs| admission(logs, |fields| fields["charges"] = json!([])),
    },
    Mutation {
        name: "another unit",
        expected: ExpectedResult::Noticed,
        change: |logs| charge(logs, |charge| charge["unit"] = "bananas".into()),
    },
    Mutation {
        name: "a higher count",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            admission(logs, |fields| {
                let count = &mut fields["scopes"][0]["count"];
                *count = (count.as_f64().expect("a count") + 1_000.0).into();
            })
        },
    },
    Mutation {
        name: "a higher count, with what remains",
        expected: ExpectedResult::NoticedOrSame,
        change: |logs| {
            admission(logs, |fields| {
                let scope = &mut fields["scopes"][0];
                scope["count"] = scope["limit"].clone();
                scope["remaining"] = 0.into();
            })
        },
    },
    // Change a key or a limit.
    Mutation {
        name: "another key",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            admission_between(logs, |fields| {
                fields["charges"][0]["key"] = "OTHER#requests".into();
            })
        },
    },
    Mutation {
        name: "a higher limit in a charge",
        expected: ExpectedResult::Noticed,
        change: |logs| charge(logs, |charge| charge["limits"][0] = raised(&charge["limits"][0])),
    },
    Mutation {
        name: "a higher limit in a charge and where it is shown",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            admission(logs, |fields| {
                let limit = raised(&fields["charges"][0]["limits"][0]);
                fields["charges"][0]["limits"][0] = limit.clone();
                fields["scopes"][0]["window"] = limit;
            })
        },
    },
    Mutation {
        name: "a limit that can't be read",
        expected: ExpectedResult::Noticed,
        change: |logs| charge(logs, |charge| charge["limits"][0] = "many/s".into()),
    },
    Mutation {
        name: "no limits",
        expected: ExpectedResult::Noticed,
        change: |logs| charge(logs, |charge| charge["limits"] = json!([])),
    },
    // Change who wrote or decided it.
    Mutation {
        name: "another node",
        expected: ExpectedResult::Noticed,
        change: |logs| admission(logs, |fields| fields["node"] = "elsewhere".into()),
    },
    Mutation {
        name: "another start of the process",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            admission(logs, |fields| fields["started"] = moved(&fields["started"], HOUR))
        },
    },
    Mutation {
        name: "another sequence number",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            admission(logs, |fields| {
                fields["seq"] = (fields["seq"].as_u64().expect("a number") + 1).into();
            })
        },
    },
    Mutation {
        name: "a sequence number far ahead",
        expected: ExpectedResult::Noticed,
        change: |logs| admission(logs, |fields| fields["seq"] = 1_000_000.into()),
    },
    Mutation {
        name: "another line number",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            admission(logs, |fields| {
                fields["line"] = (fields["line"].as_u64().expect("a number") + 1).into();
            })
        },
    },
    Mutation {
        name: "fewer admissions in the end line",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            let end = logs[0].last_mut().expect("a line");
            edit(end, |fields| fields["seq"] = 0.into());
            true
        },
    },
    Mutation {
        name: "an admission made a denial",
        expected: ExpectedResult::Noticed,
        change: |logs| admission(logs, |fields| fields["allowed"] = false.into()),
    },
    Mutation {
        name: "an admission made a look ahead",
        expected: ExpectedResult::Noticed,
        change: |logs| admission(logs, |fields| fields["operation"] = "peek".into()),
    },
    Mutation {
        name: "decided by nobody",
        expected: ExpectedResult::Noticed,
        change: |logs| admission(logs, |fields| fields.retain(|name, _| name != "decided")),
    },
    Mutation {
        name: "decided by a fallback",
        expected: ExpectedResult::Noticed,
        change: |logs| admission(logs, |fields| fields["decided"] = "fallback".into()),
    },
    Mutation {
        name: "decided before",
        expected: ExpectedResult::Noticed,
        change: |logs| admission(logs, |fields| fields["decided"] = "replay".into()),
    },
    // Report missing lines, or write other lines.
    Mutation {
        name: "lines that were dropped",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            admission(logs, |fields| drop(fields.insert("dropped".to_owned(), 3.into())))
        },
    },
    Mutation {
        name: "a sample",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            admission(logs, |fields| drop(fields.insert("samplePpm".to_owned(), 9.into())))
        },
    },
    Mutation {
        name: "a line of another program",
        expected: ExpectedResult::Same,
        change: |logs| insert(logs, "listening on 8080") && insert(logs, "{\"level\":\"INFO\"}"),
    },
    Mutation {
        name: "a line that is no JSON",
        expected: ExpectedResult::Noticed,
        change: |logs| insert(logs, "{\"allowed\":tr"),
    },
    // Several changes at once, as in a deliberate manipulation.
    Mutation {
        name: "delete every other admission",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            let places = places(logs, is_admission);
            for &(log, line) in places.iter().skip(1).step_by(2).collect::<Vec<_>>().iter().rev() {
                logs[*log].remove(*line);
            }
            places.len() > 1
        },
    },
    Mutation {
        // The counts that the store reported later are larger than the rest of the log explains.
        name: "delete a request with all its lines and close the gaps in both numbers",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            let Some((log, line)) = admission_between_places(logs) else { return false };
            let gone = fields(&logs[log][line]);
            let is_gone = |line: &String| fields(line)["requestId"] == gone["requestId"];
            for log in logs {
                // Numbers of the lines that are left, by process, as if the others had never been.
                let removed: Vec<Value> =
                    log.iter().filter(|l| is_gone(l)).map(|line| fields(line)).collect();
                log.retain(|line| !is_gone(line));
                for line in log.iter_mut() {
                    let own = fields(line);
                    let before = |name: &str| {
                        let earlier = removed.iter().filter(|other| {
                            other["started"] == own["started"]
                                && other[name].as_u64() <= own[name].as_u64()
                        });
                        let admits = |other: &&Value| name == "line" || is_admission(other);
                        earlier.filter(admits).count() as u64
                    };
                    let numbers = ["seq", "line"]
                        .map(|name| own[name].as_u64().map(|n| (name, n - before(name))));
                    edit(line, |fields| {
                        for (name, number) in numbers.into_iter().flatten() {
                            fields[name] = number.into();
                        }
                    });
                }
            }
            true
        },
    },
    Mutation {
        name: "delete everything but the end line of a file",
        expected: ExpectedResult::Less,
        change: |logs| {
            let several = logs.len() > 1;
            if several {
                let end = logs[0].pop().expect("a line");
                logs[0] = vec![end];
            }
            several
        },
    },
    Mutation {
        name: "delete the place of a line in its process",
        expected: ExpectedResult::Noticed,
        change: |logs| admission(logs, |fields| fields.retain(|name, _| name != "line")),
    },
    Mutation {
        name: "delete the node of a line",
        expected: ExpectedResult::Noticed,
        change: |logs| admission(logs, |fields| fields.retain(|name, _| name != "node")),
    },
    Mutation {
        name: "delete the time of an admission",
        expected: ExpectedResult::Noticed,
        change: |logs| admission(logs, |fields| fields.retain(|name, _| name != "at")),
    },
    Mutation {
        name: "delete the counts of an admission",
        expected: ExpectedResult::NoticedOrSame,
        change: |logs| admission(logs, |fields| fields.retain(|name, _| name != "scopes")),
    },
    Mutation {
        name: "duplicate an admission at the end of its log",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            let Some((log, line)) = middle(logs, is_admission) else { return false };
            let again = logs[log][line].clone();
            let end = logs[log].len() - 1;
            logs[log].insert(end, again);
            true
        },
    },
    Mutation {
        name: "append the log to itself",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            let again = logs[0].clone();
            logs[0].extend(again);
            true
        },
    },
    Mutation {
        name: "move a line from one process to another",
        expected: ExpectedResult::Same,
        change: |logs| {
            let several = logs.len() > 1;
            if several {
                let line = logs[0].remove(1);
                logs[1].insert(0, line);
            }
            several
        },
    },
    Mutation {
        // An update that comes long before its admission is not counted as one.
        name: "shuffle: every third line first",
        expected: ExpectedResult::NoticedOrSame,
        change: |logs| {
            for log in logs {
                let part = |rest: usize| {
                    log.iter()
                        .enumerate()
                        .filter(move |(n, _)| n % 3 == rest)
                        .map(|(_, l)| l.clone())
                };
                *log = (0..3).flat_map(part).collect();
            }
            true
        },
    },
    Mutation {
        name: "the end line first",
        expected: ExpectedResult::Same,
        change: |logs| {
            let end = logs[0].pop().expect("a line");
            logs[0].insert(0, end);
            true
        },
    },
    Mutation {
        name: "take that is no number",
        expected: ExpectedResult::Noticed,
        change: |logs| charge(logs, |charge| charge["take"] = "one".into()),
    },
    Mutation {
        name: "a negative take",
        expected: ExpectedResult::Noticed,
        change: |logs| charge(logs, |charge| charge["take"] = (-1).into()),
    },
    Mutation {
        name: "a charge twice in one admission",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            admission_between(logs, |fields| {
                let again = fields["charges"][0].clone();
                fields["charges"].as_array_mut().expect("charges").push(again);
            })
        },
    },
    Mutation {
        name: "a charge made a shadow",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            admission_between(logs, |fields| fields["charges"][0]["shadow"] = true.into())
        },
    },
    Mutation {
        name: "another window in a charge",
        expected: ExpectedResult::Noticed,
        change: |logs| charge(logs, |charge| charge["limits"][0] = "1/7s".into()),
    },
    Mutation {
        name: "a key that is no text",
        expected: ExpectedResult::Noticed,
        change: |logs| charge(logs, |charge| charge["key"] = 7.into()),
    },
    Mutation {
        name: "a sequence number that is no number",
        expected: ExpectedResult::Noticed,
        change: |logs| admission(logs, |fields| fields["seq"] = "many".into()),
    },
    Mutation {
        name: "more admissions in the end line",
        expected: ExpectedResult::Noticed,
        change: |logs| {
            let end = logs[0].last_mut().expect("a line");
            edit(end, |fields| {
                fields["seq"] = (fields["seq"].as_u64().expect("a number") + 1).into();
            });
            true
        },
    },
    Mutation {
        name: "an empty line and a line feed of another system",
        expected: ExpectedResult::Same,
        change: |logs| {
            insert(logs, "");
            logs[0].iter_mut().for_each(|line| line.push('\r'));
            true
        },
    },
];
