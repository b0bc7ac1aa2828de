//! Location: where a store is, as a user writes it.
//!
//! `s3://BUCKET/PREFIX?endpoint=URL&region=NAME`, `file:///DIRECTORY`, or `memory://` for tests.
//! Credentials come from the environment, never from here: a location is shown in process lists and
//! logs.

use std::fmt;
use std::path::PathBuf;

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A bucket of S3, or of what speaks its language.
    S3 {
        /// The bucket.
        bucket: String,
        /// The names of all objects of the store begin with it.
        prefix: String,
        /// The server's URL, if it is not Amazon's.
        endpoint: Option<String>,
        /// The region, if it does not come from the environment.
        region: Option<String>,
    },
    /// A local directory.
    Directory(PathBuf),
}

/// A location that is none.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct LocationError(String);

impl Location {
    /// True if the text is meant to be a location, right or wrong, and no path.
    pub fn is_meant_by(text: &str) -> bool {
        text.starts_with("s3://") || text.starts_with("file://")
    }

    /// Reads a location.
    ///
    /// # Errors
    /// If it is none, with what is wrong.
    pub fn parse(text: &str) -> Result<Self, LocationError> {
        let wrong = |what: &str| LocationError(what.to_owned());
        if let Some(path) = text.strip_prefix("file://") {
            return match path.starts_with('/') {
                true => Ok(Self::Directory(PathBuf::from(path))),
                false => Err(wrong("a directory is written file:///PATH, with an absolute path")),
            };
        }
        let rest = text.strip_prefix("s3://").ok_or_else(|| wrong("a store is s3://... or file:///..."))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        if bucket.is_empty() || bucket.contains(['@', ':']) {
            return Err(wrong(
                "the bucket is missing, or has characters that no bucket has: s3://BUCKET/PREFIX",
            ));
        }
        let (mut endpoint, mut region) = (None, None);
        for parameter in query.split('&').filter(|p| !p.is_empty()) {
            match parameter.split_once('=') {
                Some(("endpoint", url)) if is_endpoint(url) => endpoint = Some(url.to_owned()),
                Some(("endpoint", _)) => {
                    return Err(wrong(
                        "endpoint is http://HOST:PORT or https://HOST:PORT, without a password",
                    ));
                }
                Some(("region", name)) => region = Some(name.to_owned()),
                _ => {
                    return Err(wrong(
                        "only endpoint=URL and region=NAME may stand behind the question mark; credentials come from \
                         the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)",
                    ));
                }
            }
        }
        let prefix = prefix.trim_matches('/').to_owned();
        Ok(Self::S3 { bucket: bucket.to_owned(), prefix, endpoint, region })
    }
}

/// True for a URL of a server without a name or password of a user.
fn is_endpoint(url: &str) -> bool {
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    host.is_some_and(|host| !host.is_empty() && !host.contains('@'))
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "file://{}", path.display()),
            Self::S3 { bucket, prefix, endpoint, region } => {
                write!(f, "s3://{bucket}/{prefix}")?;
                let parameters = [("endpoint", endpoint), ("region", region)];
                let given = parameters.iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
                for (number, (key, value)) in given.enumerate() {
                    write!(f, "{}{key}={value}", if number == 0 { '?' } else { '&' })?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_read_and_written() {
        for text in [
            "s3://bucket/a/b?endpoint=http://127.0.0.1:7070",
            "s3://bucket/",
            "s3://bucket/x?endpoint=https://s3.example.org&region=eu-1",
            "file:///srv/store",
        ] {
            assert_eq!(Location::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_location_or_has_a_secret_is_refused() {
        for text in [
            "s3://",
            "s3:///prefix",
            "file://relative",
            "s3://key:secret@bucket/prefix",
            "s3://bucket/p?secret=1",
            "s3://bucket/p?endpoint=http://user:secret@host",
            "http://bucket",
        ] {
            assert!(Location::parse(text).is_err(), "{text}");
        }
    }
}
