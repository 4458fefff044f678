//! The event loop of `sluicegate top`: redraws the screen after each reading, key press and resize,
//! until the user quits or a signal arrives.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use ratatui::crossterm::event::{self, Event, KeyEvent};

use super::super::remote::ServiceClient;
use super::super::signals::on_end_signal;
use super::draw::draw;
use super::page::Page;
use super::screen::Screen;
use super::snapshot::NodeSnapshot;
use super::view::{KeyOutcome, View};

/// Maximum number of queued events. A reader that is faster than the screen waits.
const EVENTS_MAX: usize = 16;

enum TopEvent {
    Reading(anyhow::Result<NodeSnapshot>),
    Key(KeyEvent),
    /// The size of the terminal changed.
    Resized,
    /// The terminal can't be read any more.
    InputFailed(std::io::Error),
    EndSignal,
}

/// Shows a node until a person quits.
pub(super) fn run(
    client: ServiceClient,
    interval: Duration,
    page: Page,
    first: NodeSnapshot,
) -> anyhow::Result<()> {
    let url = client.url().to_owned();
    let (event_tx, event_rx) = sync_channel(EVENTS_MAX);
    let signal_tx = event_tx.clone();
    on_end_signal(move || drop(signal_tx.send(TopEvent::EndSignal)))?;
    let mut screen = Screen::open().context("can't take over the terminal")?;
    let key_tx = event_tx.clone();
    thread::spawn(move || read_keys(&key_tx));
    // Disconnects when this function returns, which ends the reader.
    let (_stop_tx, stop_rx) = sync_channel::<()>(1);
    thread::spawn(move || read_node(&client, interval, &event_tx, &stop_rx));
    show(&mut screen, &event_rx, page, first, &url)
}

fn show(
    screen: &mut Screen,
    events: &Receiver<TopEvent>,
    page: Page,
    first: NodeSnapshot,
    url: &str,
) -> anyhow::Result<()> {
    let (mut view, mut node, mut trouble) = (View::new(page), first, None::<String>);
    loop {
        screen.terminal.draw(|frame| draw(frame, &mut view, &node, url, trouble.as_deref()))?;
        let Ok(next) = events.recv() else { return Ok(()) };
        // All that have come are handled before the screen is drawn again.
        for event in std::iter::once(next).chain(events.try_iter()) {
            match event {
                TopEvent::Reading(Ok(read)) => (node, trouble) = (read, None),
                TopEvent::Reading(Err(error)) => trouble = Some(format!("{error:#}")),
                TopEvent::Key(key) if view.press(key, &node) == KeyOutcome::Quit => return Ok(()),
                TopEvent::Key(_) | TopEvent::Resized => {}
                TopEvent::InputFailed(error) => return Err(error).context("can't read keys"),
                TopEvent::EndSignal => return Ok(()),
            }
        }
    }
}

/// Reads keys until the process ends.
fn read_keys(events: &SyncSender<TopEvent>) {
    loop {
        let event = match event::read() {
            Ok(Event::Key(key)) => TopEvent::Key(key),
            Ok(Event::Resize(..)) => TopEvent::Resized,
            Ok(_) => continue,
            Err(error) => TopEvent::InputFailed(error),
        };
        let is_last = matches!(event, TopEvent::InputFailed(_));
        if events.send(event).is_err() || is_last {
            return;
        }
    }
}

/// Reads the state of the node once per interval.
fn read_node(
    client: &ServiceClient,
    interval: Duration,
    events: &SyncSender<TopEvent>,
    stop: &Receiver<()>,
) {
    while stop.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        if events.send(TopEvent::Reading(NodeSnapshot::read(client))).is_err() {
            return;
        }
    }
}
