//! The objects of a kind in memory.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::Identity;

/// An object that is kept.
pub(crate) trait Kept: PartialEq {
    /// The identity, if it is kept. Its version changes although nothing else that is kept does.
    fn identity(&mut self) -> Option<&mut Identity> {
        None
    }
}

/// The objects of a kind by their keys. A list that begins makes a new generation, and its end drops the objects of
/// earlier ones.
#[derive(Debug)]
pub(crate) struct Cache<K, T> {
    generation: u32,
    objects: BTreeMap<K, (u32, T)>,
}

impl<K, T> Default for Cache<K, T> {
    fn default() -> Self {
        Self {
            generation: 0,
            objects: BTreeMap::new(),
        }
    }
}

impl<K: Ord, T> Cache<K, T> {
    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&T>
    where
        K: Borrow<Q>,
    {
        self.objects.get(key).map(|(_, object)| object)
    }

    pub(crate) fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.objects.contains_key(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &T)> + Clone {
        self.into_iter()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> + Clone {
        self.objects.keys()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> + Clone {
        self.objects.values().map(|(_, object)| object)
    }

    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<T>
    where
        K: Borrow<Q>,
    {
        self.objects.remove(key).map(|(_, object)| object)
    }

    pub(crate) fn clear(&mut self) {
        self.objects.clear();
    }

    /// A list begins.
    pub(crate) fn begin(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// The list is complete: forgets the objects that it did not have.
    pub(crate) fn end(&mut self) {
        let now = self.generation;
        self.objects.retain(|_, (generation, _)| *generation == now);
    }
}

impl<K: Ord, T: Kept> Cache<K, T> {
    /// Keeps the object, or forgets it if it is none of the driver's. Returns whether anything but its version changed.
    pub(crate) fn put(&mut self, key: K, object: Option<T>) -> bool {
        let Some(mut object) = object else {
            return self.remove(&key).is_some();
        };
        match self.objects.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert((self.generation, object));
                true
            }
            Entry::Occupied(mut entry) => {
                let (generation, old) = entry.get_mut();
                *generation = self.generation;
                if let (Some(old), Some(new)) = (old.identity(), object.identity()) {
                    old.version.clone_from(&new.version);
                }
                let changed = *old != object;
                if changed {
                    *old = object;
                }
                changed
            }
        }
    }
}

#[cfg(test)]
impl<K: Ord, T> Cache<K, T> {
    pub(crate) fn insert(&mut self, key: K, object: T) -> Option<T> {
        let before = self.objects.insert(key, (self.generation, object));
        before.map(|(_, object)| object)
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }
}

impl<'a, K, T> IntoIterator for &'a Cache<K, T> {
    type Item = (&'a K, &'a T);
    type IntoIter = std::iter::Map<
        std::collections::btree_map::Iter<'a, K, (u32, T)>,
        fn((&'a K, &'a (u32, T))) -> (&'a K, &'a T),
    >;

    fn into_iter(self) -> Self::IntoIter {
        self.objects.iter().map(|(key, (_, object))| (key, object))
    }
}

#[cfg(test)]
impl<K: Ord + Borrow<Q>, T, Q: Ord + ?Sized> std::ops::Index<&Q> for Cache<K, T> {
    type Output = T;

    fn index(&self, key: &Q) -> &T {
        self.get(key).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq)]
    struct Object(Identity, u32);

    impl Kept for Object {
        fn identity(&mut self) -> Option<&mut Identity> {
            Some(&mut self.0)
        }
    }

    /// An object with this version and this content.
    fn object(version: &str, content: u32) -> Object {
        let identity = Identity {
            namespace: String::new(),
            name: "one".into(),
            uid: "u".into(),
            version: version.into(),
        };
        Object(identity, content)
    }

    #[test]
    fn a_new_version_alone_is_kept_and_changes_nothing() {
        let mut cache = Cache::default();
        for (object, changed) in [
            (Some(object("1", 1)), true),
            (Some(object("2", 1)), false),
            (Some(object("3", 2)), true),
            (None, true),
            (None, false),
        ] {
            assert_eq!(cache.put("one", object.clone()), changed, "{object:?}");
            assert_eq!(cache.get("one"), object.as_ref());
        }
    }

    #[test]
    fn a_list_forgets_what_it_did_not_have() {
        let mut cache = Cache::default();
        for key in ["one", "two", "three"] {
            cache.put(key, Some(object("1", 1)));
        }
        cache.begin();
        cache.put("two", Some(object("1", 1)));
        cache.put("four", Some(object("1", 1)));
        // A list that ends halfway begins again.
        cache.begin();
        cache.put("one", Some(object("1", 1)));
        assert_eq!(cache.len(), 4, "nothing is removed before the end");
        cache.end();
        assert_eq!(cache.keys().collect::<Vec<_>>(), [&"one"]);
    }
}
