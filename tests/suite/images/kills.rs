//! Servers that are killed while they publish images.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rootcellar::csi::volume_capability::{AccessType, BlockVolume};
use tokio::task::JoinSet;

use super::*;
use support::Node;
use support::messages::{self, soon};
use support::server::{Clients, Server};

const VOLUMES: usize = 6;
const KILLS: usize = 12;

/// The most answers before the next kill.
const ANSWERS: u128 = 20;

/// A published volume.
#[derive(Clone)]
struct Published {
    id: String,
    target: PathBuf,
    is_block: bool,
}

impl Published {
    async fn new(node: &Node, clients: &mut Clients, number: usize) -> Self {
        let is_block = number.is_multiple_of(2);
        let name = format!("pvc-{number}");
        let mut request = messages::create_with(&name, 16 << 20, &[("kind", "image")]);
        if is_block {
            request.volume_capabilities[0].access_type = Some(AccessType::Block(BlockVolume {}));
        }
        Self {
            id: clients.create(request).await.unwrap().volume_id,
            target: node.target(&name),
            is_block,
        }
    }

    async fn publish(&self, clients: &mut Clients) -> messages::Answer {
        let mut request = messages::publish(&self.id, &self.target);
        if self.is_block {
            let capability = request.volume_capability.as_mut().unwrap();
            capability.access_type = Some(AccessType::Block(BlockVolume {}));
        }
        clients.publish(request).await
    }

    /// Publishes and unpublishes it until the server has ended.
    async fn repeat(self, mut clients: Clients, answers: Arc<AtomicUsize>, ended: Arc<AtomicBool>) {
        while !ended.load(Ordering::Relaxed) {
            for answer in [
                self.publish(&mut clients).await,
                clients.unpublish(&self.id, &self.target).await,
            ] {
                if answer.is_ok() {
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// A server that is killed at any moment of a publish or an unpublish leaves no device that its successor
/// does not detach.
///
/// Proves: I2, B1.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_leaves_no_device() {
    require!(loop_devices);
    let node = Node::new();
    let _disk = node.make_pool_disk(Disk::new("ext4"));
    let options = [node.own_pool_option()];
    let mut server = Server::start_with(&node, &options).await;
    let mut volumes = Vec::new();
    for number in 0..VOLUMES {
        volumes.push(Published::new(&node, &mut server.clients().await, number).await);
    }
    for _ in 0..KILLS {
        let (answers, ended) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let mut working = JoinSet::new();
        for volume in &volumes {
            let (answers, ended) = (Arc::clone(&answers), Arc::clone(&ended));
            working.spawn(
                volume
                    .clone()
                    .repeat(server.clients().await, answers, ended),
            );
        }
        let enough = usize::try_from(uuid::Uuid::new_v4().as_u128() % ANSWERS).unwrap();
        soon("calls are answered", async || {
            answers.load(Ordering::Relaxed) >= enough
        })
        .await;
        tokio::task::block_in_place(|| server.kill());
        ended.store(true, Ordering::Relaxed);
        working.join_all().await;
        server = Server::start_with(&node, &options).await;
    }
    let mut clients = server.clients().await;
    for volume in &volumes {
        clients.unpublish_soon(&volume.id, &volume.target).await;
        soon("the volume is deleted", async || {
            clients.delete(&volume.id).await.is_ok()
        })
        .await;
    }
    assert_eq!(tokio::task::block_in_place(|| server.stop()), Some(0));
}
