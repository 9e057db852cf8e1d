//! No quota: the pool reserves sizes, and nothing enforces them.

use objects::Bytes;

use crate::os::{At, Os};

use super::interface::{Enforcement, Quota, Result};

#[derive(Debug, Default)]
pub struct NoQuota;

impl Quota for NoQuota {
    fn enforcement(&self) -> Enforcement {
        Enforcement::None
    }

    fn create_dir(&self, os: &Os, At { dir, name }: At<'_>, _size: Bytes) -> Result<Option<u32>> {
        os.mkdir(dir, name, 0o700)?;
        Ok(None)
    }
}
