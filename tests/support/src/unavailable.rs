//! Assertions about every call while a pool is unavailable, and about a pool that works fully.

use std::fs;

use tonic::Code;

use super::messages::{create_with, publish, read_write_once, refused};
use super::server::Clients;
use super::{Node, names};

/// Asserts the answer of each call while the pool of a volume is unavailable; the volume is given
/// by its name and id.
pub async fn assert_unavailable(
    case: &str,
    clients: &mut Clients,
    pool: &str,
    (name, id): (&str, &str),
    node: &Node,
) {
    let unavailable = format!("pool {pool}");
    let class = [("pool", pool)];
    assert_eq!(clients.capacity(&class).await, 0, "{case}");
    let new = clients.create(create_with("new", 1000, &class)).await;
    refused(case, new, Code::ResourceExhausted, &unavailable);
    let known = clients.create(create_with(name, 0, &class)).await;
    refused(case, known, Code::Unavailable, &unavailable);
    refused(
        case,
        clients.delete(id).await,
        Code::Unavailable,
        &unavailable,
    );
    refused(case, clients.get(id).await, Code::Unavailable, &unavailable);
    let validated = clients.validate(id, read_write_once()).await;
    refused(case, validated, Code::Unavailable, &unavailable);
    let target = node.target(&format!("late-{pool}"));
    let published = clients.publish(publish(id, &target)).await;
    refused(case, published, Code::Unavailable, &unavailable);
    let stats = clients.stats(id, &target).await;
    refused(case, stats, Code::Unavailable, &unavailable);
    assert!(names(target.parent().unwrap()).is_empty(), "{case}");
    assert!(
        clients.list(0, "").await.unwrap().0.contains(&id.into()),
        "{case}"
    );
    assert!(
        clients.ready().await,
        "{case}: Probe does not depend on pools"
    );
}

/// Asserts that a pool works fully: a volume is made, used by a pod, and deleted.
pub async fn assert_works(case: &str, clients: &mut Clients, pool: &str, node: &Node) {
    let class = [("pool", pool)];
    let name = format!("works-{pool}");
    assert_ne!(clients.capacity(&class).await, 0, "{case}");
    let request = create_with(&name, 1 << 20, &class);
    let id = clients.create(request).await.unwrap().volume_id;
    clients.get(&id).await.unwrap();
    let target = node.target(&name);
    clients.publish(publish(&id, &target)).await.unwrap();
    fs::write(target.join("file"), "written").unwrap();
    clients.stats(&id, &target).await.unwrap();
    clients.unpublish_soon(&id, &target).await;
    assert!(names(target.parent().unwrap()).is_empty(), "{case}");
    clients.delete(&id).await.unwrap();
    refused(
        case,
        clients.get(&id).await,
        Code::NotFound,
        "does not exist",
    );
}
