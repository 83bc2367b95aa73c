//! What prefetches hold until they have ended: files that are open, and profiles in memory. A user's own profile may name as many files as fit into it,
//! and a user may have as many profiles; without files to open the service sees nothing any more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use prepage_sys::open_files;
use prepage_sys::sync::Anyway;

/// What profiles take that are fetched. Those that the library keeps count as well: whether it does changes.
const BYTES_MAX: u64 = 32 << 20;

/// What all prefetches hold. Lock order: none, there is one lock.
#[derive(Debug)]
pub struct Holdings {
    max: Amount,
    state: Mutex<State>,
}

/// Protected by `Holdings::state`.
#[derive(Debug, Default)]
struct State {
    all: Amount,
    /// Of each user who has some.
    of_users: HashMap<u32, Amount>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    files: u64,
    bytes: u64,
}

impl Amount {
    fn and(self, more: Self) -> Self {
        Self { files: self.files + more.files, bytes: self.bytes + more.bytes }
    }

    fn without(self, less: Self) -> Self {
        Self { files: self.files - less.files, bytes: self.bytes - less.bytes }
    }

    fn half(self) -> Self {
        Self { files: self.files / 2, bytes: self.bytes / 2 }
    }

    fn fits_into(self, max: Self) -> bool {
        self.files <= max.files && self.bytes <= max.bytes
    }
}

/// What one prefetch holds. It is given back when this is dropped.
#[derive(Debug)]
pub struct Holding {
    holdings: Arc<Holdings>,
    uid: u32,
    amount: Amount,
}

impl Holdings {
    /// As much as the limits of this process allow.
    pub fn of_process() -> Self {
        Self::new(open_files::for_prefetches())
    }

    pub(crate) fn new(files_max: u64) -> Self {
        Self { max: Amount { files: files_max, bytes: BYTES_MAX }, state: Mutex::default() }
    }

    /// Room for a prefetch for user `uid` of a profile that names so many files and takes so many bytes; `None` where there is none, or where the
    /// user's others would have more than half of all.
    pub fn take(self: &Arc<Self>, uid: u32, files: usize, bytes: u64) -> Option<Holding> {
        let amount = Amount { files: files as u64, bytes };
        let mut state = self.state.lock().anyway();
        let own = state.of_users.get(&uid).copied().unwrap_or_default();
        let is_fair = own == Amount::default() || own.and(amount).fits_into(self.max.half());
        let all = state.all.and(amount);
        if !is_fair || !all.fits_into(self.max) {
            return None;
        }
        state.all = all;
        state.of_users.insert(uid, own.and(amount));
        Some(Holding { holdings: self.clone(), uid, amount })
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let mut state = self.holdings.state.lock().anyway();
        state.all = state.all.without(self.amount);
        let own = state.of_users.get(&self.uid).copied().unwrap_or_default();
        match own == self.amount {
            true => _ = state.of_users.remove(&self.uid),
            false => _ = state.of_users.insert(self.uid, own.without(self.amount)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_holds_more_than_half_but_by_one_prefetch_and_all_no_more_than_there_is() {
        let holdings = Arc::new(Holdings::new(100));
        let mut one = vec![holdings.take(7, 30, 1).unwrap(), holdings.take(7, 20, 1).unwrap()];
        assert!(holdings.take(7, 1, 1).is_none() && holdings.take(8, 51, 1).is_none());
        let other = holdings.take(8, 49, BYTES_MAX - 10).unwrap();
        assert!(holdings.take(9, 1, 10).is_none(), "its bytes");
        one.pop();
        one.push(holdings.take(7, 10, 1).unwrap());
        drop(other);
        assert!(holdings.take(8, 60, 1).is_some());
        drop(one);
        let state = holdings.state.lock().anyway();
        assert!(state.all == Amount::default() && state.of_users.is_empty(), "{state:?}");
    }
}
