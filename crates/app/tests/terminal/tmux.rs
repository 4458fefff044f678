//! [`Tmux`]: a terminal with a shell, whose screen a test reads.

use std::path::PathBuf;
use std::process::Command;

use sluicegate_testkit::eventually_get;

/// A terminal of 120 columns and 40 rows. Its server is private, and ends when this is dropped.
pub(crate) struct Tmux {
    folder: tempfile::TempDir,
}

impl Tmux {
    /// Starts a shell in a terminal, with these environment variables.
    pub(crate) fn start(environment: &[(&str, &str)]) -> Self {
        let tmux = Self { folder: tempfile::tempdir().expect("a folder") };
        let mut command = tmux.command();
        command.args(["-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "40"]);
        command.args(["env", "PS1=$ ", "LC_ALL=C.UTF-8"]);
        command.args(environment.iter().map(|(name, value)| format!("{name}={value}")));
        let started = command.arg("sh").status().expect("tmux: run `cargo xtask test terminal`");
        assert!(started.success(), "tmux starts");
        tmux.wait_for("$");
        tmux
    }

    fn command(&self) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-u").arg("-S").arg(self.folder.path().join("socket"));
        // Otherwise a test that runs in tmux would use that server.
        command.env_remove("TMUX").env_remove("NO_COLOR").env("LC_ALL", "C.UTF-8");
        command
    }

    fn run(&self, arguments: &[&str]) -> String {
        let output = self.command().args(arguments).output().expect("tmux runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Returns a path in a folder that is deleted with the terminal.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Types a command and presses enter.
    pub(crate) fn command_line(&self, line: &str) {
        self.type_text(line);
        self.press("Enter");
    }

    /// Types a text.
    pub(crate) fn type_text(&self, text: &str) {
        self.run(&["send-keys", "-l", "--", text]);
    }

    /// Presses a key, by its name in tmux.
    pub(crate) fn press(&self, key: &str) {
        self.run(&["send-keys", "--", key]);
    }

    /// Returns the text on the screen.
    pub(crate) fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    /// Returns the text on the screen with its colours.
    pub(crate) fn coloured_screen(&self) -> String {
        self.run(&["capture-pane", "-p", "-e"])
    }

    /// Returns true if a program has taken over the screen.
    pub(crate) fn is_taken_over(&self) -> bool {
        self.run(&["display-message", "-p", "#{alternate_on}"]).trim() == "1"
    }

    /// Waits until the screen contains a text; returns the screen.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) -> String {
        self.wait_until(|screen| screen.contains(text))
    }

    /// Waits until the screen is as expected; returns it.
    #[track_caller]
    pub(crate) fn wait_until(&self, is_expected: impl Fn(&str) -> bool) -> String {
        eventually_get(|| {
            let screen = self.screen();
            if is_expected(&screen) { Ok(screen) } else { Err(screen) }
        })
    }

    /// Checks that the terminal is as a shell needs it: with echo, line by line, with its screen.
    #[track_caller]
    pub(crate) fn assert_restored(&self) {
        assert!(!self.is_taken_over(), "the screen is given back");
        self.command_line("clear; stty -a | tr ';' '\\n' | grep -ow -e '-\\?echo' -e '-\\?icanon'");
        let screen = self.wait_until(|screen| screen.matches("\necho").count() > 0);
        let words: Vec<_> = screen.lines().map(str::trim).collect();
        assert!(words.contains(&"echo") && words.contains(&"icanon"), "{screen}");
        // The prompt is where the cursor is visible.
        assert_eq!(self.run(&["display-message", "-p", "#{cursor_flag}"]).trim(), "1");
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.command().arg("kill-server").status();
    }
}
