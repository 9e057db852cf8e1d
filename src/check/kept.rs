//! Deleted objects that a pool keeps, and those that nothing will remove.

use std::os::fd::AsFd;

use linux::fault::{Fault, InContext};
use linux::os;

use pool::KeptName;

use super::examination::Examination;
use super::inspect::OpenPool;
use super::report::{About, Level};

impl Examination<'_> {
    pub(super) fn kept(&mut self, opened: &OpenPool) -> Result<(), Fault> {
        let Some(kept) = &opened.homes.kept else {
            return Ok(());
        };
        let count = opened.index.kept().len();
        let name = &self.options.name;
        match self.options.keep {
            Some(_) if count > 0 => {
                let what = format!("it keeps {count} deleted volumes and snapshots");
                self.find(Level::Note, About::Records, what, None);
            }
            None if count > 0 => {
                let what = format!(
                    "it keeps {count} deleted volumes and snapshots, and without the option keep= no time ends that"
                );
                let remedy = "rootcellar volume purge --all".to_owned();
                let remedy = format!("{remedy}, or give pool {name} the option keep=");
                self.find(Level::Wrong, About::Records, what, remedy);
            }
            _ => {}
        }
        for found in os::entry_names(kept.as_fd()).context("list the kept objects")? {
            if KeptName::parse(&found).is_none() {
                let path = self.options.path.join(".rootcellar/kept").join(&found);
                let what = format!("{} is no deleted object of the driver's", path.display());
                let remedy = "move it out of the pool".to_owned();
                self.find(Level::Wrong, About::Records, what, remedy);
            }
        }
        Ok(())
    }
}
