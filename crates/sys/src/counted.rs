//! Atomic words that count their read-modify-writes, by the thread that makes them: for the tests of prepage-vm, which compare what faults say that they
//! make with what they make. Words of std, and what is inside locks and `Arc`, are not counted.

// As those of std, which say what each does.
#![allow(missing_docs)]

use std::cell::Cell;
use std::sync::atomic::{self, Ordering};

thread_local! {
    static MADE: Cell<u64> = const { Cell::new(0) };
}

/// How many this thread has made so far.
pub fn made() -> u64 {
    MADE.get()
}

fn count() {
    MADE.set(MADE.get() + 1);
}

macro_rules! counted {
    ($($word:ident of $value:ty: $($one:ident),*;)+) => {$(
        #[derive(Debug, Default)]
        pub struct $word(pub(crate) atomic::$word);

        impl $word {
            pub const fn new(value: $value) -> Self {
                Self(atomic::$word::new(value))
            }

            pub fn load(&self, order: Ordering) -> $value {
                self.0.load(order)
            }

            pub fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, order);
            }

            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }

            $(pub fn $one(&self, value: $value, order: Ordering) -> $value {
                count();
                self.0.$one(value, order)
            })*

            pub fn compare_exchange(&self, now: $value, then: $value, done: Ordering, not: Ordering) -> Result<$value, $value> {
                count();
                self.0.compare_exchange(now, then, done, not)
            }

            pub fn compare_exchange_weak(&self, now: $value, then: $value, done: Ordering, not: Ordering) -> Result<$value, $value> {
                count();
                self.0.compare_exchange_weak(now, then, done, not)
            }

            pub fn fetch_update(&self, done: Ordering, not: Ordering, mut then: impl FnMut($value) -> Option<$value>) -> Result<$value, $value> {
                self.0.fetch_update(done, not, |now| then(now).inspect(|_| count()))
            }
        }
    )+};
}

counted! {
    AtomicU32 of u32: swap, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max;
    AtomicU64 of u64: swap, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min;
    AtomicUsize of usize: swap, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max;
}

#[derive(Debug)]
pub struct AtomicPtr<T>(atomic::AtomicPtr<T>);

impl<T> AtomicPtr<T> {
    pub const fn new(value: *mut T) -> Self {
        Self(atomic::AtomicPtr::new(value))
    }

    pub fn load(&self, order: Ordering) -> *mut T {
        self.0.load(order)
    }

    pub fn store(&self, value: *mut T, order: Ordering) {
        self.0.store(value, order);
    }

    pub fn swap(&self, value: *mut T, order: Ordering) -> *mut T {
        count();
        self.0.swap(value, order)
    }
}
