// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Commands that show something again and again until they are asked to end: pages below one another, or on a terminal
//! a full screen. The terminal is as before when the command ends, also by a signal or a panic.

use std::io::{self, Write};
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use crate::output;
use crate::terminal::{moves_cursor, rows};

/// Control sequences of xterm, which every terminal emulator and the console take: the alternate screen, without a
/// cursor; lines that are longer than the screen is wide are cut.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The key that ends a command on a full screen.
const QUIT: u8 = b'q';

/// Waits until a time is over, or SIGTERM or SIGINT asks for the end.
#[derive(Debug)]
pub(crate) struct Pauses {
    terminate: Signal,
    interrupt: Signal,
}

impl Pauses {
    /// Receives SIGTERM and SIGINT from now on.
    ///
    /// # Errors
    /// The signals cannot be received.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("listening for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("listening for SIGINT")?,
        })
    }

    /// Whether to go on after this time.
    pub(crate) async fn wait(&mut self, time: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(time) => true,
            _ = self.terminate.recv() => false,
            _ = self.interrupt.recv() => false,
        }
    }
}

/// Pages on standard output: each in the place of the one before on a terminal, below it elsewhere.
#[derive(Debug)]
pub(crate) struct Pages {
    pauses: Pauses,
    screen: Option<Screen>,
}

impl Pages {
    /// Takes over the terminal, if standard output is one.
    ///
    /// # Errors
    /// It cannot be set up.
    pub(crate) fn start() -> Result<Self> {
        let pauses = Pauses::new()?;
        let screen = moves_cursor(&io::stdout()).then(Screen::take).transpose()?;
        Ok(Self { pauses, screen })
    }

    /// Shows a page: in place on a terminal, one after another elsewhere.
    ///
    /// # Errors
    /// As [`output::print()`].
    pub(crate) fn show(&self, page: &str) -> Result<()> {
        match self.screen {
            Some(_) => output::print(&framed(page, rows())),
            None => output::print(page),
        }
    }

    /// Whether to show another page: after this time, or at once because the size of the screen has changed.
    pub(crate) async fn wait(&mut self, time: Duration) -> bool {
        match &mut self.screen {
            Some(Screen { resized, quit, .. }) => tokio::select! {
                goes_on = self.pauses.wait(time) => goes_on,
                _ = resized.recv() => true,
                () = quit.notified() => false,
            },
            None => self.pauses.wait(time).await,
        }
    }
}

/// A page that takes the place of the one before. Each line is erased first, so that nothing flickers.
fn framed(page: &str, rows: usize) -> String {
    let mut lines: Vec<String> = page.lines().map(str::to_owned).collect();
    if lines.len() > rows {
        let hidden = lines.len() + 1 - rows;
        lines.truncate(rows - 1);
        lines.push(format!("... {hidden} more lines"));
    }
    // A line end after the last row would scroll.
    format!("\x1b[H\x1b[K{}\x1b[J", lines.join("\n\x1b[K"))
}

/// The terminal while it is taken over.
#[derive(Debug)]
struct Screen {
    saved: Arc<Saved>,
    resized: Signal,
    quit: Arc<Notify>,
}

/// State of the terminal before.
#[derive(Debug)]
struct Saved {
    /// Modes of standard input; none if that is not a terminal.
    modes: Option<Termios>,
    is_taken: AtomicBool,
}

impl Screen {
    fn take() -> Result<Self> {
        let modes = tcgetattr(io::stdin()).ok();
        let saved = Arc::new(Saved { modes, is_taken: AtomicBool::new(true) });
        let of_hook = Arc::clone(&saved);
        let former = panic::take_hook();
        // A message on the alternate screen would vanish with it.
        panic::set_hook(Box::new(move |info| {
            of_hook.give_back();
            former(info);
        }));
        let mut screen = Self {
            resized: signal(SignalKind::window_change()).context("listening for SIGWINCH")?,
            quit: Arc::default(),
            saved,
        };
        if let Some(mut modes) = screen.saved.modes.clone() {
            modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            // Ctrl-Z would give the terminal back as it is now.
            modes.special_codes[SpecialCodeIndex::VSUSP] = 0;
            tcsetattr(io::stdin(), OptionalActions::Flush, &modes)
                .context("setting the terminal")?;
            screen.quit = watch_keys();
        }
        write(ENTER).context("writing to the terminal")?;
        Ok(screen)
    }
}

/// Reads keys until one ends the command; the thread ends with the process.
fn watch_keys() -> Arc<Notify> {
    let quit = Arc::new(Notify::new());
    let of_thread = Arc::clone(&quit);
    thread::spawn(move || {
        let mut typed = [0; 64];
        loop {
            match rustix::io::read(io::stdin(), &mut typed) {
                Ok(0) => return,
                Ok(length) if typed[..length].contains(&QUIT) => return of_thread.notify_one(),
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    });
    quit
}

impl Saved {
    fn give_back(&self) {
        if !self.is_taken.swap(false, Ordering::Relaxed) {
            return;
        }
        // A terminal that is gone needs nothing.
        let _ = write(LEAVE);
        if let Some(modes) = &self.modes {
            let _ = tcsetattr(io::stdin(), OptionalActions::Flush, modes);
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.saved.give_back();
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::process::Command;

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    #[test]
    fn page_is_cut_to_the_rows_and_does_not_scroll() {
        assert_eq!(framed("a\nb\n", 2), "\x1b[H\x1b[Ka\n\x1b[Kb\x1b[J");
        assert_eq!(
            framed("a\nb\nc\nd\n", 3),
            "\x1b[H\x1b[Ka\n\x1b[Kb\n\x1b[K... 2 more lines\x1b[J"
        );
        assert_eq!(framed("a\nb\n", 1), "\x1b[H\x1b[K... 2 more lines\x1b[J");
    }

    /// The program of the test below, on a terminal.
    #[test]
    #[ignore = "panics: the next test runs it"]
    fn panic_on_a_full_screen() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let _pages = Pages::start().expect("a terminal");
            panic!("on purpose");
        });
    }

    #[test]
    fn message_of_a_panic_is_on_the_screen_of_before() {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("a terminal");
        let name = ptsname(&ours, Vec::new()).expect("a name");
        let name = name.to_str().expect("text");
        let theirs = File::options().read(true).write(true).open(name).expect("a terminal");
        let before = tcgetattr(&theirs).expect("modes");
        let clone = || theirs.try_clone().expect("a descriptor");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["--exact", "screen::tests::panic_on_a_full_screen", "--ignored", "--nocapture"])
            .envs([("TERM", "xterm"), ("RUST_BACKTRACE", "0")])
            .stdin(clone())
            .stdout(clone())
            .stderr(clone());
        let mut child = command.spawn().expect("a program");
        drop(command);
        assert!(!child.wait().expect("an end").success());
        assert_eq!(tcgetattr(&theirs).expect("modes").local_modes, before.local_modes);
        drop(theirs);
        let mut bytes = Vec::new();
        // Linux reports the end as EIO, after everything was read.
        let _ = File::from(ours).read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part:?} in {text}"));
        assert!(at(ENTER) < at(LEAVE) && at(LEAVE) < at("on purpose"), "{text}");
        assert_eq!(text.matches(LEAVE).count(), 1, "{text}");
    }
}
