use super::{LOCAL_VARIABLES, git_command};
use std::process::Command;

#[test]
fn all_that_git_calls_local_is_cleared() {
    let named = Command::new("git").args(["rev-parse", "--local-env-vars"]).output().unwrap();
    for name in String::from_utf8(named.stdout).unwrap().lines() {
        assert!(LOCAL_VARIABLES.contains(&name), "{name}");
        assert!(git_command().get_envs().any(|(cleared, to)| cleared == name && to.is_none()), "{name}");
    }
}
