//! A server that does next to nothing: it forgets what is written and knows names only. No file system behind these transports
//! can be faster; `espalier-bench --bound PROGRAM` lets it take part.
//!
//! `bound DIR` mounts it on a directory and says `mounted`. It says `unmounted` when it was unmounted, and mounts the same again for
//! each line that it reads then. Run as root.

#[path = "../tests/common/toy.rs"]
#[allow(dead_code, reason = "the tests of transport and mount use more of it")]
mod toy;

use espalier_fuse::transport::Handler;
use espalier_fuse::{Mount, MountOptions};
use std::path::PathBuf;
use std::sync::Arc;
use toy::Toy;

fn main() {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: bound DIR");
        std::process::exit(2);
    };
    let toy = Arc::new(Toy::sink());
    loop {
        let handler = Arc::clone(&toy) as Arc<dyn Handler>;
        match Mount::start_handler(handler, &directory, &MountOptions::default()) {
            Ok(mount) => {
                println!("mounted");
                mount.wait();
            }
            Err(error) => {
                eprintln!("bound: {error}");
                std::process::exit(1);
            }
        }
        println!("unmounted");
        if std::io::stdin().read_line(&mut String::new()).is_ok_and(|length| length == 0) {
            return;
        }
    }
}
