//! The address at which the metrics of a mount are to be had.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// What an address begins with that other machines may reach.
const PUBLIC: &str = "public:";

/// Where metrics are to be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MetricsAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp(SocketAddr),
}

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            // The server changes its directory before a client comes.
            let path = std::path::absolute(path).map_err(|error| format!("'{text}': {error}"))?;
            return Ok(Self::Unix(path));
        }
        let (public, number) = match text.strip_prefix(PUBLIC) {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let address: SocketAddr = number
            .parse()
            .map_err(|_| format!("'{text}' is no address; write unix:PATH or 127.0.0.1:PORT"))?;
        if !public && !address.ip().is_loopback() {
            return Err(format!(
                "'{text}' can be reached from other machines, and every one of their users would see the \
                 metrics; if that is meant, write {PUBLIC}{text}"
            ));
        }
        Ok(Self::Tcp(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_other_machines_must_be_asked_for() {
        let parse = |text: &str| text.parse::<MetricsAddress>();
        assert_eq!(parse("unix:/run/m.sock"), Ok(MetricsAddress::Unix("/run/m.sock".into())));
        assert_eq!(parse("127.0.0.1:9464"), Ok(MetricsAddress::Tcp(([127, 0, 0, 1], 9464).into())));
        assert!(parse("[::1]:9464").is_ok());
        for text in ["0.0.0.0:9464", "192.0.2.1:80", "[::]:9464"] {
            let said = parse(text).unwrap_err();
            assert!(said.contains(&format!("public:{text}")), "{said}");
            assert!(parse(&format!("public:{text}")).is_ok());
        }
        for text in ["9464", "localhost:9464", "", "public:unix:/x"] {
            assert!(parse(text).unwrap_err().contains("no address"), "{text}");
        }
    }
}
