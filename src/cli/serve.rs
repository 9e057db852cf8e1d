//! `rootcellar serve`.

use std::env::VarError;
use std::fmt::Display;
use std::io::IsTerminal;

use linux::os;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::config::{Config, LogFormat};
use crate::error::{Error, Result};

/// The oldest kernel with every system call in use: `nosymfollow` of `mount_setattr` came in 5.14.
const OLDEST_KERNEL: (u32, u32) = (5, 14);

pub(super) fn run(config: Config) -> Result<bool> {
    let configured = config.pools()?;
    kernel_at_least(&rustix::system::uname().release().to_string_lossy())?;
    start_log(config.log_format)?;
    allow_descriptors();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        node = %config.node,
        driver = config.driver.driver_name,
        pools = configured.pools.len(),
        sets = configured.sets.len(),
        "rootcellar starts"
    );
    crate::server::run(config, configured)?;
    Ok(true)
}

/// Fails if a kernel release of uname(2) is too old or has another form.
fn kernel_at_least(release: &str) -> Result<()> {
    let (major, minor) = OLDEST_KERNEL;
    let Some(version) = os::kernel_version(release) else {
        let problem = format!("{release:?} is not a version; rootcellar needs {major}.{minor}");
        return Err(Error::invalid("kernel", problem));
    };
    if version < OLDEST_KERNEL {
        return Err(Error::invalid(
            "kernel",
            format!("{release} is too old; rootcellar needs Linux {major}.{minor} or newer"),
        ));
    }
    Ok(())
}

/// Raises the limit of file descriptors, because the copy of a deep tree needs hundreds.
fn allow_descriptors() {
    let resource = rustix::process::Resource::Nofile;
    let mut limit = rustix::process::getrlimit(resource);
    limit.current = limit.maximum;
    if let Err(errno) = rustix::process::setrlimit(resource, limit) {
        tracing::warn!(%errno, "cannot raise the limit of descriptors");
    }
}

fn start_log(format: LogFormat) -> Result<()> {
    let directives = match std::env::var("RUST_LOG") {
        Err(VarError::NotUnicode(_)) => return Err(Error::invalid("RUST_LOG", "it is not UTF-8")),
        directives => directives.unwrap_or_default(),
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(log_filter(&directives)?)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    }
    .map_err(|error| Error::Internal(format!("cannot start the log: {error}")))
}

fn log_filter(directives: &str) -> Result<EnvFilter> {
    let is_wrong = |problem: &dyn Display| {
        let forms = "a level (error, warn, info, debug or trace) or MODULE=LEVEL";
        Error::invalid(
            "RUST_LOG",
            format!("{directives:?}: {problem}; write {forms}"),
        )
    };
    // The parser takes a misspelt level for a module, and the log of all others would end.
    let mut words = directives.split(',');
    let is_level = |word: &str| word.is_empty() || word.parse::<LevelFilter>().is_ok();
    let is_module = |word: &str| word.contains(['=', '[', ']']) || word.starts_with("rootcellar");
    if let Some(word) = words.find(|word| !is_module(word) && !is_level(word)) {
        return Err(is_wrong(&format_args!("{word} is no level")));
    }
    EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .parse(directives)
        .map_err(|error| is_wrong(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: SV1.
    #[test]
    fn the_kernel_must_be_5_14_or_newer() {
        let cases = [
            ("6.18.44-fc", None),
            ("5.14.0-362.el9", None),
            ("5.14", None),
            ("5.15-rc1", None),
            ("10.0.0", None),
            ("5.13.19", Some("too old")),
            ("5.10.0-28-amd64", Some("too old")),
            ("5.2.14", Some("too old")),
            ("4.19.0", Some("too old")),
            ("", Some("not a version")),
            ("6", Some("not a version")),
            ("six.one", Some("not a version")),
            ("v6.1", Some("not a version")),
            ("-5.14", Some("not a version")),
            ("99999999999.1", Some("not a version")),
        ];
        for (release, problem) in cases {
            match (kernel_at_least(release), problem) {
                (Ok(()), None) => {}
                (Err(error), Some(fragment)) => {
                    assert!(error.to_string().contains(fragment), "{release:?}: {error}");
                }
                (result, _) => panic!("{release:?}: {result:?}"),
            }
        }
    }

    #[test]
    fn a_bad_log_filter_is_a_mistake_in_the_environment() {
        for good in [
            "",
            "debug",
            "off",
            "info,rootcellar::pool=debug",
            "rootcellar[span]=warn",
            "info,rootcellar",
        ] {
            log_filter(good).unwrap();
        }
        for bad in [
            "rootcellar=loud=very",
            "verbose",
            "info,verbose",
            "rootcellar=loud",
        ] {
            let error = log_filter(bad).unwrap_err().to_string();
            assert!(error.starts_with(&format!("RUST_LOG: {bad:?}")), "{error}");
            assert!(error.ends_with("or MODULE=LEVEL"), "{error}");
        }
    }
}
