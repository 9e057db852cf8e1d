//! `rootcellar-fleet list`: the controller's page as a table, for a person who may read it through the API server.

use axum::http::Request;
use clap::Args;
use kube::{Client, Config};

use crate::status::Status;

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Read the page of the controller in this namespace
    #[arg(long, value_name = "NAMESPACE", default_value = "rootcellar-system")]
    namespace: String,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Why there is no list.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoList {
    #[error("cannot find out how to reach the API server: {0}; set KUBECONFIG")]
    Config(#[from] kube::config::InferConfigError),
    #[error("the namespace {0:?} has characters that no namespace has")]
    Namespace(String),
    #[error(
        "cannot read the page of the controller: {0}; this needs fleet.enabled in the chart, and the Role \
         rootcellar-fleet-reader for your account"
    )]
    Page(#[from] kube::Error),
    #[error(
        "the page of the controller is of another version: {0}; use the rootcellar-fleet of the controller's version"
    )]
    Malformed(#[from] serde_json::Error),
}

impl ListArgs {
    /// Reads the page, and returns its text for people or programs.
    pub(crate) async fn text(&self) -> Result<String, NoList> {
        let namespace = &self.namespace;
        let allowed = |char: char| char.is_ascii_alphanumeric() || char == '-';
        if namespace.is_empty() || !namespace.chars().all(allowed) {
            return Err(NoList::Namespace(namespace.clone()));
        }
        let client = Client::try_from(Config::infer().await?)?;
        let path =
            format!("/api/v1/namespaces/{namespace}/services/rootcellar-fleet:http/proxy/nodes");
        let request = Request::get(path).body(Vec::new());
        let request = request.map_err(kube::Error::HttpError)?;
        let page = client.request_text(request).await?;
        let status: Status = serde_json::from_str(&page)?;
        Ok(if self.json {
            page
        } else {
            status.lines().join("\n")
        })
    }
}
