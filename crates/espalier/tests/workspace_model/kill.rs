//! Crashes of a run: the server, or the command, is killed with SIGKILL while a command is stopped
//! right before one of its changes, or goes on with it.
//!
//! What a server had written stays, as the kernel has it. What it had not is lost; so a sync before
//! most kills, made by the test while the command is stopped, brings what the command did so far
//! to the device, and states in the midst of commands come back.

use crate::common::Place;
use crate::common::traced::{Traced, workspace_command};
use crate::run::{Choice, Run, let_users_in};
use crate::state::{Act, End, State};
use std::fs;
use std::process::Stdio;

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Killed {
    Server,
    /// The command, before the change.
    Command,
}

/// A run with kills, on an image.
pub(crate) struct Killing {
    place: Place,
    pub(crate) run: Run,
}

impl Killing {
    pub(crate) fn new(seed: u64, user: Option<u32>) -> Self {
        let place = Place::mounted("512M");
        let_users_in(&place);
        let run = Run::new(&place.dir, seed, user);
        Self { place, run }
    }

    /// One choice; most commands are killed, and the server is between commands instead of
    /// unmounting it.
    pub(crate) fn step(&mut self, step: usize) {
        match self.run.choose() {
            Choice::Disturb => self.crash_between(step),
            Choice::Command(act) if self.is_killed(&act) => self.crash_in(&act, step),
            choice => self.run.carry_out(&choice),
        }
        if self.run.random.below(4) == 0 {
            self.run.sync();
        }
        self.run.compare(step);
    }

    /// Without workspaces there is nothing but creations to kill, so most of those are left alone.
    fn is_killed(&mut self, act: &Act) -> bool {
        let odds = match act {
            // It begins another program.
            Act::Create(_, End::Process) => 0,
            Act::Create(..) => 1,
            _ => 3,
        };
        self.run.random.below(4) < odds
    }

    /// Unmounts, checks, and mounts again at the end of the run.
    pub(crate) fn end(&mut self, step: usize) {
        self.collect();
        self.run.compare(step);
        self.place.remount();
        self.run.compare(step);
    }

    fn crash_between(&mut self, step: usize) {
        self.place.kill_server();
        self.place.remount_after_nothing();
        let allowed = self.run.history.clone();
        self.run.recover(&allowed, &format!("step {step}, between commands"));
    }

    /// Carries out a command as a process, which or whose server is killed.
    fn crash_in(&mut self, act: &Act, step: usize) {
        let random = &mut self.run.random;
        let killed = if random.below(4) == 0 { Killed::Command } else { Killed::Server };
        let (changes, is_synced, goes_on) =
            (random.below(act.changes()), random.below(4) > 0, random.below(2) == 0);
        let words = act.words(&self.run.original());
        let mut command = workspace_command(self.run.user, self.run.top.as_os_str(), &words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut traced = Traced::start(&mut command);
        let reached = (0..=changes).take_while(|_| traced.next_change()).count() as u64;
        if is_synced {
            fs::File::open(&self.place.dir).unwrap().sync_all().unwrap();
        }
        let ended = traced.ended();
        match killed {
            Killed::Command => traced.kill(),
            Killed::Server => {
                let server = self.place.server();
                if goes_on {
                    traced.let_go();
                }
                self.place.kill_process(server);
                traced.finish();
                self.place.take_down();
                self.place.remount_after_nothing();
            }
        }
        let passed = self.run.state.after(act);
        let ended = ended.map(|status| status.success());
        let allowed = self.allowed(passed.clone(), is_synced || killed == Killed::Command, ended);
        let what = format!(
            "step {step}, {act:?}, {killed:?} at change {reached}, ended {ended:?}, synced {is_synced}, on {goes_on}"
        );
        self.run.recover(&allowed, &what);
        if killed == Killed::Command {
            // The mount goes on, so what came before may still be lost.
            self.run.sync();
        }
        let is_halfway = passed.len() > 1 && passed[0] == self.run.state && passed[1] != self.run.state;
        self.run.counts.halfway += usize::from(is_halfway);
        self.collect();
    }

    /// The states that a crash may leave in or after a command that passes the states `passed`, if
    /// all that was done before the crash was durable or not. `ended`: whether it had ended, and
    /// succeeded.
    fn allowed(&self, passed: Vec<State>, is_durable: bool, ended: Option<bool>) -> Vec<State> {
        let before = match is_durable {
            true => vec![self.run.state.clone()],
            false => self.run.history.clone(),
        };
        match ended {
            Some(true) if is_durable => passed.last().cloned().into_iter().collect(),
            // Refused, as a conflict is.
            Some(false) => before,
            _ => [before, passed].concat(),
        }
    }

    /// What crashes have left goes by `gc`: nothing is there but what the model knows.
    fn collect(&mut self) {
        let words = "gc --missing";
        let command = &mut workspace_command(self.run.user, self.run.top.as_os_str(), words);
        crate::common::run(command);
        self.run.pass(self.run.state.after(&Act::Collect));
        let _acting = self.run.act_as_user();
        let names = |dir: &str| -> Vec<String> {
            let Ok(found) = fs::read_dir(self.run.home().join(dir)) else { return Vec::new() };
            let mut names: Vec<String> =
                found.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        let seed = self.run.seed;
        let known: Vec<&String> = self.run.state.known.keys().collect();
        assert_eq!(names("names").iter().collect::<Vec<_>>(), known, "seed {seed}: names");
        let mut left: Vec<String> = names("").into_iter().filter(|name| name.len() == 16).collect();
        assert_eq!(left.len(), known.len(), "seed {seed}: data about workspaces");
        left = left.iter().flat_map(|data| names(data)).collect();
        left.retain(|name| !matches!(&**name, "record" | "base" | "lock" | "record.new"));
        let kept = |name: &&String| name.starts_with("checkpoint-");
        assert_eq!(left.iter().filter(kept).count(), left.len(), "seed {seed}: {left:?}");
    }
}
