//! Times calls on many files through the mount, by system calls, and past the kernel, by a client.
//!
//! usage: many DIRECTORY [FILES]
//!
//! DIRECTORY lies in a mount of Espalier. Two directories with FILES files of 4 KiB each (default
//! 20,000) are made in it and removed again.

use espalier_client::{Client, Links, Listing, Piece, Write, WriteFlags};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Files of one directory.
const PER_DIRECTORY: usize = 500;
/// Files of one call.
const BATCH: usize = 256;

fn timed(what: &str, work: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    work()?;
    println!("{what:<28} {:>8.3} s", begun.elapsed().as_secs_f64());
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let top = PathBuf::from(arguments.next().ok_or("usage: many DIRECTORY [FILES]")?);
    let count = arguments.next().map_or(Ok(20_000), |count| count.parse::<usize>())?;
    let content = vec![7u8; 4096];
    let names: Vec<String> = (0..count).map(|n| format!("d{}/f{n}", n / PER_DIRECTORY)).collect();
    // Any order but that of the names.
    let shuffled: Vec<&String> = (0..count).map(|n| &names[n * 7919 % count]).collect();
    by_system_calls(&top.join("many-by-kernel"), &names, &shuffled, &content)?;
    fs::create_dir(top.join("many-by-client"))?;
    let client = Client::connect(top.join("many-by-client"))?;
    by_client(&client, &names, &shuffled, &content)?;
    drop(client);
    let client = Client::connect(&top)?;
    timed("client: remove all", || Ok(client.remove_tree("many-by-client")?))
}

fn by_system_calls(
    top: &Path,
    names: &[String],
    shuffled: &[&String],
    content: &[u8],
) -> Result<(), Box<dyn Error>> {
    timed("system calls: write", || {
        for name in names {
            let path = top.join(name);
            fs::create_dir_all(path.parent().ok_or("a file without a directory")?)?;
            fs::write(path, content)?;
        }
        Ok(())
    })?;
    timed("system calls: stat", || {
        names.iter().try_for_each(|name| fs::metadata(top.join(name)).map(drop)).map_err(Into::into)
    })?;
    timed("system calls: list with stat", || list(top))?;
    timed("system calls: read shuffled", || {
        shuffled.iter().try_for_each(|name| fs::read(top.join(name)).map(drop)).map_err(Into::into)
    })?;
    timed("system calls: remove all", || Ok(fs::remove_dir_all(top)?))
}

fn list(directory: &Path) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.metadata()?.is_dir() {
            list(&entry.path())?;
        }
    }
    Ok(())
}

fn by_client(
    client: &Client,
    names: &[String],
    shuffled: &[&String],
    content: &[u8],
) -> Result<(), Box<dyn Error>> {
    timed("client: write_many", || {
        for names in names.chunks(BATCH) {
            let files: Vec<Write<'_>> = names.iter().map(|name| Write::file(name, content)).collect();
            client.write_many(&files, WriteFlags::default()).into_iter().collect::<Result<(), _>>()?;
        }
        Ok(())
    })?;
    timed("client: stat_many", || {
        for names in names.chunks(BATCH) {
            client.stat_many(names, Links::Follow)?.into_iter().collect::<Result<Vec<_>, _>>()?;
        }
        Ok(())
    })?;
    timed("client: walk", || {
        let found = client.walk(".", &Listing::default())?.collect::<Result<Vec<_>, _>>()?;
        if found.len() < names.len() { Err("files are missing".into()) } else { Ok(()) }
    })?;
    timed("client: read_many shuffled", || {
        for names in shuffled.chunks(BATCH) {
            let pieces: Vec<Piece<'_>> = names
                .iter()
                .map(|name| Piece { path: name.as_bytes(), offset: 0, length: u64::MAX })
                .collect();
            let mut failed = None;
            client.read_many(&pieces, &mut |_, data| {
                failed = data.err();
                failed.is_none()
            })?;
            failed.map_or(Ok(()), Err)?;
        }
        Ok(())
    })
}
