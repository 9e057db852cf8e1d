//! The operations of a pool. Each is an `impl Pool`, and changes the disk first, then the memory.

pub(crate) mod adopt;
pub(crate) mod caller;
pub(crate) mod capacity;
pub(crate) mod change;
pub(crate) mod copies;
pub(crate) mod cordon;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod draft;
pub(crate) mod enforce;
pub(crate) mod imports;
pub(crate) mod init;
mod io_limits;
pub(crate) mod kept;
pub(crate) mod life;
pub(crate) mod limits;
pub(crate) mod load;
pub(crate) mod measuring;
pub(crate) mod moving;
pub(crate) mod open;
pub(crate) mod pool;
pub(crate) mod progress;
pub(crate) mod protection;
pub(crate) mod reservation;
pub(crate) mod trash;
pub(crate) mod work;
pub(crate) mod works;
