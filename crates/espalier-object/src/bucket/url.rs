//! Location: where a store is, as a user writes it.
//!
//! | written | where |
//! |---|---|
//! | `s3://BUCKET/PREFIX?endpoint=URL&region=NAME` | S3, or what speaks its language |
//! | `gs://BUCKET/PREFIX?endpoint=URL` | Google Cloud Storage |
//! | `az://CONTAINER/PREFIX?account=NAME&endpoint=URL` | Azure Blob Storage |
//! | `https://HOST/...` | the same, by the hosts of these services |
//! | `file:///DIRECTORY` | a local directory |
//!
//! Credentials come from the environment, never from here: a location is shown in process lists and
//! logs.

mod hosts;

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
    /// A bucket of Google Cloud Storage.
    Google {
        /// The bucket.
        bucket: String,
        /// The names of all objects of the store begin with it.
        prefix: String,
        /// The server's URL, if it is not Google's.
        endpoint: Option<String>,
    },
    /// A container of Azure Blob Storage.
    Azure {
        /// The container.
        container: String,
        /// The names of all objects of the store begin with it.
        prefix: String,
        /// The storage account, if it does not come from the environment.
        account: Option<String>,
        /// The account's URL, if it is not the usual one.
        endpoint: Option<String>,
    },
    /// A local directory.
    Directory(PathBuf),
}

/// A location that is none.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct LocationError(String);

/// What locations begin with.
const SCHEMES: [&str; 5] = ["s3", "gs", "az", "https", "file"];

impl Location {
    /// True if the text is meant to be a location, right or wrong, and no path.
    pub fn is_meant_by(text: &str) -> bool {
        text.split_once("://").is_some_and(|(scheme, _)| SCHEMES.contains(&scheme))
    }

    /// A text that is no location as it may be shown: without what may be a secret in it.
    pub fn without_secrets(text: &str) -> String {
        let Some((scheme, rest)) = text.split_once("://") else {
            return text.split(['?', '#']).next().unwrap_or_default().to_owned();
        };
        match (rest.contains('@'), rest.split_once(['?', '#'])) {
            // A password may have any of these characters, so nothing tells where it ends.
            (true, Some(_)) => format!("{scheme}://..."),
            (true, None) => {
                let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
                format!("{scheme}://{place}")
            }
            // No bucket and no host of a service has a colon.
            (false, _) if rest.split('/').next().is_some_and(|first| first.contains(':')) => {
                format!("{scheme}://...")
            }
            (false, query) => format!("{scheme}://{}", query.map_or(rest, |(place, _)| place)),
        }
    }

    /// Reads a location.
    ///
    /// # Errors
    /// If it is none, with what is wrong.
    pub fn parse(text: &str) -> Result<Self, LocationError> {
        let none = || wrong("a store is s3://..., gs://..., az://..., https://... or file:///...");
        let (scheme, rest) = text.split_once("://").ok_or_else(none)?;
        if scheme == "file" {
            return match rest.starts_with('/') {
                true => Ok(Self::Directory(PathBuf::from(rest))),
                false => Err(wrong("a directory is written file:///PATH, with an absolute path")),
            };
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (first, rest) = place.split_once('/').unwrap_or((place, ""));
        let prefix = rest.trim_matches('/').to_owned();
        match scheme {
            "s3" => {
                let bucket = bucket(first, "the bucket", "s3://BUCKET/PREFIX")?;
                let [endpoint, region] = parameters(query, [ENDPOINT, "region"], "AWS_ACCESS_KEY_ID")?;
                Ok(Self::S3 { bucket, prefix, endpoint, region })
            }
            "gs" => {
                let bucket = bucket(first, "the bucket", "gs://BUCKET/PREFIX")?;
                let [endpoint] = parameters(query, [ENDPOINT], "GOOGLE_APPLICATION_CREDENTIALS")?;
                Ok(Self::Google { bucket, prefix, endpoint })
            }
            "az" => {
                let container = bucket(first, "the container", "az://CONTAINER/PREFIX")?;
                let names = [ENDPOINT, "account"];
                let [endpoint, account] = parameters(query, names, "AZURE_STORAGE_ACCOUNT_KEY")?;
                Ok(Self::Azure { container, prefix, account, endpoint })
            }
            "https" => {
                let is_host = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
                // What is no host may be the beginning of a password.
                if first.is_empty() || place.contains('@') || !first.chars().all(is_host) {
                    return Err(wrong(
                        "https://HOST/PATH with the host of a service, and without a password",
                    ));
                }
                let [] = parameters(query, [], "AWS_ACCESS_KEY_ID, AZURE_STORAGE_SAS_TOKEN")?;
                let text = hosts::with_scheme(first, &prefix).map_err(wrong)?;
                Self::parse(&text)
            }
            _ => Err(none()),
        }
    }

    /// What stands behind the question mark.
    fn parameters(&self) -> Vec<(&'static str, &str)> {
        let given = match self {
            Self::Directory(_) => Vec::new(),
            Self::S3 { endpoint, region, .. } => vec![(ENDPOINT, endpoint), ("region", region)],
            Self::Google { endpoint, .. } => vec![(ENDPOINT, endpoint)],
            Self::Azure { endpoint, account, .. } => vec![(ENDPOINT, endpoint), ("account", account)],
        };
        given.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?))).collect()
    }
}

/// The parameter that names a server.
const ENDPOINT: &str = "endpoint";

fn wrong(what: impl Into<String>) -> LocationError {
    LocationError(what.into())
}

/// The name of a bucket or container.
fn bucket(name: &str, what: &str, form: &str) -> Result<String, LocationError> {
    if name.is_empty() || name.contains(['@', ':', '%', '#']) {
        return Err(wrong(format!("{what} is missing, or has characters that none has: {form}")));
    }
    Ok(name.to_owned())
}

/// The values of parameters; `secret` is a variable of the environment with credentials.
fn parameters<const N: usize>(
    query: &str,
    names: [&str; N],
    secret: &str,
) -> Result<[Option<String>; N], LocationError> {
    let mut values = [const { None }; N];
    for parameter in query.split('&').filter(|p| !p.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let Some(at) = names.iter().position(|known| *known == name) else {
            let known = match names.map(|name| format!("{name}=...")).join(" and ") {
                known if known.is_empty() => "nothing".to_owned(),
                known => format!("only {known}"),
            };
            return Err(wrong(format!(
                "{known} may stand behind the question mark; credentials come from the environment ({secret} and the like)"
            )));
        };
        if name == ENDPOINT && !is_endpoint(value) {
            return Err(wrong("endpoint is http://HOST:PORT or https://HOST:PORT, without a password"));
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if name != ENDPOINT && (value.is_empty() || !value.chars().all(is_name)) {
            return Err(wrong(format!("{name} is a name of letters and digits")));
        }
        values[at] = Some(value.to_owned());
    }
    Ok(values)
}

/// True for a URL of a server without a name or password of a user, or a query.
fn is_endpoint(url: &str) -> bool {
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    host.is_some_and(|host| !host.is_empty() && !host.contains(['@', '?', '#']))
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => return write!(f, "file://{}", path.display()),
            Self::S3 { bucket, prefix, .. } => write!(f, "s3://{bucket}/{prefix}")?,
            Self::Google { bucket, prefix, .. } => write!(f, "gs://{bucket}/{prefix}")?,
            Self::Azure { container, prefix, .. } => write!(f, "az://{container}/{prefix}")?,
        }
        for (number, (key, value)) in self.parameters().into_iter().enumerate() {
            write!(f, "{}{key}={value}", if number == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
