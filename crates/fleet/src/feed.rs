//! The objects of a kind, as events that begin with all of them.
//!
//! A server that can streams the list: it sends the objects alone, as the first part of a watch, and then a mark. It needs
//! no pages, and nothing expires. Others refuse that in many ways: the feature is off, or the storage behind the server is
//! too old and the stream ends with an error. So after any error before the mark, the list is read by pages.
//!
//! A list may take as long as it makes progress. Without progress for [`STALE`], it begins again.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use kube::Error;
use kube::api::{Api, WatchEvent, WatchParams};
use tokio::time::{Instant, sleep, timeout_at};

use crate::pager::{Page, Pager};
use crate::wire::{Object, is_unreadable};

/// After so long without an object, a page or a bookmark, something proves the state: a watch that lasted begins again
/// where it was, and otherwise a list begins. The server sends a bookmark each minute, but it may send none for a kind that
/// does not change.
pub(crate) const STALE: Duration = Duration::from_mins(5);
/// A watch that stayed open for so long has shown all changes. A server or a proxy that ends each watch at once may hide
/// them.
const LASTS: Duration = Duration::from_mins(1);
/// The longest time of a stream that begins with a list, in seconds.
const STREAM: u32 = 1800;
/// The annotation of the bookmark at the end of a streamed list.
const END: &str = "k8s.io/initial-events-end";
/// The least and the longest pause after an error.
const PAUSE: (Duration, Duration) = (Duration::from_millis(800), Duration::from_secs(30));
/// After so long without an error, the next pause is the least one.
const CALM: Duration = Duration::from_mins(2);

type Watch = BoxStream<'static, kube::Result<WatchEvent<Object>>>;

/// A change of the state.
#[derive(Debug)]
pub(crate) enum Event {
    /// A list begins. The objects that do not follow before [`Event::Complete`] are removed.
    Begin,
    /// The object is there. Before [`Event::Complete`] it may be as it was before.
    Put(Object),
    Removed(Object),
    /// An object with this name cannot be read, so nothing is known about it.
    Unread(String),
    Complete,
    /// Nothing changed.
    Alive,
}

/// The reason why nothing came.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("{0}")]
    Api(#[from] Error),
    #[error("nothing came for {} minutes", STALE.as_secs() / 60)]
    Silence,
    #[error("the stream of a list ended before its mark")]
    Cut,
}

impl Trouble {
    fn status(&self) -> Option<u16> {
        match self {
            Self::Api(Error::Api(status)) => Some(status.code),
            _ => None,
        }
    }

    /// Whether the server has no such kind.
    pub(crate) fn is_not_found(&self) -> bool {
        self.status() == Some(404)
    }

    /// Whether the server has forgotten a version or the token of a page.
    fn is_expired(&self) -> bool {
        self.status() == Some(410)
    }

    fn is_unreadable(&self) -> bool {
        matches!(self, Self::Api(error) if is_unreadable(error))
    }
}

enum State {
    /// A list has to begin.
    Start,
    /// The first part of a stream.
    Stream(Watch),
    /// Objects of a page, before the next one.
    Pages(VecDeque<Object>),
    /// A watch has to begin.
    Listed,
    /// Since this moment.
    Watch(Watch, Instant),
}

/// The events of a kind.
pub(crate) struct Feed {
    api: Api<Object>,
    state: State,
    pager: Pager,
    /// Whether the present list is read by pages, because no stream came to its mark.
    by_pages: bool,
    /// The version to which the events have come.
    version: String,
    /// The last progress, or the begin of the present attempt.
    good: Instant,
    /// Whether the last watch stayed open for [`LASTS`].
    lasted: bool,
    pause: Pause,
}

impl Feed {
    pub(crate) fn new(api: Api<Object>) -> Self {
        Self {
            pager: Pager::new(api.clone()),
            api,
            state: State::Start,
            by_pages: false,
            version: String::new(),
            good: Instant::now(),
            lasted: false,
            pause: Pause::default(),
        }
    }

    /// Waits for the next event. After an error it goes on, by itself and with pauses.
    pub(crate) async fn next(&mut self) -> Result<Event, Trouble> {
        loop {
            let deadline = self.good + STALE;
            let step = async {
                self.pause.wait().await;
                self.step().await
            };
            let step = timeout_at(deadline, step).await;
            if step.is_err() && self.ends() {
                self.good = Instant::now();
                continue;
            }
            match step.unwrap_or(Err(Trouble::Silence)) {
                Ok(Some(event)) => return Ok(event),
                Ok(None) => {}
                Err(trouble) => {
                    self.pause.grow();
                    self.fail(&trouble);
                    return Err(trouble);
                }
            }
        }
    }

    /// Ends a watch, so that it begins again. Returns whether it lasted.
    fn ends(&mut self) -> bool {
        let State::Watch(_, since) = &self.state else {
            return false;
        };
        self.lasted = since.elapsed() >= LASTS;
        if self.lasted {
            self.state = State::Listed;
        }
        self.lasted
    }

    /// Chooses how to go on after an error.
    fn fail(&mut self, trouble: &Trouble) {
        let silent = matches!(trouble, Trouble::Silence);
        // A stream would meet the same line again. A page can step over its object.
        self.by_pages |= trouble.is_unreadable();
        if silent || trouble.is_expired() || trouble.is_unreadable() {
            // A stream whose head never comes is still in the first state.
            self.by_pages |= matches!(self.state, State::Start | State::Stream(_));
            self.state = State::Start;
        } else if matches!(self.state, State::Watch(..)) {
            self.state = State::Listed;
        }
        if silent {
            self.good = Instant::now();
        }
    }

