//! Mounts of volumes onto targets: bind mounts of `data/`, and the filesystems of images.

mod error;
mod guard;
mod interface;
mod kernel;
mod options;
mod table;
mod target;
mod users;

pub use error::{Error, Result};
pub use guard::{GuardedDir, open_guarded};
pub use interface::{Mountable, Mounter, Prepared, Shown, Tidied};
pub use kernel::KernelMounter;
pub use options::{Atime, MountOptions};
pub use table::{FsPath, MountEntry, MountTable, MountWatch};
pub use target::{Found, Target};
pub use users::{OpenFiles, Used, User, Users, UsersUnknown, find_user};
