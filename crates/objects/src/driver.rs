//! The names by which Kubernetes knows the driver, as flags.

use crate::manifest::is_name;

/// The longest driver name, topology prefix and topology name that CSI allows.
pub const MAX_NAME: usize = 63;

/// The names by which Kubernetes knows the driver.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text")]
pub struct DriverArgs {
    /// Use this CSI driver name
    #[arg(long, value_name = "NAME", default_value = "csi.rootcellar.dev",
          value_parser = parse_driver_name)]
    pub driver_name: String,

    /// Report the node of a volume to Kubernetes by this topology key
    #[arg(long, value_name = "PREFIX/NAME", default_value = "topology.rootcellar.dev/node",
          value_parser = parse_topology_key)]
    pub topology_key: String,
}

fn parse_driver_name(text: &str) -> Result<String, String> {
    let is_letter = |c: char| c.is_ascii_lowercase();
    if !is_dns_subdomain(text) || !text.starts_with(is_letter) || !text.ends_with(is_letter) {
        return Err(format!(
            "not a driver name: at most {MAX_NAME} characters of a-z, 0-9, '-' and '.' in the form \
             of a domain name that begins and ends with a letter"
        ));
    }
    Ok(text.to_owned())
}

fn parse_topology_key(text: &str) -> Result<String, String> {
    let is_key = |(prefix, name): (&str, &str)| is_dns_subdomain(prefix) && is_label_name(name);
    if !text.split_once('/').is_some_and(is_key) {
        return Err(format!(
            "not a topology key: a lower-case domain name, '/', and a name of letters, digits, '-', \
             '_' and '.', each at most {MAX_NAME} characters"
        ));
    }
    Ok(text.to_owned())
}

fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_NAME && is_name(text)
}

fn is_label_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.len() <= MAX_NAME
        && text.chars().all(allowed)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}