    async fn step(&mut self) -> Result<Option<Event>, Trouble> {
        match &mut self.state {
            State::Start => Ok(Some(self.start().await)),
            State::Stream(watch) => {
                let event = watch.next().await;
                Ok(self.streamed(event))
            }
            State::Pages(objects) => match objects.pop_front() {
                Some(object) => Ok(Some(self.told(Event::Put(object)))),
                None => self.page().await,
            },
            State::Listed => {
                let watch = self
                    .api
                    .watch(&WatchParams::default(), &self.version)
                    .await?;
                self.state = State::Watch(watch.boxed(), Instant::now());
                // That it opens proves nothing alone: one that ends at once would hide that nothing comes.
                let lasted = std::mem::take(&mut self.lasted);
                Ok(lasted.then(|| self.told(Event::Alive)))
            }
            State::Watch(watch, _) => {
                let event = watch.next().await;
                self.watched(event)
            }
        }
    }

    /// Takes note of progress.
    fn told(&mut self, event: Event) -> Event {
        self.good = Instant::now();
        event
    }

    async fn start(&mut self) -> Event {
        if self.by_pages {
            return self.begin_pages();
        }
        let parameters = WatchParams {
            timeout: Some(STREAM),
            ..WatchParams::streaming_lists()
        };
        // Without a version the list is as new as the request.
        match self.api.watch(&parameters, "").await {
            Ok(watch) => {
                self.state = State::Stream(watch.boxed());
                Event::Begin
            }
            Err(error) => self.fall_back(&error.into()),
        }
    }

    fn fall_back(&mut self, why: &Trouble) -> Event {
        let kind = self.api.resource_url();
        if why.is_not_found() {
            tracing::debug!(kind, %why, "the server streams no list");
        } else {
            tracing::info!(kind, %why, "the API server does not stream the list, so it is read page by page");
        }
        self.begin_pages()
    }

    fn begin_pages(&mut self) -> Event {
        self.by_pages = true;
        self.pager.restart();
        self.state = State::Pages(VecDeque::new());
        Event::Begin
    }

    fn complete(&mut self, state: State) -> Event {
        self.by_pages = false;
        self.state = state;
        self.told(Event::Complete)
    }

    /// An event before the mark. Objects may already change or go there.
    fn streamed(&mut self, event: Option<kube::Result<WatchEvent<Object>>>) -> Option<Event> {
        let why = match event {
            Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                return Some(self.told(Event::Put(object)));
            }
            Some(Ok(WatchEvent::Deleted(object))) => {
                return Some(self.told(Event::Removed(object)));
            }
            Some(Ok(WatchEvent::Bookmark(mark))) => {
                if !mark.metadata.annotations.contains_key(END) {
                    self.good = Instant::now();
                    return None;
                }
                self.version = mark.metadata.resource_version;
                let state = std::mem::replace(&mut self.state, State::Listed);
                return Some(self.complete(match state {
                    State::Stream(watch) => State::Watch(watch, Instant::now()),
                    other => other,
                }));
            }
            Some(Ok(WatchEvent::Error(status))) => Error::Api(status).into(),
            Some(Err(error)) => error.into(),
            None => Trouble::Cut,
        };
        Some(self.fall_back(&why))
    }

    async fn page(&mut self) -> Result<Option<Event>, Trouble> {
        if let Some(version) = self.pager.end() {
            version.clone_into(&mut self.version);
            return Ok(Some(self.complete(State::Listed)));
        }
        let page = self.pager.next().await?;
        self.good = Instant::now();
        Ok(match page {
            Page::Halved => None,
            Page::Unread(name) => Some(Event::Unread(name)),
            Page::Objects(objects) => {
                self.state = State::Pages(objects.into());
                None
            }
        })
    }

    /// An event after the list.
    fn watched(
        &mut self,
        event: Option<kube::Result<WatchEvent<Object>>>,
    ) -> Result<Option<Event>, Trouble> {
        let event = match event {
            Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                Event::Put(object)
            }
            Some(Ok(WatchEvent::Deleted(object))) => Event::Removed(object),
            Some(Ok(WatchEvent::Bookmark(mark))) => {
                self.version = mark.metadata.resource_version;
                return Ok(Some(self.told(Event::Alive)));
            }
            Some(Ok(WatchEvent::Error(status))) => return Err(Error::Api(status).into()),
            Some(Err(error)) => return Err(error.into()),
            None => {
                // The server ends each watch after a while. If it ends them at once, it is not asked at once.
                self.ends();
                self.pause.grow();
                self.state = State::Listed;
                return Ok(None);
            }
        };
        if let Event::Put(object) | Event::Removed(object) = &event
            && let Some(version) = &object.meta.resource_version
        {
            version.clone_into(&mut self.version);
        }
        Ok(Some(self.told(event)))
    }
}

/// The pause before the next request. It grows with each error, unless the last one was long ago.
#[derive(Debug, Default)]
struct Pause {
    time: Duration,
    last: Option<Instant>,
    due: bool,
}

impl Pause {
    fn grow(&mut self) {
        let now = Instant::now();
        let lately = self.last.is_some_and(|last| now - last < CALM);
        self.time = if lately {
            (self.time * 2).clamp(PAUSE.0, PAUSE.1)
        } else {
            PAUSE.0
        };
        (self.last, self.due) = (Some(now), true);
    }

    async fn wait(&mut self) {
        if self.due {
            sleep(self.time).await;
            self.due = false;
        }
    }
}
