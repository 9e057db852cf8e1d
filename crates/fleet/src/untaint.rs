//! The startup taint. The nodes of a group start with it, so that no pod comes before the driver, and an autoscaler counts
//! the node as one that still starts.
//!
//! The taint goes when three facts hold, and each is about this Node and not about an earlier one of its name:
//!
//! - The kubelet has registered the driver: the `CSINode` lists it, and belongs to the uid of the Node. The topology label
//!   of the Node is older by a moment, but stays when the driver ends.
//! - A pod of the driver on the node is ready: its records are loaded, and its sidecars run.
//! - That pod has reported a capacity for each class that waits for its consumer. Without one the scheduler finds no space
//!   on the node, and an autoscaler that sees a started node without space starts another one. A capacity of zero is
//!   enough, because a node without pools or with a dead disk can run other pods.
//!
//! The page of the driver says no more than its pod, so nothing here needs the key. The facts come from caches. That is
//! enough, because the patch names the version of the Node, and a driver that ended a moment ago is as one that ends a
//! moment later.

use crate::objects::{Node, Pod};
use crate::view::View;

/// The reason why the node keeps the taint, with a command that shows more; `None` if the taint is to go.
pub(crate) fn lacks(name: &str, node: &Node, view: &View, namespace: &str) -> Option<String> {
    let of_node = view.pods.iter().filter(|(_, pod)| pod.node == name);
    // During an update a node has two.
    let Some(((home, of_pod), pod)) = of_node.max_by_key(|(_, pod)| pod.ready) else {
        return Some(format!(
            "no pod of the driver is on it; compare its labels with the nodeSelector and affinity of \
             `kubectl get daemonsets -n {namespace} -o yaml`"
        ));
    };
    if !pod.ready {
        return Some(format!(
            "the driver's pod is not ready: `kubectl describe pod -n {home} {of_pod}`"
        ));
    }
    let registered = view.registrations.get(name);
    if registered.is_none_or(|found| found.node != node.identity.uid) {
        return Some(format!(
            "the kubelet has not registered the driver: `kubectl logs -n {home} {of_pod} -c node-driver-registrar`"
        ));
    }
    let class = without_capacity(pod, view)?;
    Some(format!(
        "the driver's pod has reported no capacity for class {class}: `kubectl logs -n {home} {of_pod} -c csi-provisioner`"
    ))
}

/// The first class that waits for its consumer and for which the pod has reported no capacity.
fn without_capacity<'a>(pod: &Pod, view: &'a View) -> Option<&'a str> {
    let of_pod = view.capacities.values();
    let of_pod = of_pod.filter(|found| found.owner.as_deref() == Some(&*pod.uid));
    let reported: Vec<&str> = of_pod.map(|found| &*found.class).collect();
    let mut waiting = view.classes.iter().filter(|(_, class)| class.waits);
    let class = waiting.find(|(class, _)| !reported.contains(&&***class))?;
    Some(class.0)
}
