//! The refusals of the host's side of imports and exports, and their texts.

/// The reason why a directory of the host is not imported, or a volume not exported to it.
#[derive(Debug, thiserror::Error)]
pub enum HostRefusal {
    #[error("{0}")]
    Text(String),
}
