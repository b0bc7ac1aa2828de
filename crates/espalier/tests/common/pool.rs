//! A mount on which a user, root or an ordinary one, gives commands about workspaces.

use super::{Place, Ran, as_user, run};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// An ordinary user.
pub const USER: u32 = 4321;

/// A mount with a directory `top` in it that belongs to the user that gives the commands.
pub struct Pool {
    pub place: Place,
    pub top: PathBuf,
    pub user: Option<u32>,
}

impl Pool {
    pub fn of(user: Option<u32>) -> Self {
        let place = Place::mounted("1G");
        fs::set_permissions(place.base.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let top = place.dir.join("top");
        fs::create_dir(&top).unwrap();
        if let Some(user) = user {
            std::os::unix::fs::chown(&top, Some(user), Some(user)).unwrap();
        }
        Self { place, top, user }
    }

    /// A program, as the user, in `top`.
    pub fn program(&self, program: &str) -> Command {
        let mut command = as_user(self.user, program);
        command.current_dir(&self.top).env("HOME", &self.top).stdin(Stdio::null());
        command
    }

    /// A shell command, which must succeed.
    #[track_caller]
    pub fn sh(&self, text: &str) -> String {
        run(self.program("sh").args(["-ec", text]))
    }

    /// `espalier workspace` with blanks between its words.
    pub fn ws(&self, words: &str) -> Ran {
        let mut command = self.program(env!("CARGO_BIN_EXE_espalier"));
        command.arg("workspace").args(words.split(' ')).output().expect("the program runs").into()
    }

    #[track_caller]
    pub fn json(&self, words: &str) -> Value {
        let said = self.ws(&format!("{words} --json"));
        serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:?}"))
    }

    pub fn names(&self) -> Vec<String> {
        let all = self.json("list");
        let name = |one: &Value| one["name"].as_str().unwrap().to_owned();
        all["workspaces"].as_array().unwrap().iter().map(name).collect()
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.top.join(path)
    }
}

/// What every test does as root and as an ordinary user.
pub fn as_both(test: impl Fn(&Pool)) {
    for user in [None, Some(USER)] {
        let pool = Pool::of(user);
        test(&pool);
        // All that is left is sound.
        pool.place.remount();
    }
}
