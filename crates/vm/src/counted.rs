//! What faults say of their read-modify-writes ([`crate::Counted::shared_atomics`]), held against those that they make.

use prepage_core::PAGE_SIZE;
use prepage_core::policy::Neighbours;
use prepage_sys::counted::made;

use crate::{Map, MapOptions, Vm, VmOptions};

const PAGES: u64 = 64;

/// What is made in touches of all pages of `map`, one after the other, and what the VM tells of them.
fn touched(vm: &Vm, map: &Map) -> (u64, u64) {
    let (told, before) = (vm.statistics().counted.shared_atomics, made());
    for page in map.as_slice().chunks(PAGE_SIZE as usize) {
        std::hint::black_box(page[0]);
    }
    let made = made() - before;
    (made, vm.statistics().counted.shared_atomics - told)
}

/// A file all in the page cache, and faults that the touching thread serves by itself, one page each.
#[test]
fn faults_make_the_read_modify_writes_that_they_tell_of() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![7; (PAGES * PAGE_SIZE) as usize]).unwrap();
    let vm = Vm::new(VmOptions::default()).unwrap();
    let object = vm.file(file.path()).unwrap();
    let options = MapOptions::private().policy("none".parse().unwrap()).neighbours(Neighbours::Block(1));
    let [first, second] = [0, 1].map(|_| vm.map(&object, &options).unwrap());
    // One is warm.
    vm.core.buffers.give(vm.core.buffers.take());
    let (made, told) = touched(&vm, &first);
    assert_eq!(vm.statistics().counted.hard, PAGES);
    // The queue of buffers has words of its own.
    assert_eq!(made + 2 * PAGES, told, "that read a page");
    let (made, told) = touched(&vm, &second);
    assert_eq!(vm.statistics().counted.soft, PAGES);
    assert_eq!(
        (made, told),
        (4 * PAGES, 4 * PAGES),
        "on pages in memory: to enter and leave the map and the object"
    );
    let zeros = vm.anonymous(PAGES * PAGE_SIZE).unwrap();
    let zeros = vm.map(&zeros, &MapOptions::private().zero_cluster(1)).unwrap();
    let (made, told) = touched(&vm, &zeros);
    assert_eq!(vm.statistics().counted.zero, PAGES);
    assert_eq!(made, told, "of zeros");
}
