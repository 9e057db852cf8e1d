//! The lists of the API server, page by page, with pages of the size that fits.

use axum::http::Request;
use axum::http::header::ACCEPT;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::Error;
use kube::api::{Api, ListParams};
use kube::core::Request as Listing;
use serde::Deserialize;
use serde_json::Value;

use crate::wire::{Object, is_unreadable};

/// The most objects of a page.
const PAGE: u32 = 500;
/// Asks for the table that `kubectl get` shows, which has the name of an object but not the object.
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

/// A list that is being read.
#[derive(Debug, Clone)]
pub(crate) struct Pager {
    api: Api<Object>,
    /// The number of objects of the next page. The token of a page does not depend on it.
    limit: u32,
    token: Option<String>,
    /// The version of the list, once the last page has come.
    version: Option<String>,
}

/// The answer to one request.
#[derive(Debug)]
pub(crate) enum Page {
    Objects(Vec<Object>),
    /// The objects could not be read together. The next page has half as many.
    Halved,
    /// An object with this name cannot be read even alone. The next page begins after it.
    Unread(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Table {
    #[serde(default)]
    metadata: ListMeta,
    column_definitions: Vec<Column>,
    #[serde(default)]
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Column {
    /// `name` for the column with the names of the objects.
    #[serde(default)]
    format: String,
}

#[derive(Deserialize)]
struct Row {
    cells: Vec<Value>,
}

impl Pager {
    pub(crate) fn new(api: Api<Object>) -> Self {
        Self {
            api,
            limit: PAGE,
            token: None,
            version: None,
        }
    }

    /// Begins with the first page. The size stays.
    pub(crate) fn restart(&mut self) {
        (self.token, self.version) = (None, None);
    }

    /// The version of the list, if the last page has come.
    pub(crate) fn end(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Asks for the next page. After an error it can be asked for again.
    pub(crate) async fn next(&mut self) -> kube::Result<Page> {
        match self.api.list(&self.parameters()).await {
            Ok(page) => {
                self.limit = (self.limit * 2).min(PAGE);
                self.advance(page.metadata);
                Ok(Page::Objects(page.items))
            }
            Err(error) if !is_unreadable(&error) => Err(error),
            Err(_) if self.limit > 1 => {
                self.limit /= 2;
                Ok(Page::Halved)
            }
            Err(_) => self.step_over().await,
        }
    }

    fn parameters(&self) -> ListParams {
        ListParams {
            limit: Some(self.limit),
            continue_token: self.token.clone(),
            ..ListParams::default()
        }
    }

    fn advance(&mut self, page: ListMeta) {
        self.token = page.continue_.filter(|token| !token.is_empty());
        if self.token.is_none() {
            self.version = Some(page.resource_version.unwrap_or_default());
        }
    }

    /// Reads the name of the next object, and the token of the page after it. Without a token the list may have changed
    /// since it could not be read. Then another object counts as unread, which is as safe.
    async fn step_over(&mut self) -> kube::Result<Page> {
        let list = Listing::new(self.api.resource_url()).list(&self.parameters());
        let list = list.map_err(Error::BuildRequest)?;
        let address = format!("{}&includeObject=None", list.uri());
        let request = Request::get(address).header(ACCEPT, TABLE);
        let request = request.body(Vec::new()).map_err(Error::HttpError)?;
        let table: Table = self.api.clone().into_client().request(request).await?;
        let mut columns = table.column_definitions.iter();
        let column = columns.position(|column| column.format == "name");
        let name = table.rows.first().map(|row| {
            let name = row.cells.get(column.unwrap_or(0));
            name.and_then(Value::as_str).unwrap_or_default().to_owned()
        });
        self.advance(table.metadata);
        Ok(name.map_or_else(|| Page::Objects(Vec::new()), Page::Unread))
    }
}
